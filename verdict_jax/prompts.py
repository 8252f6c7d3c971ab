"""Every prompt of the package, the same for the bundled models and for published ones.

The layout is fixed, because the bundled models are trained on it:

    reasoner  system: how to answer
              user: [images] question
              assistant: step, blank line, step, blank line, ..., "Answer: ..."
    judge     system: rubric with its read-out
              user: [images if the judge sees them] question, blank line,
                    accepted steps and the candidate, each followed by a blank line
              assistant: the read-out, whose first token is the score

The candidate ends the user turn, so a judge reads per step the candidate with the few tokens that
close the turn, and its prefix grows by the chosen step alone.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Literal

ReadOut = Literal["digits", "yes_no", "verbal"]
"""How a judge answers: a digit 1-5, Yes or No, a number between 0 and 1."""

JudgeName = Literal["visual", "logical", "contextual"]
"""The three judges of the paper, V, L and C."""

JUDGES: tuple[JudgeName, ...] = ("visual", "logical", "contextual")

STEP_DELIMITER = "\n\n"
"""Ends a step, and the question in a judge's turn."""

LETTERS = string.ascii_uppercase
"""Name the choices, in their order."""

ANSWER_PREFIX = "Answer: "
"""Opens the last step of a chain."""

RUBRICS: dict[JudgeName, str] = {
    "visual": (
        "Judge by the image alone: is everything the last step claims about objects, "
        "attributes, positions or the answer true?"
    ),
    "logical": (
        "Judge by the earlier steps alone: does what the last step concludes follow, "
        "with nothing repeated or contradicted?"
    ),
    "contextual": (
        "Judge by the question alone: is the last step about what it asks, "
        "without drifting to other things?"
    ),
}
"""What each judge is asked about the candidate, without the read-out."""

READ_OUTS: dict[ReadOut, str] = {
    "digits": "Reply with one digit, 1 (no) to 5 (yes).",
    "yes_no": "Reply Yes or No.",
    "verbal": "Reply with a number from 0 (no) to 1 (yes).",
}
"""How the reply is to look."""

DIGITS = ("1", "2", "3", "4", "5")
"""Replies of the read-out `digits`, worst first; each is one token."""

YES_NO = ("No", "Yes")
"""Replies of the read-out `yes_no`, worst first; each is one token."""

_REASONER = (
    "Reason step by step: short steps, a blank line between them. "
    f"The last step is '{ANSWER_PREFIX}' with {{}}."
)


def reasoner_system(choices: Sequence[str] = ()) -> str:
    """The reasoner's system prompt; asks for the letter where there are choices."""
    return _REASONER.format("the letter of the right choice" if choices else "a short answer")


def judge_system(rubric: str, read_out: ReadOut = "digits") -> str:
    """A judge's system prompt: what it is asked, then how to reply.

    Args:
        rubric: one of RUBRICS' values, or a rubric of one's own.
        read_out: the kind of reply.
    """
    return f"{rubric} {READ_OUTS[read_out]}"


def question_text(text: str, choices: Sequence[str] = ()) -> str:
    """The question as reasoner and judges read it: the text, then a line per choice.

    Raises:
        ValueError: more choices than letters.
    """
    if len(choices) > len(LETTERS):
        raise ValueError(
            f"{len(choices)} choices, but there are {len(LETTERS)} letters; give at most these many"
        )
    lines = [f"{letter}. {choice}" for letter, choice in zip(LETTERS, choices, strict=False)]
    return "\n".join([text, *lines])


def judge_opening(question: str) -> str:
    """The text between a judge's images and the first step.

    Args:
        question: what `question_text` returns.
    """
    return question + STEP_DELIMITER


def judge_step(step: str) -> str:
    """An accepted or candidate step as a judge reads it."""
    return step + STEP_DELIMITER


def chain_text(steps: Sequence[str]) -> str:
    """A whole chain as the reasoner writes it: steps joined by the delimiter, none at the end."""
    return STEP_DELIMITER.join(steps)
