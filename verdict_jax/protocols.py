"""What the reasoning loop asks of a reasoner and of a panel of judges."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeVar, runtime_checkable

import jax
import numpy as np
from jaxtyping import Bool, Float, Key
from PIL import Image

ImageSource = Path | bytes | Image.Image
"""A picture as a file, as the bytes of a file, or decoded."""

Setting = str | int | float | bool
"""One value of a settings record."""

Finish = Literal["step", "eos", "length"]
"""Why a candidate's sampling ended: the step delimiter, an end-of-chain token, the token cap."""


@dataclass(frozen=True)
class Question:
    """One item to reason about.

    Attributes:
        id: unique name of the item; PRNG keys and batches are derived from it.
        text: the question as the model reads it.
        images: the item's pictures in the order of the prompt; may be empty.
        choices: option texts in order (letters A, B, ... implied); empty for a free answer.
        answer: the gold answer, None if unknown. Never shown to a reasoner or judge.
    """

    id: str
    text: str
    images: tuple[ImageSource, ...] = ()
    choices: tuple[str, ...] = ()
    answer: str | None = None


def image_name(image: ImageSource) -> str:
    """A picture's name in records: its path, else what it is and a digest of its content."""
    if isinstance(image, Path):
        return str(image)
    if isinstance(image, bytes):
        return f"bytes sha256:{hashlib.sha256(image).hexdigest()[:16]}"
    digest = hashlib.sha256(image.tobytes()).hexdigest()[:16]
    return f"{image.mode} {image.width}x{image.height} sha256:{digest}"


@dataclass(frozen=True)
class Candidate:
    """One sampled continuation of a chain.

    Attributes:
        text: the decoded step without its delimiter.
        token_ids: the ids as sampled, delimiter and end-of-chain token included; empty for
            reasoners that do not sample tokens.
        logprob: sum over tokens of the model's own (temperature 1) log-probabilities, in nats.
        sample_logprob: the same sum under the distribution sampled from.
        finish: why sampling ended.
    """

    text: str
    token_ids: tuple[int, ...] = ()
    logprob: float = 0.0
    sample_logprob: float = 0.0
    finish: Finish = "step"


class QuestionErrors(Exception):
    """Some questions of a batch cannot be started; `reasons` maps their rows to one line each.

    The loop records the reasons and starts again with a readable question repeated in the place
    of each of these rows, so that the batch keeps its shape.
    """

    def __init__(self, reasons: Mapping[int, str]) -> None:
        super().__init__("; ".join(f"row {row}: {reason}" for row, reason in reasons.items()))
        self.reasons = dict(reasons)


State = TypeVar("State")


@runtime_checkable
class Participant(Protocol[State]):
    """What reasoners and panels have in common. States are never changed in place."""

    @property
    def model_id(self) -> str:
        """Names the weights, in traces and as part of what stored results are found by."""
        ...

    @property
    def settings(self) -> Mapping[str, Setting]:
        """All else that moves what it gives, recorded in traces (known-fault V9).

        A reasoner's sampling settings; read-out, rubric and image visibility of a panel's judges.
        """
        ...

    def start(self, questions: Sequence[Question]) -> State:
        """State before the first step. Raises QuestionErrors for items that cannot be read."""
        ...

    def commit(self, state: State, steps: Sequence[Candidate | None]) -> State:
        """Appends one step per row; None leaves the row as it is (it is finished)."""
        ...

    def take(self, state: State, rows: Sequence[int]) -> State:
        """The state of these rows, in this order (compaction when rows finish)."""
        ...


@runtime_checkable
class Reasoner(Participant[State], Protocol[State]):
    """Proposes candidate next steps for a batch of questions."""

    def propose(
        self, state: State, keys: Key[jax.Array, "batch n"], final: bool
    ) -> Sequence[Sequence[Candidate]]:
        """n candidates per row; `final` marks the last step, which runs to the end of the chain."""
        ...


@runtime_checkable
class Panel(Participant[State], Protocol[State]):
    """Judges that share one pass. Never sees another panel's scores.

    (model_id, judges, settings) names what a panel's scores are a function of: stored scores are
    reused by every panel that gives the same three.
    """

    @property
    def judges(self) -> tuple[str, ...]:
        """Names of the judges, one per column of `score`."""
        ...

    def score(
        self, state: State, candidates: Sequence[Sequence[Candidate]]
    ) -> tuple[Float[np.ndarray, "batch n judges"], Bool[np.ndarray, "batch n judges"]]:
        """Scores in [0, 1] and a mask that is False where a judge gave no usable score.

        Every row has the same number of candidates. One whose text is blank is nothing to judge
        (an empty step, a repeat of an earlier candidate, a finished row): the loop ignores
        whatever stands in its place, so a panel may skip it.
        """
        ...


ScoreFunction = Callable[
    [Sequence[Question], Sequence[Sequence[Candidate]], Sequence[Sequence[Candidate]]],
    tuple[Float[np.ndarray, "batch n judges"], Bool[np.ndarray, "batch n judges"]],
]
"""(questions, accepted steps per row, candidates per row) -> (scores, mask); `lifting.lift` makes
it a Panel."""
