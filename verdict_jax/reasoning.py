"""The reasoning loop: propose, judge, settle, accept, append, for a batch of questions."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from verdict_jax import defaults
from verdict_jax.decisions import decide
from verdict_jax.equilibrium import (
    MIN_JUDGES,
    check_coupling,
    check_stubbornness,
    solution_dtype,
)
from verdict_jax.keys import sampling_keys
from verdict_jax.lanes import Lane, catch_up, open_lane, pack, packed
from verdict_jax.protocols import (
    Candidate,
    Panel,
    Participant,
    Question,
    Reasoner,
    State,
    image_name,
)
from verdict_jax.rules import JUDGE_FREE_RULES, RULES, RuleParameters
from verdict_jax.trace import StepCost, Trace
from verdict_jax.tree import SCHEMA, Node, PanelIdentity, Tree
from verdict_jax.walks import (
    Decided,
    Plan,
    Walk,
    append_step,
    finished_trace,
    live_rows,
    record_step,
    score_columns,
)


class ArgumentError(ValueError):
    """Arguments of `reason` that do not fit together, or stored trees that do not fit them."""


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


def reason(
    questions: Sequence[Question],
    reasoner: Reasoner,
    panels: Sequence[Panel] = (),
    *,
    rule: str = "verdict",
    parameters: RuleParameters | None = None,
    n: int = defaults.CANDIDATES,
    seed: int = 0,
    max_steps: int = defaults.MAX_STEPS,
    trees: Mapping[str, Tree] | None = None,
    buckets: Sequence[int] = (),
) -> Reasoned:
    """Reasons about a batch of questions, every step chosen by a rule from judged candidates.

    Per step and question: n candidates are found in the tree or sampled, scored by every panel
    (identical texts once), settled and put before the rule; its choice is appended. If the rule
    finds nobody to choose because judges failed, the candidate with the highest log-probability
    per token is appended and the step is marked unjudged. A chain ends as `trace.ChainFinish` says.

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
            `rules.JUDGE_FREE_RULES`.
        rule: a key of `rules.RULES`.
        parameters: of the rule; None for the defaults, which are those of three judges.
        n: candidates per step that the rule sees; a stored tree may hold more. The default is
            search-and-learn's and DreamPRM's.
        seed: 0 <= seed < 2**32.
        max_steps: the last of them is proposed as final. The default is that of VisualPRM's
            pipeline.
        trees: stored trees by item id, of the same reasoner, settings, seed and one width.
        buckets: batch sizes below len(questions) to which work may be packed.

    Returns:
        Traces, and trees to go on from.

    Raises:
        ArgumentError: arguments that do not fit together, before any model is started.
        ValueError: a reasoner or panel that breaks its contract (wrong number of candidates,
            wrong shapes, a score outside [0, 1]).
    """
    parameters = RuleParameters() if parameters is None else parameters
    identities = tuple(PanelIdentity(p.model_id, p.judges, dict(p.settings)) for p in panels)
    check_arguments(questions, identities, rule, parameters, n, seed, max_steps, buckets)
    stored = dict(trees or {})
    walks = _plant(questions, reasoner, n, seed, stored)
    width = walks[0].tree.n if walks else n
    plan = Plan(rule, parameters, identities, n, width, seed, max_steps, tuple(sorted(buckets)))
    proposer: Lane | None = None
    lanes: list[Lane | None] = [None] * len(panels)
    sampled = reused = judged = 0

    for step in range(max_steps):
        if not live_rows(walks):
            break
        final = step == max_steps - 1
        began = time.perf_counter()
        proposer, walks, fresh = _sample_missing(reasoner, proposer, walks, plan, step, final)
        sampled += len(fresh)
        reused += len(live_rows(walks)) - len(fresh)

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
            taken = record_step(walks[row], plan, final, decision, cost)
            walks[row] = append_step(walks[row], taken)

    stored.update({walk.question.id: walk.tree for walk in walks})
    traces = tuple(finished_trace(walk, reasoner, plan) for walk in walks)
    return Reasoned(traces, stored, sampled, reused, judged)


def check_arguments(
    questions: Sequence[Question],
    panels: Sequence[PanelIdentity],
    rule: str,
    parameters: RuleParameters,
    n: int,
    seed: int,
    max_steps: int,
    buckets: Sequence[int] = (),
) -> None:
    """What `reason` asks of its arguments, without the models: to be known before they are read.

    Raises:
        ArgumentError: arguments that do not fit together.
    """
    if len({question.id for question in questions}) != len(questions):
        raise ArgumentError("the questions' ids are not distinct")
    if rule not in RULES:
        raise ArgumentError(f"no rule {rule!r}; there are {', '.join(RULES)}")
    if n < 1 or max_steps < 1:
        raise ArgumentError(f"n and max_steps must be at least 1, got {n} and {max_steps}")
    if any(size < 1 for size in buckets):
        raise ArgumentError(f"buckets must be at least 1, got {tuple(buckets)}")
    if not 0 <= seed < 2**32:
        raise ArgumentError(f"seed must lie in [0, 2**32), got {seed}")
    if any(panel in panels[:index] for index, panel in enumerate(panels)):
        raise ArgumentError("two panels have the same model, judges and settings")
    judges = sum(len(panel.judges) for panel in panels)
    if judges < MIN_JUDGES and rule not in JUDGE_FREE_RULES:
        raise ArgumentError(f"rule {rule!r} needs at least {MIN_JUDGES} judges, got {judges}")
    _check_parameters(parameters, judges)


def _check_parameters(parameters: RuleParameters, judges: int) -> None:
    """The rule itself runs jitted, where a wrong value makes every figure NaN and is not named."""
    for name in ("tau", "epsilon", "vote_score", "quorum", "max_std"):
        value = np.asarray(vars(parameters)[name])
        if value.shape != () or not np.isfinite(value):
            raise ArgumentError(f"{name} must be one finite number, got {value}")
    if judges < MIN_JUDGES:
        return
    stubbornness, coupling = parameters.stubbornness, parameters.coupling
    if np.shape(stubbornness) != (judges,):
        raise ArgumentError(
            f"stubbornness has shape {np.shape(stubbornness)}; the panels have {judges} judges"
        )
    if coupling is not None and np.shape(coupling) != (judges, judges):
        raise ArgumentError(
            f"coupling has shape {np.shape(coupling)}; the panels have {judges} judges"
        )
    try:
        # Stored scores are float64; jax may hold them in float32.
        check_stubbornness(stubbornness, solution_dtype(np.empty(judges)))
        check_coupling(coupling)
    except ValueError as error:
        raise ArgumentError(str(error)) from error


def _plant(
    questions: Sequence[Question],
    reasoner: Reasoner,
    n: int,
    seed: int,
    trees: Mapping[str, Tree],
) -> list[Walk]:
    """Every question at the root of its tree, stored or new."""
    settings = dict(reasoner.settings)
    widths = {trees[question.id].n for question in questions if question.id in trees} or {n}
    width = max(widths)
    if len(widths) > 1 or width < n:
        raise ArgumentError(f"stored trees hold {sorted(widths)} candidates a node, asked for {n}")
    walks = []
    for question in questions:
        planted = Tree(
            schema=SCHEMA,
            item=question.id,
            question=question.text,
            choices=question.choices,
            images=tuple(image_name(image) for image in question.images),
            model_id=reasoner.model_id,
            settings=settings,
            seed=seed,
            n=width,
        )
        tree = trees.get(question.id, planted)
        if replace(tree, panels=(), nodes=()) != planted:
            raise ArgumentError(
                f"{question.id}: its stored tree belongs to another question, choices, picture, "
                "model, sampling setting or seed"
            )
        walks.append(Walk(question, tree))
    return walks


def _advance(
    participant: Participant[State],
    lane: Lane[State] | None,
    walks: Sequence[Walk],
    plan: Plan,
    step: int,
) -> tuple[Lane[State] | None, list[Walk]]:
    """A participant's lane with the first `step` steps committed, started if it was not.

    Walks that it cannot start finish with its reason.
    """
    walks = list(walks)
    live = live_rows(walks)
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
    walks: list[Walk],
    plan: Plan,
    step: int,
    final: bool,
) -> tuple[Lane | None, list[Walk], set[int]]:
    """Every live walk's node is in its tree afterwards; also gives the rows sampled now."""
    missing = [
        row for row in live_rows(walks) if walks[row].tree.find(walks[row].path, final) is None
    ]
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
    walks: list[Walk],
    plan: Plan,
    step: int,
    final: bool,
) -> tuple[Lane | None, list[Walk], list[int]]:
    """Every live walk's node holds this panel's scores afterwards; also the rows scored now."""
    nodes = {row: walks[row].node(final) for row in live_rows(walks)}
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


def _settle(walks: Sequence[Walk], plan: Plan, step: int, final: bool) -> dict[int, Decided]:
    """What the judges and the rule say, for every live row."""
    live = live_rows(walks)
    if not live:
        return {}
    tables = [score_columns(walks[row], final, plan) for row in live]
    nodes = [walks[row].node(final) for row in live]
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
    return {row: Decided(verdicts, settled, place) for place, row in enumerate(live)}
