"""Benchmarks: each module turns published rows into Questions."""
