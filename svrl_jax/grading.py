"""How right an answer is: exact match, or leniently."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from svrl_jax.matching import holds, is_gold
from svrl_jax.oracle import OracleError
from svrl_jax.task import Task

Grader = Callable[[Sequence[tuple[Task, str | None]]], Sequence[float | OracleError]]
"""A grade in [0, 1] for each answer, None being no answer; or why there is none."""


def exact_match(answers: Sequence[tuple[Task, str | None]]) -> list[float]:
    """1 where the answer equals a gold answer, see `matching.is_gold`."""
    return [float(is_gold(answer, task.golds)) for task, answer in answers]


def containment(answers: Sequence[tuple[Task, str | None]]) -> list[float]:
    """1 where a gold answer stands in the answer: an offline stand-in for LLM-as-judge."""
    return [
        float(answer is not None and any(holds(answer, gold) for gold in task.golds))
        for task, answer in answers
    ]
