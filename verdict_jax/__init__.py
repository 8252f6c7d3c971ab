"""VERDICT: step-wise verification of multimodal reasoning by a judge coordination game."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from verdict_jax import rules
from verdict_jax.equilibrium import Equilibrium, solve

if TYPE_CHECKING:
    from verdict_jax.lifting import lift
    from verdict_jax.protocols import Candidate, Panel, Question, QuestionErrors, Reasoner
    from verdict_jax.reasoning import Reasoned, reason
    from verdict_jax.trace import Trace

# Loaded when first asked for: what lives in these modules brings imaging or model libraries along.
_LAZY = {
    "Candidate": "verdict_jax.protocols",
    "Panel": "verdict_jax.protocols",
    "Question": "verdict_jax.protocols",
    "QuestionErrors": "verdict_jax.protocols",
    "Reasoned": "verdict_jax.reasoning",
    "Reasoner": "verdict_jax.protocols",
    "Trace": "verdict_jax.trace",
    "lift": "verdict_jax.lifting",
    "reason": "verdict_jax.reasoning",
}

__all__ = [
    "Candidate",
    "Equilibrium",
    "Panel",
    "Question",
    "QuestionErrors",
    "Reasoned",
    "Reasoner",
    "Trace",
    "lift",
    "reason",
    "rules",
    "solve",
]


def __getattr__(name: str) -> object:
    """Imports a lazily exported name (PEP 562)."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
