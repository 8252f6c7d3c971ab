"""Qwen2.5-VL in Flax NNX, addressed as (config, params) pairs of pure functions."""
