"""Tables of a run, on results whose figures are known."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from test_evaluation import BENCHMARK, PLAN, WHO, check_sum

from verdict_jax.evaluation import BASE, SCHEMA, Result, evaluate, read_trees
from verdict_jax.rules import RuleParameters
from verdict_jax.summary import auc, difference, rows, rule_table, step_figures, step_table


def result(rule: str, seed: int, item: int, correct: bool, fallbacks: int = 0) -> Result:
    return Result(
        schema=SCHEMA, seed=seed, item=str(item), rule=rule, category="all",
        answer="A" if correct or item % 2 else None, correct=correct, finish="answered",
        error=None, steps=4, fallbacks=fallbacks, unjudged=0,
    )  # fmt: skip


# base is right on items 0-4 of 10; "mean" on those of 0-5 (seed 0) and 0-7 (seed 1)
RESULTS = [result(BASE, 0, item, item < 5) for item in range(10)] + [
    result("mean", seed, item, item < 6 + 2 * seed, fallbacks=seed)
    for seed, item in product((0, 1), range(10))
]


def test_accuracy_is_the_mean_over_seeds_with_its_sample_deviation() -> None:
    base, mean = rows(RESULTS, (BASE, "mean"))
    assert base.accuracy == pytest.approx(50) and base.std is None
    assert mean.accuracy == pytest.approx(70)
    assert mean.std == pytest.approx(np.std([60, 80], ddof=1))
    assert mean.fallback == pytest.approx(10 / 80)
    assert mean.steps == 4
    assert base.over[BASE] is None and mean.over["mean"] is None
    # wrong and even: 6 and 8 of base
    assert base.unreadable == pytest.approx(0.2)


def test_differences_are_paired() -> None:
    over = rows(RESULTS, (BASE, "mean"))[1].over[BASE]
    assert over is not None
    # by item, seeds averaged: 0 for 0-4, 1 for 5, .5 for 6 and 7, 0 for 8 and 9
    values = np.array([0, 0, 0, 0, 0, 1, 0.5, 0.5, 0, 0])
    assert over.estimate == pytest.approx(100 * values.mean())
    assert over.low < over.estimate < over.high
    back = rows(RESULTS, (BASE, "mean"))[0].over["mean"]
    assert back is not None and back.estimate == pytest.approx(-over.estimate)


def test_the_interval_is_that_of_the_mean() -> None:
    """Close to the normal one for many items; a shift moves it whole."""
    values = np.random.default_rng(0).normal(0.1, 0.4, 4000)
    interval = difference(values)
    half = 1.96 * 100 * values.std(ddof=1) / np.sqrt(len(values))
    assert interval.high - interval.low == pytest.approx(2 * half, rel=0.05)
    assert interval.estimate == pytest.approx(100 * values.mean())
    shifted = difference(values + 0.5)
    assert shifted.low - interval.low == pytest.approx(50, abs=1e-6)
    same = difference(np.full(10, 0.25))
    assert (same.low, same.estimate, same.high) == (25, 25, 25)


def test_auc_by_hand() -> None:
    assert auc(np.array([0.9, 0.5]), np.array([0.5, 0.1])) == pytest.approx((1 + 1 + 0.5 + 1) / 4)
    assert np.isnan(auc(np.array([]), np.array([0.1])))


def test_tables_are_markdown() -> None:
    lines = rule_table(rows(RESULTS, (BASE, "mean"))).splitlines()
    assert lines[0].startswith("| rule | accuracy | over base [95%] | over mean [95%] |")
    assert lines[2].startswith("| base | 50.00 |  | -20.00 [")
    assert lines[3].startswith("| mean | 70.00 +- 14.14 | +20.00 [")


def test_step_figures_of_the_toys(tmp_path: object) -> None:
    from pathlib import Path

    evaluate(BENCHMARK, WHO, PLAN, Path(str(tmp_path)))
    trees = read_trees(Path(str(tmp_path)))
    judges = ("visual", "logical", "contextual")
    figures = step_figures(BENCHMARK, trees, judges, RuleParameters())
    # counted apart: every different text of every node that the three judges saw
    count, sound = 0, 0
    questions = {question.id: question for question in BENCHMARK.questions}
    for tree in trees:
        for node in tree.nodes:
            if not any(tree.panels[s.panel].judges == judges for s in node.scores):
                continue
            chain, path = [], ()
            for place in node.path:
                at = tree.find(path, final=False)
                assert at is not None
                chain.append(at.candidates[place].text)
                path = (*path, place)
            for text in {candidate.text for candidate in node.candidates}:
                count += 1
                sound += check_sum(questions[tree.item], chain, text).broken == "none"
    assert figures.candidates == count
    assert figures.sound == pytest.approx(sound / count)
    # the toy judges answer the checker's own questions, so nothing escapes them
    assert figures.own["logical"] == figures.own["contextual"] == 1.0
    assert figures.accepted_wrong < 0.35
    assert 0 <= figures.alike < 0.2 < figures.mixed < 1
    assert "settled mean" in step_table(figures)
