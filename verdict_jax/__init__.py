"""VERDICT: step-wise verification of multimodal reasoning by a judge coordination game."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from verdict_jax import rules
    from verdict_jax.equilibrium import Equilibrium, solve
    from verdict_jax.lifting import lift
    from verdict_jax.protocols import Candidate, Panel, Question, QuestionErrors, Reasoner
    from verdict_jax.reasoning import Reasoned, reason
    from verdict_jax.trace import Trace

# Loaded when first asked for: `verdict --help` answers without jax, `solve` without imaging.
_LAZY = {
    "Candidate": "verdict_jax.protocols",
    "Equilibrium": "verdict_jax.equilibrium",
    "Panel": "verdict_jax.protocols",
    "Question": "verdict_jax.protocols",
    "QuestionErrors": "verdict_jax.protocols",
    "Reasoned": "verdict_jax.reasoning",
    "Reasoner": "verdict_jax.protocols",
    "Trace": "verdict_jax.trace",
    "lift": "verdict_jax.lifting",
    "reason": "verdict_jax.reasoning",
    "solve": "verdict_jax.equilibrium",
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
    """Imports a lazily exported name (PEP 562); raises AttributeError for any other."""
    if name == "rules":
        return importlib.import_module("verdict_jax.rules")
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
