"""A question with all that is known about it."""

from __future__ import annotations

from dataclasses import dataclass

from verdict_jax.protocols import Question


@dataclass(frozen=True)
class Task:
    """What an agent is asked, and what only training and scoring know.

    Attributes:
        question: as it is put, with its pictures; its `answer` is the ground truth.
        golds: the ground truth and its accepted spellings.
        entity: who or what the picture shows, where the data set says so.
        category: of the question, for tables.
    """

    question: Question
    golds: tuple[str, ...]
    entity: str | None = None
    category: str = ""

    def __post_init__(self) -> None:
        if not any(gold.strip() for gold in self.golds):
            raise ValueError(f"{self.question.id}: no gold answer")
