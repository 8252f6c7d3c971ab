"""The loop: what a step asks, what it keeps, and that a broken run goes on to the same bits."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import numpy as np
import pytest
import tiny_vlm

from svrl_jax import training
from svrl_jax.grading import exact_match
from svrl_jax.oracle import rule_oracle
from svrl_jax.rewards import Reward
from svrl_jax.rollout import Limits, Tools
from svrl_jax.scoring import Judges, Outcome
from svrl_jax.task import Task
from svrl_jax.training import Setup, StepRecord, TrainingSettings, read_records, train
from svrl_jax.trajectory import Snippet, Trajectory
from verdict_jax.run_folder import RunFolderError

SETTINGS = TrainingSettings(
    arm="search-aware",
    steps=4,
    prompts=2,
    group=2,
    learning_rate=1e-2,
    micro_batches=2,
    save_every=1,
    validate_every=2,
    limits=Limits(turns=1, turn_tokens=8, context=1600),
)


@dataclass(frozen=True)
class Nothing:
    name, version = "nothing", "1"

    def search(self, query: str, top_k: int) -> tuple[Snippet, ...]:
        return ()


def task(index: int) -> Task:
    question = replace(tiny_vlm.question(index), images=(tiny_vlm.picture(index, (32, 32)),))
    return Task(question, ("gold",))


def setup() -> Setup:
    tool = Nothing()
    return Setup(
        tiny_vlm.tiny_vlm(),
        lambda first, count: [task(index) for index in range(first, first + count)],
        {},
        [task(100)],
        Tools(tool),
        Judges(rule_oracle(lambda snippet, task: False), exact_match, tool, 3),
    )


def by_place(
    arm: object, tasks: Sequence[Task], trajectories: Sequence[Trajectory], *_: object
) -> tuple[Outcome, ...]:
    """A random policy earns nothing, so rewards are made up, the same at every run."""
    totals = [zlib.crc32(f"{t.question.id} {i}".encode()) % 5 / 4 for i, t in enumerate(tasks)]
    return tuple(
        Outcome(t, done, False, None, Reward(total, total, 1.0, {"aware": 1.0, "count": 1.0}))
        for t, done, total in zip(tasks, trajectories, totals, strict=True)
    )


@pytest.fixture(autouse=True)
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "score", by_place)


class Stopped(Exception):
    pass


def bare(record: StepRecord) -> StepRecord:
    return replace(record, seconds=0.0, rollout_seconds=0.0)


def test_a_broken_run_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    """R19: parameters, optimizer, draws and data."""
    whole = train(setup(), SETTINGS, tmp_path / "whole")

    def stop(record: StepRecord) -> None:
        if record.step == 2:
            raise Stopped

    with pytest.raises(Stopped):
        train(setup(), SETTINGS, tmp_path / "broken", stop)
    again = train(setup(), SETTINGS, tmp_path / "broken")
    jax.tree.map(np.testing.assert_array_equal, whole, again)
    records = [read_records(tmp_path / name) for name in ("whole", "broken")]
    assert [r.step for r in records[0]] == [1, 2, 3, 4]
    assert list(map(bare, records[0])) == list(map(bare, records[1]))
    assert [r.validation is not None for r in records[0]] == [False, True, False, True]
    moved = jax.tree.map(lambda a, b: float(np.abs(a - b).max()), whole[0], tiny_vlm.tiny_params())
    assert max(jax.tree.leaves(moved["text"])) > 1e-3
    assert max(jax.tree.leaves(moved["vision"])) == 0
    # a run that is done is done
    jax.tree.map(np.testing.assert_array_equal, whole, train(setup(), SETTINGS, tmp_path / "whole"))
    with pytest.raises(RunFolderError, match="learning_rate"):
        train(setup(), replace(SETTINGS, learning_rate=1.0), tmp_path / "whole")


def test_the_ratio_of_the_first_pass_is_one(tmp_path: Path) -> None:
    """R8, R13: nothing is lost between rollout and update."""
    train(setup(), replace(SETTINGS, steps=1), tmp_path)
    (record,) = read_records(tmp_path)
    assert abs(record.metrics["ratio"] - 1) < 1e-3 and record.metrics["clip_share"] == 0
    assert abs(record.metrics["kl"]) < 1e-6 and record.metrics["gradient_norm"] > 0


@pytest.mark.parametrize(
    "wrong",
    [{"steps": 0}, {"group": 3, "micro_batches": 4}, {"arm": "direct"}, {"validate_every": 0}],
)
def test_wrong_settings_are_refused(wrong: dict[str, int | str]) -> None:
    with pytest.raises(ValueError):
        replace(SETTINGS, **wrong)  # pyright: ignore[reportArgumentType]
