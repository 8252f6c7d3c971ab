"""What a benchmark is to an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from verdict_jax.benchmarks.examples import StepVerdict
from verdict_jax.protocols import Question

StepCheck = Callable[[Question, Sequence[str], str], StepVerdict]
"""(question, accepted steps, step) -> what is true of the step, by program."""


@dataclass(frozen=True)
class Benchmark:
    """Questions with what is needed to report on them.

    Attributes:
        name: as it is called on the command line.
        questions: in a fixed order, each with its gold answer.
        categories: of each question, by id.
        check: labels any step; None where no program can.
    """

    name: str
    questions: tuple[Question, ...]
    categories: Mapping[str, str]
    check: StepCheck | None = field(default=None, repr=False)
