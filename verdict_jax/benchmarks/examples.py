"""What a bundled model is trained on, whatever the world it comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from verdict_jax.prompts import JudgeName
from verdict_jax.protocols import Question

Break = Literal["none", "ungrounded", "illogical", "off_topic", "several"]
"""In what way a step is broken; `several` is more than one way at once."""


@dataclass(frozen=True)
class StepVerdict:
    """What each judge should say of one step.

    Attributes:
        grounded: the picture bears out what the step claims about it (visual).
        logical: the step adds to the accepted steps, contradicts none, and what it concludes
            follows from them (logical).
        on_topic: the step is about what the question asks (contextual).
    """

    grounded: bool
    logical: bool
    on_topic: bool

    def good(self, judge: JudgeName) -> bool:
        """The label that this judge is trained towards."""
        return {
            "visual": self.grounded,
            "logical": self.logical,
            "contextual": self.on_topic,
        }[judge]

    @property
    def broken(self) -> Break:
        """The one way in which the step is broken."""
        ways: tuple[tuple[Break, bool], ...] = (
            ("ungrounded", self.grounded),
            ("illogical", self.logical),
            ("off_topic", self.on_topic),
        )
        failed: list[Break] = [name for name, passed in ways if not passed]
        if not failed:
            return "none"
        return failed[0] if len(failed) == 1 else "several"


@dataclass(frozen=True)
class ReasonerExample:
    """A question with a right chain; the last step is `Answer: <answer>`."""

    question: Question
    steps: tuple[str, ...]


@dataclass(frozen=True)
class JudgeExample:
    """A step to judge, with the label of all three judges.

    Attributes:
        question: the item.
        accepted: the steps before it; they may be wrong, and logical judges go by them all the
            same.
        candidate: the step.
        verdict: the labels.
    """

    question: Question
    accepted: tuple[str, ...]
    candidate: str
    verdict: StepVerdict
