"""Tables of a run: accuracy with paired intervals, and how the judges fared on the steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float
from scipy.stats import bootstrap, mannwhitneyu

from verdict_jax.benchmarks.benchmark import Benchmark
from verdict_jax.equilibrium import solve
from verdict_jax.evaluation import BASE, Result, Rule
from verdict_jax.rules import RuleParameters, passes
from verdict_jax.tree import Node, Tree

RESAMPLES = 9999
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """An estimate in points (hundredths), with its 95% bootstrap interval."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True)
class Row:
    """One rule's line.

    Attributes:
        rule: its name.
        accuracy: mean over seeds, in points.
        std: sample standard deviation over seeds, in points; None with one seed.
        over: by the rule compared with, the paired difference: items are resampled, seeds averaged
            within an item. None where both are the same rule.
        fallback: share of steps at which nothing was accepted.
        unreadable: share of chains without an answer that can be read.
        steps: mean length of a chain.
    """

    rule: Rule
    accuracy: float
    std: float | None
    over: Mapping[Rule, Interval | None]
    fallback: float
    unreadable: float
    steps: float


def _by_item(
    results: Sequence[Result], rule: Rule, items: Sequence[str]
) -> Float[np.ndarray, "seeds items"]:
    """1 for right, 0 for wrong; one row per seed."""
    table: dict[int, dict[str, bool]] = {}
    for result in results:
        if result.rule == rule:
            table.setdefault(result.seed, {})[result.item] = result.correct
    return np.array([[float(of[item]) for item in items] for of in table.values()])


def difference(values: Float[np.ndarray, "items"], seed: int = 0) -> Interval:
    """The mean of paired differences in points, with its percentile bootstrap interval.

    Args:
        values: one difference per item.
        seed: of the resampling.
    """
    points = 100 * values
    if np.ptp(points) == 0:
        return Interval(float(points[0]), float(points[0]), float(points[0]))
    interval = bootstrap(
        (points,),
        np.mean,
        n_resamples=RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        batch=100,
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return Interval(float(points.mean()), float(interval.low), float(interval.high))


def rows(
    results: Sequence[Result], rules: Sequence[Rule], against: Sequence[Rule] = (BASE, "mean")
) -> tuple[Row, ...]:
    """A line for every rule.

    Args:
        results: of a whole run.
        rules: in the order of the table.
        against: the rules to compare each one with, where they were run.
    """
    items = sorted({result.item for result in results})
    right = {rule: _by_item(results, rule, items) for rule in rules}
    against = [rule for rule in against if rule in right]
    table = []
    for rule in rules:
        own = [result for result in results if result.rule == rule]
        per_seed = 100 * right[rule].mean(axis=1)
        mean = right[rule].mean(axis=0)
        steps = sum(result.steps for result in own)
        table.append(
            Row(
                rule,
                float(per_seed.mean()),
                float(per_seed.std(ddof=1)) if len(per_seed) > 1 else None,
                {
                    other: None if other == rule else difference(mean - right[other].mean(axis=0))
                    for other in against
                },
                sum(result.fallbacks for result in own) / max(steps, 1),
                sum(result.answer is None for result in own) / len(own),
                steps / len(own),
            )
        )
    return tuple(table)


def auc(sound: Float[np.ndarray, "sound"], broken: Float[np.ndarray, "broken"]) -> float:
    """Probability that a sound step scores above a broken one, ties counting half."""
    if not len(sound) or not len(broken):
        return float("nan")
    return float(mannwhitneyu(sound, broken).statistic / (len(sound) * len(broken)))


def _by_judge(tree: Tree, node: Node) -> dict[str, tuple[float | None, ...]]:
    """Each judge's raw scores of a node's candidates."""
    return {
        judge: tuple(row[column] for row in entry.scores)
        for entry in node.scores
        for column, judge in enumerate(tree.panels[entry.panel].judges)
    }


@dataclass(frozen=True)
class StepFigures:
    """What the stored candidates are worth, and what their judges saw of it.

    Attributes:
        candidates: different candidates of all nodes.
        sound: share of them in which nothing is wrong.
        alike: share of nodes whose candidates are all the same text.
        mixed: share of nodes that hold both a sound candidate and a broken one: where a choice
            decides.
        own: by judge, the AUC between its own kind of label being true and false.
        any: by judge, the AUC between sound candidates and all others; "settled mean" is that of
            the equilibrium.
        accepted_wrong: share of the candidates that VERDICT accepts in which something is wrong.
    """

    candidates: int
    sound: float
    alike: float
    mixed: float
    own: Mapping[str, float]
    any: Mapping[str, float]
    accepted_wrong: float


def step_figures(
    benchmark: Benchmark,
    trees: Sequence[Tree],
    judges: Sequence[str],
    parameters: RuleParameters,
) -> StepFigures:
    """How judges score the model's own candidates, whose labels the checker gives.

    Nodes that one of the judges never saw are left out.

    Args:
        benchmark: with a checker.
        trees: of a run.
        judges: names; visual, logical and contextual have labels of their own.
        parameters: stubbornness and thresholds of VERDICT.

    Raises:
        ValueError: the benchmark has no checker.
    """
    check = benchmark.check
    if check is None:
        raise ValueError(f"{benchmark.name}: no program can check its steps")
    questions = {question.id: question for question in benchmark.questions}
    scores: list[list[float]] = []
    labels: list[tuple[bool, bool, bool]] = []
    alike, mixed, nodes = 0, 0, 0
    for tree in trees:
        texts = {
            node.path: [candidate.text for candidate in node.candidates] for node in tree.nodes
        }
        for node in tree.nodes:
            said = _by_judge(tree, node)
            if not set(judges) <= set(said):
                continue
            accepted = [texts[node.path[:i]][place] for i, place in enumerate(node.path)]
            soundness = set()
            for place in sorted({first for first in node.firsts if first is not None}):
                row = [said[judge][place] for judge in judges]
                known = [value for value in row if value is not None]
                if len(known) < len(row):
                    continue
                verdict = check(questions[tree.item], accepted, texts[node.path][place])
                labels.append((verdict.grounded, verdict.logical, verdict.on_topic))
                scores.append(known)
                soundness.add(verdict.broken == "none")
            nodes += 1
            mixed += len(soundness) == 2
            alike += len(set(node.firsts) - {None}) == 1
    values, truth = np.array(scores), np.array(labels, bool)
    sound = np.all(truth, axis=1)
    settled = solve(values, parameters.stubbornness)
    mean = np.asarray(settled.mean)
    accepted = np.asarray(
        passes(settled.mean, settled.dispersion, jnp.ones(len(values), bool), parameters)
    )
    columns = {"visual": 0, "logical": 1, "contextual": 2}
    return StepFigures(
        candidates=len(values),
        sound=float(sound.mean()),
        alike=alike / nodes,
        mixed=mixed / nodes,
        own={
            judge: auc(values[truth[:, columns[judge]], i], values[~truth[:, columns[judge]], i])
            for i, judge in enumerate(judges)
            if judge in columns
        },
        any={judge: auc(values[sound, i], values[~sound, i]) for i, judge in enumerate(judges)}
        | {"settled mean": auc(mean[sound], mean[~sound])},
        accepted_wrong=_share(np.logical_not(sound), accepted),
    )


def _share(what: Bool[np.ndarray, "candidates"], among: Bool[np.ndarray, "candidates"]) -> float:
    """Of those in `among`, the share in `what`; NaN of none."""
    return float(what[among].mean()) if among.any() else float("nan")


def _interval(interval: Interval | None) -> str:
    if interval is None:
        return ""
    return f"{interval.estimate:+.2f} [{interval.low:+.2f}, {interval.high:+.2f}]"


def rule_table(table: Sequence[Row]) -> str:
    """The rows in Markdown; accuracies and differences in points."""
    against = list(table[0].over) if table else []
    head = ["rule", "accuracy", *(f"over {rule} [95%]" for rule in against)]
    head += ["fallback", "no answer", "steps"]
    lines = [head, ["---"] * len(head)]
    for row in table:
        spread = "" if row.std is None else f" +- {row.std:.2f}"
        lines.append(
            [
                row.rule,
                f"{row.accuracy:.2f}{spread}",
                *(_interval(row.over[rule]) for rule in against),
                f"{row.fallback:.3f}",
                f"{row.unreadable:.3f}",
                f"{row.steps:.1f}",
            ]
        )
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def step_table(figures: StepFigures) -> str:
    """The figures of the candidates in Markdown."""
    lines = [["judge", "AUC, own kind of fault", "AUC, any fault"], ["---"] * 3]
    for judge, value in figures.any.items():
        own = figures.own.get(judge)
        lines.append([judge, "" if own is None else f"{own:.3f}", f"{value:.3f}"])
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return (
        f"{figures.candidates:,} different candidates, {figures.sound:.3f} of them sound; of the "
        f"nodes {figures.alike:.3f} hold one text only, {figures.mixed:.3f} hold sound and broken "
        f"ones; of the accepted candidates {figures.accepted_wrong:.3f} are broken.\n\n{table}"
    )
