"""One question on its way through its tree: from the root, step by step, to its trace."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax
import numpy as np
from jaxtyping import Bool, Float

from verdict_jax.answers import declares, extract_choice, final_answer
from verdict_jax.equilibrium import MIN_JUDGES, Equilibrium
from verdict_jax.protocols import Candidate, Question, Reasoner
from verdict_jax.rules import RuleParameters, Verdict
from verdict_jax.trace import SCHEMA, ChainFinish, RuleSettings, Step, StepCost, Trace, join_chain
from verdict_jax.tree import Node, PanelIdentity, Tree, columns


@dataclass(frozen=True)
class Plan:
    """What stays the same over a run; arguments of `reasoning.reason` unless said otherwise.

    Attributes:
        width: candidates of a node, of which a rule sees the first n.
        buckets: sorted.
    """

    rule: str
    parameters: RuleParameters
    panels: tuple[PanelIdentity, ...]
    n: int
    width: int
    seed: int
    max_steps: int
    buckets: tuple[int, ...]


@dataclass(frozen=True)
class Walk:
    """One question on its way through its tree.

    Attributes:
        path: the chosen indices of the steps that the chain went on from.
        chain: the candidates at these indices.
        steps: all decisions so far.
        finish: how the chain ended; None for a live walk.
        error: the reason if finish is error.
    """

    question: Question
    tree: Tree
    path: tuple[int, ...] = ()
    chain: tuple[Candidate, ...] = ()
    steps: tuple[Step, ...] = ()
    finish: ChainFinish | None = None
    error: str | None = None

    def node(self, final: bool) -> Node:
        """The node a live walk stands before; it has been sampled."""
        node = self.tree.find(self.path, final)
        assert node is not None, f"{self.question.id}: no candidates after {self.path}"
        return node


@dataclass(frozen=True)
class Decided:
    """One row of the decisions of a step.

    Attributes:
        verdicts, settled: what `decisions.decide` gives of the whole batch.
        place: the row.
    """

    verdicts: Verdict
    settled: Equilibrium | None
    place: int


def live_rows(walks: Sequence[Walk]) -> list[int]:
    """The rows whose chains have not ended."""
    return [row for row, walk in enumerate(walks) if walk.finish is None]


def score_columns(
    walk: Walk, final: bool, plan: Plan
) -> tuple[Float[np.ndarray, "n m"], Bool[np.ndarray, "n m"]]:
    """All panels' scores of the node a walk stands before, which have been stored."""
    node = walk.node(final)
    tables = [walk.tree.scores(node, panel) for panel in plan.panels]
    return columns([table for table in tables if table is not None], plan.n)


def record_step(walk: Walk, plan: Plan, final: bool, decided: Decided, cost: StepCost) -> Step:
    """The record of a decision."""
    node = walk.node(final)
    scores, mask = score_columns(walk, final, plan)
    n, m = mask.shape
    place, verdicts, settled = decided.place, decided.verdicts, decided.settled
    candidates = node.candidates[:n]
    failures = list(node.failures[:n])
    if m >= MIN_JUDGES:
        for i in range(n):
            if failures[i] is None and mask[i].sum() < MIN_JUDGES:
                failures[i] = f"{mask[i].sum()} of {m} judges gave a score"
    index = int(verdicts.index[place])
    unjudged = index < 0 and any(candidate.text.strip() for candidate in candidates)
    nothing = (None,) * n
    return Step(
        candidates=candidates,
        failures=tuple(failures),
        raw=tuple(
            tuple(float(s) if usable else None for s, usable in zip(*row, strict=True))
            for row in zip(scores, mask, strict=True)
        ),
        consensus=tuple(_numbers(row) for row in settled.consensus[place])
        if settled is not None
        else ((None,) * m,) * n,
        mean=nothing if settled is None else _numbers(settled.mean[place]),
        dispersion=nothing if settled is None else _numbers(settled.dispersion[place]),
        criterion=_numbers(verdicts.statistics.criterion[place]),
        accepted=tuple(np.asarray(verdicts.accepted[place]).tolist()),
        chosen=_likeliest(candidates) if index < 0 else index,
        fallback=bool(verdicts.fallback[place]),
        unjudged=unjudged,
        final=final,
        cost=cost,
    )


def _numbers(values: Float[jax.Array | np.ndarray, " k"]) -> tuple[float | None, ...]:
    return tuple(None if math.isnan(value) else value for value in np.asarray(values).tolist())


def _likeliest(candidates: Sequence[Candidate]) -> int | None:
    """The candidate with the highest log-probability per token, the first of equals.

    None if all are blank. One whose log-probability is NaN comes last.
    """

    def rate(index: int) -> float:
        candidate = candidates[index]
        value = candidate.logprob / max(1, len(candidate.token_ids))
        return -math.inf if math.isnan(value) else value

    places = [i for i, candidate in enumerate(candidates) if candidate.text.strip()]
    return max(places, key=rate, default=None)


def append_step(walk: Walk, step: Step) -> Walk:
    """The walk after a step: over, as `trace.ChainFinish` says, or one node further down."""
    steps = (*walk.steps, step)
    if step.chosen is None:
        # "b\n\n<eos>": the model ended the chain after its last step's delimiter.
        ended = bool(walk.chain) and all(c.finish == "eos" for c in step.candidates)
        return replace(walk, steps=steps, finish="eos" if ended else "empty")
    chosen = step.candidates[step.chosen]
    if chosen.finish == "length":
        # Before any look for an answer: "Answer: 1" may be the head of 12.
        return replace(walk, steps=steps, finish="length")
    if declares(chosen.text, walk.question.choices):
        return replace(walk, steps=steps, finish="answered")
    if chosen.finish == "eos":
        return replace(walk, steps=steps, finish="eos")
    if step.final:
        return replace(walk, steps=steps, finish="cap")
    return replace(walk, steps=steps, path=(*walk.path, step.chosen), chain=(*walk.chain, chosen))


def finished_trace(walk: Walk, reasoner: Reasoner, plan: Plan) -> Trace:
    """The record of a walk that is over."""
    question = walk.question
    assert walk.finish is not None, f"{question.id}: still running after {plan.max_steps} steps"
    answer = None
    if walk.finish in ("answered", "eos"):
        chain = join_chain(walk.steps)
        if question.choices:
            answer = extract_choice(chain, question.choices)
        else:
            answer = final_answer(chain)
    return Trace(
        schema=SCHEMA,
        item=question.id,
        question=question.text,
        choices=question.choices,
        gold=question.answer,
        images=walk.tree.images,
        model_id=reasoner.model_id,
        settings=dict(reasoner.settings),
        panels=plan.panels,
        rule=plan.rule,
        parameters=RuleSettings.of(plan.parameters),
        n=plan.n,
        max_steps=plan.max_steps,
        seed=plan.seed,
        steps=walk.steps,
        finish=walk.finish,
        error=walk.error,
        answer=answer,
    )
