"""Runs rules over a benchmark, resumable: one stored tree of candidates that every rule walks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float

from verdict_jax.answers import is_correct
from verdict_jax.benchmarks.benchmark import Benchmark
from verdict_jax.json_records import dumps, loads
from verdict_jax.lifting import lift
from verdict_jax.protocols import Candidate, Panel, Question, Reasoner
from verdict_jax.reasoning import reason
from verdict_jax.rules import RULES, RuleParameters
from verdict_jax.run_folder import RunFolder, Value, open_run
from verdict_jax.trace import ChainFinish, RuleSettings, Trace
from verdict_jax.tree import Tree

BASE, ORACLE = "base", "oracle"
"""One greedy chain without judges; the rule that knows which candidates are right."""

RESULTS, TREES = "results.jsonl", "trees.jsonl"

SCHEMA = "verdict-result/1"

Rule = str
"""BASE, ORACLE, or a key of `rules.RULES`."""


@dataclass(frozen=True)
class Result:
    """How one rule answered one question under one seed.

    Attributes:
        schema: the version of this layout.
        seed, item, rule: which; together they are unique.
        category: of the item.
        answer: the letter or text; None if the chain is unfinished or cannot be read.
        correct: whether it is the gold answer; what cannot be read is wrong.
        finish: how the chain ended.
        error: why the question could not be read, if so.
        steps: of the chain.
        fallbacks: steps at which the rule accepted no candidate.
        unjudged: steps at which no candidate could be judged.
    """

    schema: str
    seed: int
    item: str
    rule: Rule
    category: str
    answer: str | None
    correct: bool
    finish: ChainFinish
    error: str | None
    steps: int
    fallbacks: int
    unjudged: int


@dataclass(frozen=True)
class Participants:
    """Who reasons and who judges.

    Attributes:
        base: greedy; proposes the one chain of BASE.
        reasoner: samples the candidates of all other rules.
        panels: the judges of those rules that read scores.
    """

    base: Reasoner
    reasoner: Reasoner
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Plan:
    """What is run.

    Attributes:
        rules: in the order of the tables.
        seeds: of the sampling; BASE samples nothing and runs under the first of them only.
        parameters: of the rules.
        n: candidates per step.
        max_steps: the cap on steps.
        batch: questions that are reasoned about together.
    """

    rules: tuple[Rule, ...]
    seeds: tuple[int, ...]
    parameters: RuleParameters
    n: int = 4
    max_steps: int = 12
    batch: int = 64

    def __post_init__(self) -> None:
        unknown = [rule for rule in self.rules if rule not in (BASE, ORACLE, *RULES)]
        if unknown or not self.rules:
            raise ValueError(
                f"no rule {', '.join(unknown) or 'given'}; there are "
                f"{', '.join((BASE, ORACLE, *RULES))}"
            )
        for name, values in (("rules", self.rules), ("seeds", self.seeds)):
            if len(set(values)) != len(values) or not values:
                raise ValueError(f"{name} must be distinct and not empty, got {values}")
        if self.batch < 1:
            raise ValueError(f"batch must be at least 1, got {self.batch}")


@dataclass(frozen=True)
class Done:
    """How far a run is.

    Attributes:
        questions: pairs of a seed and a question that are done, those of earlier runs included.
        total: of them.
        fresh: those of this run.
        seconds: of this run.
        correct: mean over the results so far, by rule.
    """

    questions: int
    total: int
    fresh: int
    seconds: float
    correct: Mapping[Rule, float]


def settings_of(benchmark: Benchmark, who: Participants, plan: Plan) -> dict[str, Value]:
    """All that the results are a function of, for `run_folder.open_run`."""
    settings: dict[str, Value] = {
        "benchmark": benchmark.name,
        "questions": len(benchmark.questions),
        "rules": plan.rules,
        "seeds": plan.seeds,
        "n": plan.n,
        "max_steps": plan.max_steps,
        "batch": plan.batch,
        "model": who.reasoner.model_id,
    }
    rule = RuleSettings.of(plan.parameters)
    settings |= {
        "stubbornness": rule.stubbornness,
        "tau": rule.tau,
        "epsilon": rule.epsilon,
        "vote_score": rule.vote_score,
        "quorum": rule.quorum,
        "max_std": rule.max_std,
    }
    settings |= {f"reasoner.{name}": value for name, value in who.reasoner.settings.items()}
    for index, panel in enumerate(who.panels):
        settings[f"panel{index}.model"] = panel.model_id
        settings[f"panel{index}.judges"] = panel.judges
        settings |= {f"panel{index}.{name}": v for name, v in panel.settings.items()}
    return settings


def oracle_panel(benchmark: Benchmark) -> Panel:
    """Two judges that know: 1 for a step in which nothing is wrong, else 0.

    Two, because the game needs a peer. `max` of their scores is Oracle@n, the ceiling of what any
    judges could reach with these candidates.

    Raises:
        ValueError: no program can check this benchmark's steps.
    """
    check = benchmark.check
    if check is None:
        raise ValueError(f"{benchmark.name}: no program can check its steps, so it has no oracle")

    def know(
        questions: Sequence[Question],
        accepted: Sequence[Sequence[Candidate]],
        candidates: Sequence[Sequence[Candidate]],
    ) -> tuple[Float[np.ndarray, "rows 1 2"], Bool[np.ndarray, "rows 1 2"]]:
        sound = np.array(
            [
                check(question, [step.text for step in steps], candidate.text).broken == "none"
                for question, steps, (candidate,) in zip(
                    questions, accepted, candidates, strict=True
                )
            ],
            float,
        )
        scores = np.repeat(sound[:, None, None], 2, axis=2)
        return scores, np.ones_like(scores, bool)

    return lift(know, ("gold", "gold again"), name=f"oracle of {benchmark.name}")


def evaluate(
    benchmark: Benchmark,
    who: Participants,
    plan: Plan,
    folder: Path,
    tell: Callable[[Done], None] = lambda _: None,
) -> tuple[Result, ...]:
    """Answers every question under every seed by every rule; goes on where a killed run stopped.

    Batches are formed from the order of the questions, so a resumed run rebuilds the same ones; a
    batch counts as done once the results of all its questions are on the disk. The trees of a
    batch are written before its results.

    Args:
        benchmark: the questions.
        who: models.
        plan: rules, seeds, sizes.
        folder: journals of results and trees.
        tell: called after every batch.

    Returns:
        All results, in the order of seeds, questions, rules.

    Raises:
        RunFolderError: the folder belongs to another run.
        ValueError: ORACLE for a benchmark without a checker; parameters that do not fit.
    """
    oracle = oracle_panel(benchmark) if ORACLE in plan.rules else None
    with open_run(folder, settings_of(benchmark, who, plan)) as run:
        results = _read_results(run)
        trees = _read_trees(run)
        total = len(plan.seeds) * len(benchmark.questions)
        started, fresh, done = time.perf_counter(), 0, 0
        for seed, batch in _batches(benchmark.questions, plan):
            wanted = [
                (seed, question.id, rule)
                for question in batch
                for rule in plan.rules
                if rule != BASE or seed == plan.seeds[0]
            ]
            done += len(batch)
            if all(key in results for key in wanted):
                continue
            stored = {q.id: trees[seed, q.id] for q in batch if (seed, q.id) in trees}
            found, grown = _answer(benchmark, who, plan, oracle, seed, batch, stored)
            run.append(TREES, [tree.to_json() for tree in grown.values()])
            run.append(RESULTS, [dumps(result) for result in found])
            results |= {(r.seed, r.item, r.rule): r for r in found}
            for question in batch:
                trees.pop((seed, question.id), None)
            fresh += len(batch)
            tell(Done(done, total, fresh, time.perf_counter() - started, _shares(results)))
    order = [
        (seed, question.id, rule)
        for seed in plan.seeds
        for question in benchmark.questions
        for rule in plan.rules
    ]
    return tuple(results[key] for key in order if key in results)


def _batches(questions: Sequence[Question], plan: Plan) -> Iterator[tuple[int, Sequence[Question]]]:
    for seed in plan.seeds:
        for start in range(0, len(questions), plan.batch):
            yield seed, questions[start : start + plan.batch]


def _answer(
    benchmark: Benchmark,
    who: Participants,
    plan: Plan,
    oracle: Panel | None,
    seed: int,
    batch: Sequence[Question],
    trees: Mapping[str, Tree],
) -> tuple[list[Result], Mapping[str, Tree]]:
    """One batch under every rule, with its trees grown by all of them."""
    found: list[Result] = []
    for rule in plan.rules:
        if rule == BASE:
            if seed == plan.seeds[0]:
                greedy = reason(
                    batch, who.base, rule="first", n=1, seed=seed, max_steps=plan.max_steps
                )
                found += _results(benchmark, batch, greedy.traces, rule)
            continue
        panels, parameters, name = who.panels, plan.parameters, rule
        if rule == ORACLE:
            assert oracle is not None
            panels, name = (oracle,), "max"
            parameters = RuleParameters(np.ones(2))
        walked = reason(
            batch,
            who.reasoner,
            panels,
            rule=name,
            parameters=parameters,
            n=plan.n,
            seed=seed,
            max_steps=plan.max_steps,
            trees=trees,
        )
        trees = walked.trees
        found += _results(benchmark, batch, walked.traces, rule)
    return found, trees


def _results(
    benchmark: Benchmark, batch: Sequence[Question], traces: Sequence[Trace], rule: Rule
) -> Iterator[Result]:
    for question, trace in zip(batch, traces, strict=True):
        gold = question.answer
        if gold is None:
            raise ValueError(f"{question.id}: no gold answer to compare with")
        yield Result(
            schema=SCHEMA,
            seed=trace.seed,
            item=question.id,
            rule=rule,
            category=benchmark.categories[question.id],
            answer=trace.answer,
            correct=trace.answer is not None and is_correct(trace.answer, gold, question.choices),
            finish=trace.finish,
            error=trace.error,
            steps=len(trace.steps),
            fallbacks=sum(step.fallback for step in trace.steps),
            unjudged=sum(step.unjudged for step in trace.steps),
        )


def _read_results(run: RunFolder) -> dict[tuple[int, str, Rule], Result]:
    results = (loads(Result, line, SCHEMA) for line in run.read(RESULTS))
    return {(result.seed, result.item, result.rule): result for result in results}


def _read_trees(run: RunFolder) -> dict[tuple[int, str], Tree]:
    # a batch that was cut off between its trees and its results is walked again; the last wins
    trees = map(Tree.from_json, run.read(TREES))
    return {(tree.seed, tree.item): tree for tree in trees}


def read_trees(folder: Path) -> tuple[Tree, ...]:
    """The stored trees of a run."""
    return tuple(_read_trees(RunFolder(folder)).values())


def _shares(results: Mapping[tuple[int, str, Rule], Result]) -> dict[Rule, float]:
    right: dict[Rule, list[bool]] = {}
    for result in results.values():
        right.setdefault(result.rule, []).append(result.correct)
    return {rule: float(np.mean(values)) for rule, values in right.items()}
