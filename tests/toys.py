"""Reasoners and judges with a known right answer, for tests of the loop.

The toy question is a sum, "7 + 5 + 9". Its chain keeps a running total, one term a step, and ends
by declaring it: "7 + 5 = 12", "12 + 9 = 21", "Answer: 21".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import jax
import numpy as np
from jaxtyping import Bool, Float, Key

from verdict_jax.protocols import Candidate, Finish, Question, QuestionErrors, Setting


def sum_question(*terms: int) -> Question:
    return Question(
        "sum-" + "-".join(map(str, terms)), " + ".join(map(str, terms)), answer=str(sum(terms))
    )


@dataclass(frozen=True)
class SumState:
    """Per row: the terms of the question and the accepted steps' texts."""

    rows: tuple[tuple[tuple[int, ...], tuple[str, ...]], ...]


@dataclass(frozen=True)
class SumReasoner:
    """Adds up, and errs with a given probability.

    Attributes:
        error_rate: probability that a candidate is wrong by 1 to 9.
        unreadable: reasons by item id.
        calls: the shape of every call, for tests to look at.
    """

    error_rate: float = 0.6
    unreadable: Mapping[str, str] = field(default_factory=dict)
    calls: list[tuple[str, int]] = field(default_factory=list)

    @property
    def model_id(self) -> str:
        return "toy/sum"

    @property
    def settings(self) -> Mapping[str, Setting]:
        return {"error_rate": self.error_rate}

    def start(self, questions: Sequence[Question]) -> SumState:
        self.calls.append(("start", len(questions)))
        if bad := {
            row: self.unreadable[q.id] for row, q in enumerate(questions) if q.id in self.unreadable
        }:
            raise QuestionErrors(bad)
        return SumState(tuple((tuple(map(int, q.text.split(" + "))), ()) for q in questions))

    def propose(
        self, state: SumState, keys: Key[jax.Array, "batch n"], final: bool
    ) -> Sequence[Sequence[Candidate]]:
        self.calls.append(("propose", len(state.rows)))
        words = np.asarray(jax.random.key_data(keys))
        return [
            [self._candidate(row, np.random.default_rng(word.tolist()), final) for word in proposed]
            for row, proposed in zip(state.rows, words, strict=True)
        ]

    def _candidate(
        self,
        row: tuple[tuple[int, ...], tuple[str, ...]],
        draw: np.random.Generator,
        final: bool,
    ) -> Candidate:
        terms, steps = row
        total = int(steps[-1].rsplit(" ", 1)[-1]) if steps else terms[0]
        wrong = draw.random() < self.error_rate
        slip = int(draw.integers(1, 10)) if wrong else 0
        logprob = float(np.log(draw.random()))
        if final or len(steps) == len(terms) - 1:
            text, finish = f"Answer: {total + sum(terms[len(steps) + 1 :]) + slip}", "eos"
        else:
            term = terms[len(steps) + 1]
            text, finish = f"{total} + {term} = {total + term + slip}", "step"
        return Candidate(text, tuple(text.encode()), logprob, logprob, finish)

    def commit(self, state: SumState, steps: Sequence[Candidate | None]) -> SumState:
        self.calls.append(("commit", len(state.rows)))
        return SumState(
            tuple(
                row if step is None else (row[0], (*row[1], step.text))
                for row, step in zip(state.rows, steps, strict=True)
            )
        )

    def take(self, state: SumState, rows: Sequence[int]) -> SumState:
        return SumState(tuple(state.rows[row] for row in rows))


SUM_JUDGES = ("visual", "logical", "contextual")


def judge_sums(
    questions: Sequence[Question],
    steps: Sequence[Sequence[Candidate]],
    candidates: Sequence[Sequence[Candidate]],
) -> tuple[Float[np.ndarray, "batch n judges"], Bool[np.ndarray, "batch n judges"]]:
    """Is the term the question's next one; does the arithmetic hold; does it follow on."""
    scores = np.array(
        [
            [_judge_sum(question, accepted, candidate) for candidate in proposed]
            for question, accepted, proposed in zip(questions, steps, candidates, strict=True)
        ]
    )
    return scores, np.ones(scores.shape, bool)


def _judge_sum(
    question: Question, accepted: Sequence[Candidate], candidate: Candidate
) -> tuple[float, float, float]:
    terms = [int(term) for term in question.text.split(" + ")]
    total = sum(terms[: len(accepted) + 1])
    numbers = [int(number) for number in re.findall(r"\d+", candidate.text)]
    if candidate.text.startswith("Answer:"):
        right = numbers == [sum(terms)]
        return 0.9, 0.95 if right else 0.1, 0.85
    visual = 0.9 if numbers[1] == terms[len(accepted) + 1] else 0.2
    logical = 0.95 if numbers[0] + numbers[1] == numbers[2] else 0.1
    return visual, logical, 0.85 if numbers[0] == total else 0.15


def said(text: str, finish: Finish = "step", logprob: float = -1.0, tokens: int = 1) -> Candidate:
    return Candidate(text, tuple(range(tokens)), logprob, logprob, finish)


@dataclass(frozen=True)
class ScriptState:
    """Per row: the item's id and how many steps are accepted."""

    rows: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class ScriptedReasoner:
    """Proposes what is written down: script[item][step][candidate].

    Attributes:
        finals: the `final` flag of every proposal.
    """

    script: Mapping[str, Sequence[Sequence[Candidate]]]
    finals: list[bool] = field(default_factory=list)

    @property
    def model_id(self) -> str:
        return "toy/script"

    @property
    def settings(self) -> Mapping[str, Setting]:
        return {}

    def start(self, questions: Sequence[Question]) -> ScriptState:
        return ScriptState(tuple((question.id, 0) for question in questions))

    def propose(
        self, state: ScriptState, keys: Key[jax.Array, "batch n"], final: bool
    ) -> Sequence[Sequence[Candidate]]:
        self.finals.append(final)
        silent = [said("")] * keys.shape[1]
        return [
            self.script[item][step] if step < len(self.script[item]) else silent
            for item, step in state.rows
        ]

    def commit(self, state: ScriptState, steps: Sequence[Candidate | None]) -> ScriptState:
        return ScriptState(
            tuple(
                (item, depth + (step is not None))
                for (item, depth), step in zip(state.rows, steps, strict=True)
            )
        )

    def take(self, state: ScriptState, rows: Sequence[int]) -> ScriptState:
        return ScriptState(tuple(state.rows[row] for row in rows))
