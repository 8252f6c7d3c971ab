"""Traces: what happened to one question, step by step.

The JSON of a trace has one object per dataclass below, one member per attribute, under the same
names; `json_records.json_schema(Trace)` is its JSON Schema. A number that does not exist (a judge
that gave no score, the consensus of a masked judge) is null, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from verdict_jax.json_records import dumps, loads
from verdict_jax.prompts import chain_text
from verdict_jax.protocols import Candidate, Setting
from verdict_jax.rules import RuleParameters
from verdict_jax.tree import PanelIdentity, Table

ChainFinish = Literal["answered", "eos", "length", "cap", "empty", "error"]
"""How a chain ended.

answered: the last step declares a final answer. eos: the model ended the chain. length: a step
ran into the token cap, so the chain is cut off. cap: the last step allowed is complete, and
neither declares an answer nor ends the chain. empty: no candidate had any text. error: the
question could not be read. Only answered and eos are finished chains.
"""

SCHEMA = "verdict-trace/1"


@dataclass(frozen=True)
class RuleSettings:
    """`rules.RuleParameters` as plain numbers.

    Attributes:
        stubbornness: [m].
        coupling: [m][m], None for uniform.
        tau, epsilon, vote_score, quorum, max_std: as there.
    """

    stubbornness: tuple[float, ...]
    coupling: tuple[tuple[float, ...], ...] | None
    tau: float
    epsilon: float
    vote_score: float
    quorum: float
    max_std: float

    @classmethod
    def of(cls, parameters: RuleParameters) -> RuleSettings:
        """The numbers of one setting. Raises TypeError for a sweep (leaves with batch axes)."""
        coupling = parameters.coupling
        return cls(
            stubbornness=tuple(np.asarray(parameters.stubbornness).tolist()),
            coupling=None
            if coupling is None
            else tuple(tuple(row) for row in np.asarray(coupling).tolist()),
            tau=float(parameters.tau),
            epsilon=float(parameters.epsilon),
            vote_score=float(parameters.vote_score),
            quorum=float(parameters.quorum),
            max_std=float(parameters.max_std),
        )


@dataclass(frozen=True)
class StepCost:
    """What a step cost the whole batch it was taken in; no part of a trace's identity.

    Attributes:
        propose_seconds: wall clock of starting, committing and sampling; 0 if nothing was sampled.
        judge_seconds: the same for all panels.
        settle_seconds: wall clock of the equilibrium and the rule.
        sampled: this question's candidates were sampled now, not found in the tree.
        judged: the number of panels that judged this question's candidates now.
    """

    propose_seconds: float
    judge_seconds: float
    settle_seconds: float
    sampled: bool
    judged: int


@dataclass(frozen=True)
class Step:
    """One decision.

    Attributes:
        candidates: [n].
        failures: [n] why a candidate is no choice (blank, too few judges), None if nothing failed.
        raw: [n][m] raw scores, None where a judge gave none.
        consensus: [n][m] settled scores, None for a judge that gave no raw score.
        mean: [n] settled means; None with fewer than two judges.
        dispersion: [n] settled dispersions; None with fewer than two judges.
        criterion: [n] what the rule maximised, None where it did not rank.
        accepted: [n] the candidates that passed the rule's filter.
        chosen: the candidate appended to the chain; None if every one was blank.
        fallback: the rule found none to accept and took its second best.
        unjudged: no candidate could be judged, so the one with the highest log-probability per
            token was taken.
        final: proposed as the last step allowed.
        cost: excluded from comparison.
    """

    candidates: tuple[Candidate, ...]
    failures: tuple[str | None, ...]
    raw: Table
    consensus: Table
    mean: tuple[float | None, ...]
    dispersion: tuple[float | None, ...]
    criterion: tuple[float | None, ...]
    accepted: tuple[bool, ...]
    chosen: int | None
    fallback: bool
    unjudged: bool
    final: bool
    cost: StepCost = field(compare=False)


@dataclass(frozen=True)
class Trace:
    """One question under one rule. Two traces are equal if all but their costs is.

    Attributes:
        schema: the version of this layout.
        item, question, choices, gold: of the Question.
        images: its pictures by `protocols.image_name`.
        model_id, settings: the reasoner's weights and its sampling settings in force.
        panels: the judges, in the order of the score columns.
        rule, parameters: how a candidate was chosen.
        n: candidates per step.
        max_steps: the cap on steps.
        seed: folded into every PRNG key.
        steps: oldest first.
        finish: how the chain ended.
        error: the reason if finish is error.
        answer: what a finished chain answers: the letter if there are choices, else the declared
            text. None for an unfinished chain and for an answer that cannot be read.
    """

    schema: str
    item: str
    question: str
    choices: tuple[str, ...]
    gold: str | None
    images: tuple[str, ...]
    model_id: str
    settings: Mapping[str, Setting]
    panels: tuple[PanelIdentity, ...]
    rule: str
    parameters: RuleSettings
    n: int
    max_steps: int
    seed: int
    steps: tuple[Step, ...]
    finish: ChainFinish
    error: str | None
    answer: str | None

    @property
    def chain(self) -> str:
        """The accepted steps as the reasoner writes them."""
        return join_chain(self.steps)

    def to_json(self) -> str:
        """One line of JSON."""
        return dumps(self)

    @classmethod
    def from_json(cls, text: str) -> Trace:
        """The trace that `to_json` wrote.

        Raises:
            MalformedRecord: not JSON, not a trace, or another version; the message names the place.
        """
        return loads(cls, text, SCHEMA)


def join_chain(steps: tuple[Step, ...]) -> str:
    """The accepted candidates' texts as one chain."""
    return chain_text([s.candidates[s.chosen].text for s in steps if s.chosen is not None])
