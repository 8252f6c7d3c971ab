"""Runs of rules over a benchmark: what they record, and how they go on after a kill."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from toys import SUM_JUDGES, SumReasoner, judge_sums, sum_question

from verdict_jax.benchmarks.benchmark import Benchmark
from verdict_jax.benchmarks.examples import StepVerdict
from verdict_jax.evaluation import (
    BASE,
    ORACLE,
    RESULTS,
    TREES,
    Done,
    Participants,
    Plan,
    Result,
    evaluate,
    read_trees,
)
from verdict_jax.lifting import lift
from verdict_jax.protocols import Candidate, Question
from verdict_jax.reasoning import reason
from verdict_jax.rules import RuleParameters
from verdict_jax.run_folder import RunFolder, RunFolderError


def check_sum(question: Question, accepted: Sequence[str], step: str) -> StepVerdict:
    """The toy judges' own questions, answered for certain."""
    steps = [Candidate(text) for text in accepted]
    scores, _ = judge_sums([question], [steps], [[Candidate(step)]])
    grounded, logical, on_topic = (scores[0, 0] > 0.5).tolist()
    return StepVerdict(grounded, logical, on_topic)


QUESTIONS = tuple(sum_question(i + 2, 3 * i + 1, 7 - i % 5, i) for i in range(6))
BENCHMARK = Benchmark(
    "sums",
    QUESTIONS,
    {q.id: "even" if i % 2 else "odd" for i, q in enumerate(QUESTIONS)},
    check_sum,
)
PANEL = lift(judge_sums, SUM_JUDGES, name="toy/judges")
WHO = Participants(SumReasoner(0.3), SumReasoner(0.6), (PANEL,))
PLAN = Plan((BASE, "random", "mean", "verdict", ORACLE), (0, 1), RuleParameters(), batch=3)


def fresh() -> Participants:
    """The same participants with empty lists of calls."""
    return Participants(SumReasoner(0.3), SumReasoner(0.6), (PANEL,))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[Result, ...]]:
    folder = tmp_path_factory.mktemp("run") / "whole"
    return folder, evaluate(BENCHMARK, WHO, PLAN, folder)


def accuracy(results: Sequence[Result], rule: str) -> float:
    return float(np.mean([result.correct for result in results if result.rule == rule]))


def test_every_rule_answers_every_question_and_base_once(
    whole: tuple[Path, tuple[Result, ...]],
) -> None:
    _, results = whole
    keys = [(r.seed, r.item, r.rule) for r in results]
    assert len(set(keys)) == len(keys) == 6 + 2 * 6 * 4
    assert {r.seed for r in results if r.rule == BASE} == {0}
    assert [r.category for r in results[:5]] == ["odd"] * 5


def test_results_are_those_of_reason(whole: tuple[Path, tuple[Result, ...]]) -> None:
    _, results = whole
    for rule in ("random", "mean", "verdict"):
        for seed in PLAN.seeds:
            traces = reason(QUESTIONS, WHO.reasoner, WHO.panels, rule=rule, seed=seed).traces
            own = [r for r in results if r.rule == rule and r.seed == seed]
            for question, trace, result in zip(QUESTIONS, traces, own, strict=True):
                assert result.answer == trace.answer
                assert result.correct == (trace.answer == question.answer)
                assert result.steps == len(trace.steps)
                assert result.fallbacks == sum(step.fallback for step in trace.steps)
                assert result.finish == trace.finish


def test_who_knows_more_is_right_more_often(whole: tuple[Path, tuple[Result, ...]]) -> None:
    _, results = whole
    assert accuracy(results, "random") < accuracy(results, "verdict")
    assert accuracy(results, ORACLE) >= accuracy(results, "verdict") > 0.4


def test_the_oracle_takes_a_sound_candidate_wherever_there_is_one(
    whole: tuple[Path, tuple[Result, ...]],
) -> None:
    folder, results = whole
    trees = {(tree.seed, tree.item): tree for tree in read_trees(folder)}
    questions = {question.id: question for question in QUESTIONS}
    right = 0
    for result in (r for r in results if r.rule == ORACLE):
        tree, path, texts = trees[result.seed, result.item], (), []
        while (node := tree.find(path, final=False)) is not None:
            sound = [
                check_sum(questions[result.item], texts, candidate.text).broken == "none"
                for candidate in node.candidates
            ]
            if not any(sound):
                break
            path, texts = (
                (*path, sound.index(True)),
                [*texts, node.candidates[sound.index(True)].text],
            )
        if len(path) == result.steps:
            assert result.correct
            right += 1
    assert right > 3


def test_a_finished_run_asks_nobody(whole: tuple[Path, tuple[Result, ...]], tmp_path: Path) -> None:
    folder, results = whole
    shutil.copytree(folder, tmp_path / "copy")
    who = fresh()
    assert evaluate(BENCHMARK, who, PLAN, tmp_path / "copy") == results
    assert not who.reasoner.calls and not who.base.calls  # pyright: ignore


def test_progress_counts_pairs_and_tells_the_shares(tmp_path: Path) -> None:
    told: list[Done] = []
    results = evaluate(BENCHMARK, WHO, PLAN, tmp_path, told.append)
    assert [done.questions for done in told] == [3, 6, 9, 12]
    assert {done.total for done in told} == {12} and told[-1].fresh == 12
    for rule in PLAN.rules:
        assert told[-1].correct[rule] == pytest.approx(accuracy(results, rule))


class Killed(BaseException):
    pass


@pytest.mark.parametrize("appends", range(8))
def test_a_run_killed_between_any_two_appends_goes_on_to_the_same_end(
    appends: int,
    whole: tuple[Path, tuple[Result, ...]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Eight appends in all: trees and results of two batches under two seeds."""
    count = 0
    real = RunFolder.append

    def append(self: RunFolder, name: str, lines: Sequence[str]) -> None:
        nonlocal count
        if count == appends:
            raise Killed
        count += 1
        real(self, name, lines)

    monkeypatch.setattr(RunFolder, "append", append)
    with pytest.raises(Killed):
        evaluate(BENCHMARK, WHO, PLAN, tmp_path)
    monkeypatch.undo()
    who = fresh()
    assert evaluate(BENCHMARK, who, PLAN, tmp_path) == whole[1]
    if appends == 7:
        # the trees of the last batch are there: only base, whose chains are not kept, is asked
        assert not [call for call in who.reasoner.calls if call[0] == "propose"]  # pyright: ignore
    assert sorted(t.to_json() for t in read_trees(tmp_path)) == sorted(
        t.to_json() for t in read_trees(whole[0])
    )


@pytest.mark.parametrize("seed", range(12))
def test_a_run_cut_off_at_any_byte_goes_on_to_the_same_end(
    seed: int, whole: tuple[Path, tuple[Result, ...]], tmp_path: Path
) -> None:
    rng = np.random.default_rng(seed)
    shutil.copytree(whole[0], tmp_path / "copy")
    for name in (TREES, RESULTS):
        file = tmp_path / "copy" / name
        data = file.read_bytes()
        file.write_bytes(data[: rng.integers(len(data) + 1)])
    assert evaluate(BENCHMARK, fresh(), PLAN, tmp_path / "copy") == whole[1]


def test_other_settings_are_refused(whole: tuple[Path, tuple[Result, ...]], tmp_path: Path) -> None:
    shutil.copytree(whole[0], tmp_path / "copy")
    other = replace(PLAN, parameters=RuleParameters(tau=0.7))
    with pytest.raises(RunFolderError, match=r"tau is 0\.7, was 0\.6"):
        evaluate(BENCHMARK, WHO, other, tmp_path / "copy")
    with pytest.raises(RunFolderError, match=r"error_rate is 0\.5, was 0\.6"):
        evaluate(BENCHMARK, replace(WHO, reasoner=SumReasoner(0.5)), PLAN, tmp_path / "copy")


def test_a_question_that_cannot_be_read_is_recorded_and_the_others_go_on(tmp_path: Path) -> None:
    bad = {QUESTIONS[5].id: "sum.png: not an image"}
    who = Participants(SumReasoner(0.3, bad), SumReasoner(0.6, bad), (PANEL,))
    results = evaluate(BENCHMARK, who, PLAN, tmp_path)
    failed = {r.item for r in results if r.error is not None}
    assert failed == set(bad)
    assert {r.error for r in results if r.item in bad} == set(bad.values())
    assert len(results) == 6 + 2 * 6 * 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rules": ("vedict",)}, "no rule vedict"),
        ({"rules": ()}, "no rule given"),
        ({"rules": ("mean", "mean")}, "rules must be distinct"),
        ({"seeds": ()}, "seeds must be distinct and not empty"),
        ({"batch": 0}, "batch must be at least 1"),
    ],
)
def test_plans_are_checked(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(PLAN, **changes)  # pyright: ignore


def test_an_oracle_needs_a_checker(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no program can check"):
        evaluate(replace(BENCHMARK, check=None), WHO, PLAN, tmp_path)
