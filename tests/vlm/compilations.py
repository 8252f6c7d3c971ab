"""What XLA compiles, counted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import jax

COMPILED = "/jax/core/compile/backend_compile_duration"


@contextmanager
def compilations() -> Iterator[list[str]]:
    """Grows by one entry for every program compiled: jitted functions and single operations."""
    seen: list[str] = []

    def note(event: str, duration: float, **metadata: str | int) -> None:
        if event == COMPILED:
            seen.append(event)

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        yield seen
    finally:
        jax.monitoring.unregister_event_duration_listener(note)
