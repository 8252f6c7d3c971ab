"""The reasoning loop: propose, judge, settle, accept, append, for a batch of questions."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import jax
import numpy as np
from jaxtyping import Bool, Float

from verdict_jax.answers import extract_choice, final_answer
from verdict_jax.decisions import decide
from verdict_jax.equilibrium import MIN_JUDGES, Equilibrium
from verdict_jax.keys import sampling_keys
from verdict_jax.lanes import Lane, Participant, catch_up, open_lane, pack, packed
from verdict_jax.protocols import Candidate, Panel, Question, Reasoner
from verdict_jax.rules import RULES, RuleParameters, Verdict
from verdict_jax.trace import (
    SCHEMA,
    RuleSettings,
    State,
    Step,
    StepCost,
    Trace,
    image_name,
    join_chain,
)
from verdict_jax.tree import Node, PanelIdentity, Tree, columns

JUDGE_FREE_RULES = frozenset({"random", "first"})
"""Rules that read no score, so that a run needs no panel. Base is `first` with n = 1, greedy."""

S = TypeVar("S")


@dataclass(frozen=True)
class Reasoned:
    """What a run gives.

    Attributes:
        traces: one per question, in the order of the questions.
        trees: the trees by item id, with what this run added; pass them on to the next run.
        sampled: nodes whose candidates were sampled.
        reused: visited nodes whose candidates the trees held.
        judged: pairs of a node and a panel that were scored.
    """

    traces: tuple[Trace, ...]
    trees: Mapping[str, Tree]
    sampled: int
    reused: int
    judged: int


@dataclass(frozen=True)
class _Plan:
    """What stays the same over a run."""

    rule: str
    parameters: RuleParameters
    panels: tuple[PanelIdentity, ...]
    n: int
    width: int
    seed: int
    max_steps: int
    buckets: tuple[int, ...]


@dataclass(frozen=True)
class _Walk:
    """One question on its way through its tree.

    Attributes:
        path: the chosen indices of the steps that the chain went on from.
        chain: the candidates at these indices.
    """

    question: Question
    tree: Tree
    path: tuple[int, ...] = ()
    chain: tuple[Candidate, ...] = ()
    steps: tuple[Step, ...] = ()
    finish: State | None = None
    error: str | None = None


def reason(
    questions: Sequence[Question],
    reasoner: Reasoner,
    panels: Sequence[Panel] = (),
    *,
    rule: str = "verdict",
    parameters: RuleParameters | None = None,
    n: int = 4,
    seed: int = 0,
    max_steps: int = 12,
    trees: Mapping[str, Tree] | None = None,
    buckets: Sequence[int] = (),
) -> Reasoned:
    """Reasons about a batch of questions, every step chosen by a rule from judged candidates.

    Per step and question: n candidates are found in the tree or sampled, scored by every panel
    (identical texts once), settled and put before the rule; its choice is appended. If the rule
    finds nobody to choose because judges failed, the candidate with the highest log-probability
    per token is appended and the step is marked unjudged. A chain ends as `trace.State` says.

    Reproducibility. A candidate's PRNG key is folded from (seed, crc32 of the item's id, step,
    candidate), the rule's from another stream of the same, never from a place in the batch. With
    `buckets` empty every call to the reasoner and to a panel has the shape of the whole batch:
    finished rows stay in it, rows that cannot be read are filled with a repeat of another. So at
    one batch size traces are equal bit for bit, whatever the neighbours' fate, and whether a node
    is sampled in passing or added to a stored tree later, provided that the reasoner's rows are
    independent at a fixed shape. With `buckets` the rows that still need work are packed into the
    smallest of these sizes that holds them, which is cheaper and may move the last bits of sums.

    Models are started only when the tree lacks something: stored trees replay without them.

    Args:
        questions: distinct ids.
        reasoner: proposes candidates.
        panels: judges; their scores are concatenated in this order. May be empty for the rules in
            `JUDGE_FREE_RULES`: random, and Base, which is `first` with n = 1 and a greedy reasoner.
        rule: a key of `rules.RULES`.
        parameters: of the rule; None for the defaults, which are those of three judges.
        n: candidates per step that the rule sees; a stored tree may hold more.
        seed: 0 <= seed < 2**32.
        max_steps: the last of them is proposed as final.
        trees: stored trees by item id, of the same reasoner, settings, seed and one width.
        buckets: batch sizes below len(questions) to which work may be packed.

    Returns:
        Traces, and trees to go on from.

    Raises:
        ValueError: arguments that do not fit together; a reasoner or panel that breaks its
            contract (wrong number of candidates, wrong shapes, a score outside [0, 1]).
    """
    parameters = RuleParameters() if parameters is None else parameters
    identities = tuple(PanelIdentity(p.model_id, p.judges, dict(p.settings)) for p in panels)
    _check_arguments(questions, identities, rule, parameters, n, seed, max_steps, buckets)
    stored = dict(trees or {})
    walks = _plant(questions, reasoner, n, seed, stored)
    width = walks[0].tree.n if walks else n
    plan = _Plan(rule, parameters, identities, n, width, seed, max_steps, tuple(sorted(buckets)))
    proposer: Lane | None = None
    lanes: list[Lane | None] = [None] * len(panels)
    sampled = reused = judged = 0

    for step in range(max_steps):
        if not _live(walks):
            break
        final = step == max_steps - 1
        began = time.perf_counter()
        proposer, walks, fresh = _sample_missing(reasoner, proposer, walks, plan, step, final)
        sampled += len(fresh)
        reused += len(_live(walks)) - len(fresh)

        proposed_at = time.perf_counter()
        scored = [0] * len(walks)
        for index, panel in enumerate(panels):
            lanes[index], walks, rows = _score_missing(
                panel, identities[index], lanes[index], walks, plan, step, final
            )
            for row in rows:
                scored[row] += 1
        judged += sum(scored)

        judged_at = time.perf_counter()
        decided = _settle(walks, plan, step, final)
        settled_at = time.perf_counter()
        for row, decision in decided.items():
            cost = StepCost(
                propose_seconds=proposed_at - began,
                judge_seconds=judged_at - proposed_at,
                settle_seconds=settled_at - judged_at,
                sampled=row in fresh,
                judged=scored[row],
            )
            taken = _step(walks[row], plan, final, decision, cost)
            walks[row] = _append(walks[row], taken)

    stored.update({walk.question.id: walk.tree for walk in walks})
    traces = tuple(_trace(walk, reasoner, plan) for walk in walks)
    return Reasoned(traces, stored, sampled, reused, judged)


def _check_arguments(
    questions: Sequence[Question],
    panels: Sequence[PanelIdentity],
    rule: str,
    parameters: RuleParameters,
    n: int,
    seed: int,
    max_steps: int,
    buckets: Sequence[int],
) -> None:
    if len({question.id for question in questions}) != len(questions):
        raise ValueError("the questions' ids are not distinct")
    if rule not in RULES:
        raise ValueError(f"no rule {rule!r}; there are {', '.join(RULES)}")
    if n < 1 or max_steps < 1:
        raise ValueError(f"n and max_steps must be at least 1, got {n} and {max_steps}")
    if any(size < 1 for size in buckets):
        raise ValueError(f"buckets must be at least 1, got {tuple(buckets)}")
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed must lie in [0, 2**32), got {seed}")
    if any(panel in panels[:index] for index, panel in enumerate(panels)):
        raise ValueError("two panels have the same model, judges and settings")
    judges = sum(len(panel.judges) for panel in panels)
    if judges < MIN_JUDGES and rule not in JUDGE_FREE_RULES:
        raise ValueError(f"rule {rule!r} needs at least {MIN_JUDGES} judges, got {judges}")
    if judges >= MIN_JUDGES and np.shape(parameters.stubbornness) != (judges,):
        raise ValueError(
            f"stubbornness has shape {np.shape(parameters.stubbornness)}; the panels have "
            f"{judges} judges"
        )


def _plant(
    questions: Sequence[Question],
    reasoner: Reasoner,
    n: int,
    seed: int,
    trees: Mapping[str, Tree],
) -> list[_Walk]:
    """Every question at the root of its tree, stored or new."""
    settings = dict(reasoner.settings)
    widths = {trees[question.id].n for question in questions if question.id in trees} or {n}
    width = max(widths)
    if len(widths) > 1 or width < n:
        raise ValueError(f"stored trees hold {sorted(widths)} candidates a node, asked for {n}")
    walks = []
    for question in questions:
        planted = Tree(question.id, question.text, reasoner.model_id, settings, seed, width)
        tree = trees.get(question.id, planted)
        if replace(tree, panels=(), nodes=()) != planted:
            raise ValueError(
                f"{question.id}: its stored tree belongs to another question, model, sampling "
                "setting or seed"
            )
        walks.append(_Walk(question, tree))
    return walks


def _live(walks: Sequence[_Walk]) -> list[int]:
    return [row for row, walk in enumerate(walks) if walk.finish is None]


def _node(walk: _Walk, final: bool) -> Node:
    """The node a live walk stands before; it has been sampled."""
    node = walk.tree.find(walk.path, final)
    assert node is not None, f"{walk.question.id}: no candidates after {walk.path}"
    return node


def _advance(
    participant: Participant[S],
    lane: Lane[S] | None,
    walks: Sequence[_Walk],
    plan: _Plan,
    step: int,
) -> tuple[Lane[S] | None, list[_Walk]]:
    """A participant's lane with the first `step` steps committed, started if it was not.

    Walks that it cannot start finish with its reason.
    """
    walks = list(walks)
    live = _live(walks)
    if lane is None:
        rows = packed(live, len(walks), plan.buckets) or range(len(walks))
        failed = {row: walk.error for row, walk in enumerate(walks) if walk.error is not None}
        lane, broken = open_lane(participant, [walk.question for walk in walks], rows, failed)
        for row in live:
            if row in broken:
                walks[row] = replace(walks[row], finish="error", error=broken[row])
    else:
        lane = pack(participant, lane, live, plan.buckets)
    if lane is not None:
        lane = catch_up(participant, lane, [walk.chain for walk in walks], step)
    return lane, walks


def _sample_missing(
    reasoner: Reasoner,
    lane: Lane | None,
    walks: list[_Walk],
    plan: _Plan,
    step: int,
    final: bool,
) -> tuple[Lane | None, list[_Walk], set[int]]:
    """Every live walk's node is in its tree afterwards; also gives the rows sampled now."""
    missing = [row for row in _live(walks) if walks[row].tree.find(walks[row].path, final) is None]
    if missing:
        lane, walks = _advance(reasoner, lane, walks, plan, step)
        missing = [row for row in missing if walks[row].finish is None]
    if lane is None or not missing:
        return lane, walks, set()
    view = pack(reasoner, lane, missing, plan.buckets)
    keys = sampling_keys(plan.seed, [walks[row].question.id for row in view.rows], step, plan.width)
    proposals = reasoner.propose(view.state, keys, final)
    if len(proposals) != len(view.rows):
        raise ValueError(
            f"{reasoner.model_id}: proposed for {len(proposals)} of {len(view.rows)} rows"
        )
    for row in missing:
        walk = walks[row]
        node = Node(walk.path, final, tuple(proposals[view.rows.index(row)]))
        walks[row] = replace(walk, tree=walk.tree.with_node(node))
    return lane, walks, set(missing)


def _score_missing(
    panel: Panel,
    identity: PanelIdentity,
    lane: Lane | None,
    walks: list[_Walk],
    plan: _Plan,
    step: int,
    final: bool,
) -> tuple[Lane | None, list[_Walk], list[int]]:
    """Every live walk's node holds this panel's scores afterwards; also the rows scored now."""
    nodes = {row: _node(walks[row], final) for row in _live(walks)}
    missing = [row for row, node in nodes.items() if walks[row].tree.scores(node, identity) is None]
    heard = [row for row in missing if any(first is not None for first in nodes[row].firsts)]
    if heard:
        lane, walks = _advance(panel, lane, walks, plan, step)
        missing = [row for row in missing if walks[row].finish is None]
        heard = [row for row in heard if walks[row].finish is None]
    shape = (plan.width, len(identity.judges))
    results = {row: (np.zeros(shape), np.zeros(shape, bool)) for row in missing}
    if lane is not None and heard:
        view = pack(panel, lane, heard, plan.buckets)
        nothing = (Candidate(""),) * plan.width
        shown = [nothing] * len(view.rows)
        for row in heard:
            shown[view.rows.index(row)] = tuple(
                candidate if first == place else Candidate("")
                for place, (candidate, first) in enumerate(
                    zip(nodes[row].candidates, nodes[row].firsts, strict=True)
                )
            )
        scores, mask = panel.score(view.state, shown)
        expected = (len(view.rows), *shape)
        if scores.shape != expected or mask.shape != expected:
            raise ValueError(
                f"{identity.model_id}: expected scores and mask of shape {expected}, "
                f"got {scores.shape} and {mask.shape}"
            )
        results |= {row: (scores[i], mask[i]) for row in heard for i in [view.rows.index(row)]}
    for row, (values, usable) in results.items():
        tree = walks[row].tree.with_scores(nodes[row], identity, values, usable)
        walks[row] = replace(walks[row], tree=tree)
    return lane, walks, heard


@dataclass(frozen=True)
class _Decided:
    """One row of the decisions of a step."""

    verdicts: Verdict
    settled: Equilibrium | None
    place: int


def _settle(walks: Sequence[_Walk], plan: _Plan, step: int, final: bool) -> dict[int, _Decided]:
    """What the judges and the rule say, for every live row."""
    live = _live(walks)
    if not live:
        return {}
    tables = [_columns(walks[row], final, plan) for row in live]
    nodes = [_node(walks[row], final) for row in live]
    verdicts, settled = decide(
        plan.rule,
        np.stack([scores for scores, _ in tables]),
        np.stack([mask for _, mask in tables]),
        np.array([[failure is None for failure in node.failures[: plan.n]] for node in nodes]),
        plan.parameters,
        plan.seed,
        [walks[row].question.id for row in live],
        step,
    )
    return {row: _Decided(verdicts, settled, place) for place, row in enumerate(live)}


def _columns(
    walk: _Walk, final: bool, plan: _Plan
) -> tuple[Float[np.ndarray, "n m"], Bool[np.ndarray, "n m"]]:
    """All panels' scores of the node a walk stands before, which have been stored."""
    node = _node(walk, final)
    tables = [walk.tree.scores(node, panel) for panel in plan.panels]
    return columns([table for table in tables if table is not None], plan.n)


def _step(walk: _Walk, plan: _Plan, final: bool, decided: _Decided, cost: StepCost) -> Step:
    """The record of a decision."""
    node = _node(walk, final)
    scores, mask = _columns(walk, final, plan)
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


def _append(walk: _Walk, step: Step) -> _Walk:
    """The walk after a step: over, or one node further down."""
    steps = (*walk.steps, step)
    if step.chosen is None:
        # "b\n\n<eos>": the model ended the chain after its last step's delimiter.
        ended = bool(walk.chain) and all(c.finish == "eos" for c in step.candidates)
        return replace(walk, steps=steps, finish="eos" if ended else "empty")
    chosen = step.candidates[step.chosen]
    if chosen.finish == "length":
        # Before any look for an answer: "Answer: 1" may be the head of 12.
        return replace(walk, steps=steps, finish="length")
    if final_answer(chosen.text) is not None:
        return replace(walk, steps=steps, finish="answered")
    if chosen.finish == "eos":
        return replace(walk, steps=steps, finish="eos")
    if step.final:
        return replace(walk, steps=steps, finish="cap")
    return replace(walk, steps=steps, path=(*walk.path, step.chosen), chain=(*walk.chain, chosen))


def _trace(walk: _Walk, reasoner: Reasoner, plan: _Plan) -> Trace:
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
        images=tuple(image_name(image) for image in question.images),
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
