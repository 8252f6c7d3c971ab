"""Rewards of a batch of trajectories: what an arm asks the oracle, the grades, the factors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from svrl_jax.arms import Arm
from svrl_jax.grading import Grader, exact_match
from svrl_jax.oracle import Oracle, OracleError, gather, label_all
from svrl_jax.rewards import OracleLabels, Reward, RewardSettings, Scored, reward
from svrl_jax.search.protocol import TextTool
from svrl_jax.task import Task
from svrl_jax.trajectory import Trajectory


@dataclass(frozen=True)
class Judges:
    """Who says what is useful and what is right.

    Attributes:
        oracle: labels queries and snippets.
        grader: of answers, for an arm whose oracle grades them; exact match else.
        tool: finds what the oracle labels: the policy's own, with a cache.
        top_k: hits of a search.
    """

    oracle: Oracle
    grader: Grader
    tool: TextTool
    top_k: int


@dataclass(frozen=True)
class Outcome:
    """What became of a trajectory.

    Attributes:
        task, trajectory: which.
        search_free: the base policy answers it without tools.
        labels: the oracle's; None for an arm that asks for none.
        reward: None where the oracle or grader failed: the trajectory is unscorable.
        error: why, then.
    """

    task: Task
    trajectory: Trajectory
    search_free: bool
    labels: OracleLabels | None
    reward: Reward | None
    error: str | None = None


def score(
    arm: Arm,
    tasks: Sequence[Task],
    trajectories: Sequence[Trajectory],
    search_free: Mapping[str, bool],
    judges: Judges,
    settings: RewardSettings,
) -> tuple[Outcome, ...]:
    """Asks the oracle what the arm needs, and rewards.

    Args:
        arm: whose factors.
        tasks: one per trajectory.
        trajectories: of the policy.
        search_free: by question id; what is missing needs tools.
        judges: oracle and grader.
        settings: numbers of the reward; k and the reward without a search are the arm's.
    """
    settings = replace(settings, k=arm.queries, qalign_no_search=arm.qalign_no_search)
    labels: Sequence[OracleLabels | OracleError | None] = [None] * len(tasks)
    if arm.oracle & {"queries", "snippets"}:
        gathered = gather(tasks, trajectories, judges.tool, judges.top_k)
        labels = label_all(judges.oracle, gathered)
    answers = [(task, t.answer) for task, t in zip(tasks, trajectories, strict=True)]
    grades = judges.grader(answers) if "answer" in arm.oracle else exact_match(answers)
    return tuple(
        _outcome(arm, task, trajectory, search_free, label, grade, settings)
        for task, trajectory, label, grade in zip(tasks, trajectories, labels, grades, strict=True)
    )


def _outcome(
    arm: Arm,
    task: Task,
    trajectory: Trajectory,
    search_free: Mapping[str, bool],
    labels: OracleLabels | OracleError | None,
    grade: float | OracleError,
    settings: RewardSettings,
) -> Outcome:
    free = search_free.get(task.question.id, False)
    for failed in (labels, grade):
        if isinstance(failed, OracleError):
            return Outcome(task, trajectory, free, None, None, str(failed))
    assert not isinstance(labels, OracleError) and not isinstance(grade, OracleError)
    scored = Scored(trajectory, free, labels, settings)
    return Outcome(task, trajectory, free, labels, reward(scored, grade, arm.factors))
