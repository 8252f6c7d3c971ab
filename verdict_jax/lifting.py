"""A plain scoring function as a panel of judges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float

from verdict_jax.protocols import Candidate, Panel, Question, ScoreFunction, Setting


@dataclass(frozen=True)
class Chains:
    """What a lifted function knows of a batch.

    Attributes:
        questions: one per row.
        steps: the accepted steps of each row, oldest first.
    """

    questions: tuple[Question, ...]
    steps: tuple[tuple[Candidate, ...], ...]


@dataclass(frozen=True)
class LiftedPanel:
    """Judges computed by a function of (questions, accepted steps, candidates); see `lift`."""

    function: ScoreFunction
    judges: tuple[str, ...]
    model_id: str
    settings: Mapping[str, Setting]

    def start(self, questions: Sequence[Question]) -> Chains:
        return Chains(tuple(questions), ((),) * len(questions))

    def score(
        self, state: Chains, candidates: Sequence[Sequence[Candidate]]
    ) -> tuple[Float[np.ndarray, "batch n judges"], Bool[np.ndarray, "batch n judges"]]:
        places = [
            (row, column)
            for row, proposed in enumerate(candidates)
            for column, candidate in enumerate(proposed)
            if candidate.text.strip()
        ]
        width = max((len(proposed) for proposed in candidates), default=0)
        shape = (len(candidates), width, len(self.judges))
        scores, mask = np.zeros(shape), np.zeros(shape, bool)
        if not places:
            return scores, mask
        judged, usable = self.function(
            [state.questions[row] for row, _ in places],
            [state.steps[row] for row, _ in places],
            [(candidates[row][column],) for row, column in places],
        )
        expected = (len(places), 1, len(self.judges))
        if judged.shape != expected or usable.shape != expected:
            raise ValueError(
                f"{self.model_id}: expected scores and mask of shape {expected}, "
                f"got {judged.shape} and {usable.shape}"
            )
        rows, columns = np.array(places).T
        scores[rows, columns], mask[rows, columns] = judged[:, 0], usable[:, 0]
        return scores, mask

    def commit(self, state: Chains, steps: Sequence[Candidate | None]) -> Chains:
        return replace(
            state,
            steps=tuple(
                accepted if step is None else (*accepted, step)
                for accepted, step in zip(state.steps, steps, strict=True)
            ),
        )

    def take(self, state: Chains, rows: Sequence[int]) -> Chains:
        return Chains(
            tuple(state.questions[row] for row in rows), tuple(state.steps[row] for row in rows)
        )


def lift(
    fn: ScoreFunction,
    judges: tuple[str, ...],
    *,
    name: str = "function",
    settings: Mapping[str, Setting] | None = None,
) -> Panel[Chains]:
    """A function of (questions, accepted steps, candidates) as a panel of judges.

    The function is called once per step of a batch, with one row per distinct candidate: row i
    holds the question, the accepted steps, and a single candidate ([k], [k][steps], [k][1] ->
    scores and mask of shape [k, 1, judges]). It never sees blank or repeated candidates or
    finished rows, so a paid service is asked for each step once.

    Args:
        fn: scores in [0, 1], and a mask that is False where a judge gave no usable score.
        judges: the judges' names, one per column of the scores.
        name: the panel's model id. Stored scores are reused by name, judges and settings:
            change one of them when the function changes.
        settings: recorded in traces.

    Raises:
        ValueError: no judge, or two judges of one name; from `score`, a wrong shape.
    """
    if not judges or len(set(judges)) != len(judges):
        raise ValueError(f"judges must be distinct names, got {judges}")
    return LiftedPanel(fn, judges, name, dict(settings or {}))
