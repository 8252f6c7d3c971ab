"""The benchmarks by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from verdict_jax.benchmarks import easy_vqa, tabletop
from verdict_jax.benchmarks.benchmark import Benchmark

BENCHMARKS: Mapping[str, Callable[[int | None], Benchmark]] = {
    "easy-vqa": easy_vqa.benchmark,
    "tabletop": tabletop.benchmark,
}
"""What `--benchmark NAME` loads, given the most questions wanted. A new benchmark is a line."""
