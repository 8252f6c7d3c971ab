"""The settings that hold where none are given; without jax, so that `--help` can show them.

verdict.md of the design lists where each choice is open in the paper.
"""

from __future__ import annotations

STUBBORNNESS = (1.5, 1.0, 0.8)
"""lambda of the visual, logical and contextual judge (the VERDICT paper)."""

TAU = 0.6
"""What the mean must exceed to be accepted (the VERDICT paper)."""

EPSILON = 0.1
"""What the dispersion must stay below to be accepted (the VERDICT paper)."""

CANDIDATES = 4
"""Candidates per step, n: search-and-learn's and DreamPRM's; the paper leaves it open."""

MAX_STEPS = 12
"""Cap on the steps of a chain: VisualPRM's pipeline; the paper leaves it open."""
