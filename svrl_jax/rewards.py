"""The reward of a trajectory: r = (1 - alpha) r_acc r_svrl + alpha r_fmt.

r_svrl is the product of an arm's factors. Each factor is a pure function of the trajectory and of
what the oracle says of it; the accuracy gates them all, so that no process reward is paid for a
wrong answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from svrl_jax.grammar import unique_queries
from svrl_jax.trajectory import Trajectory

Factor = Literal["aware", "count", "qalign", "salign", "uniform"]


@dataclass(frozen=True)
class RewardSettings:
    """The numbers of the reward.

    Attributes:
        alpha: weight of the format (MMSearch-R1).
        lambda_sa: what a search costs where none was needed (the SVRL paper).
        k: queries that a search should propose; ours.
        floor: the least that a factor of alignment or count pays: the paper's epsilon; ours.
        qalign_no_search: what query alignment pays without a search; ours. At 1 the factor alone
            could not drive a policy to search.
        search_penalty: what any search costs under the uniform penalty (MMSearch-R1).
    """

    alpha: float = 0.1
    lambda_sa: float = 0.1
    k: int = 3
    floor: float = 0.01
    qalign_no_search: float = 1.0
    search_penalty: float = 0.1


@dataclass(frozen=True)
class OracleLabels:
    """What the oracle says of a trajectory.

    Attributes:
        queries: of `pooled_queries`, whether each is useful.
        snippets: of each text search that brought some, whether each is useful.
    """

    queries: tuple[bool, ...]
    snippets: tuple[tuple[bool, ...], ...]


@dataclass(frozen=True)
class Scored:
    """What a factor is computed from.

    Attributes:
        trajectory: what the policy did.
        search_free: the base policy answers this question without tools.
        labels: the oracle's; None for an arm that asks for none.
        settings: numbers.
    """

    trajectory: Trajectory
    search_free: bool
    labels: OracleLabels | None
    settings: RewardSettings


def pooled_queries(trajectory: Trajectory) -> tuple[str, ...]:
    """The different valid queries that the searches of a trajectory proposed."""
    return unique_queries(query for search in trajectory.text_searches for query in search.proposed)


def aware(scored: Scored) -> float:
    """lambda_sa if a search was called though the question needs none, else 1."""
    called = scored.search_free and scored.trajectory.called
    return scored.settings.lambda_sa if called else 1.0


def count(scored: Scored) -> float:
    """The mean over the text searches of k_hat / k, at least the floor; 1 without one.

    k_hat is the number of different valid queries, at most k.
    """
    searches = scored.trajectory.text_searches
    if not searches:
        return 1.0
    k = scored.settings.k
    shares = [min(len(unique_queries(search.proposed)), k) / k for search in searches]
    return max(scored.settings.floor, math.fsum(shares) / len(shares))


def qalign(scored: Scored) -> float:
    """The share of the different valid queries that the oracle finds useful, at least the floor."""
    if not scored.trajectory.text_searches:
        return scored.settings.qalign_no_search
    queries = pooled_queries(scored.trajectory)
    useful = _labels(scored).queries
    if len(useful) != len(queries):
        raise ValueError(
            f"{scored.trajectory.item}: {len(useful)} labels for {len(queries)} queries"
        )
    return max(scored.settings.floor, sum(useful) / max(len(queries), 1))


def salign(scored: Scored) -> float:
    """The share of all snippets whose mark is the oracle's, at least the floor.

    Marks that are missing or of another number than the snippets count as wrong for all of them.
    1 where no snippet was brought.
    """
    marks = scored.trajectory.marks
    if not marks:
        return 1.0
    labels = _labels(scored).snippets
    if [len(own) for own in labels] != [len(search.snippets) for search, _ in marks]:
        raise ValueError(f"{scored.trajectory.item}: the labels do not fit the snippets")
    total = sum(len(search.snippets) for search, _ in marks)
    right = sum(
        sum(mark == useful for mark, useful in zip(own, useful_ones, strict=True))
        for (_, own), useful_ones in zip(marks, labels, strict=True)
        if own is not None and len(own) == len(useful_ones)
    )
    return max(scored.settings.floor, right / total)


def uniform(scored: Scored) -> float:
    """1 - search_penalty if any search was called (MMSearch-R1)."""
    return 1.0 - scored.settings.search_penalty if scored.trajectory.called else 1.0


FACTORS: Mapping[Factor, Callable[[Scored], float]] = {
    "aware": aware,
    "count": count,
    "qalign": qalign,
    "salign": salign,
    "uniform": uniform,
}
"""Every factor by name; a new one is a function and a line."""


def _labels(scored: Scored) -> OracleLabels:
    if scored.labels is None:
        raise ValueError(f"{scored.trajectory.item}: this factor needs the oracle's labels")
    return scored.labels


@dataclass(frozen=True)
class Reward:
    """A reward with what it is made of.

    Attributes:
        total: what the policy gets.
        accuracy: the answer's grade.
        format: 1 if every turn keeps to the grammar and the last one answers.
        factors: of the arm, by name.
    """

    total: float
    accuracy: float
    format: float
    factors: Mapping[Factor, float]


def reward(scored: Scored, accuracy: float, factors: tuple[Factor, ...]) -> Reward:
    """r = (1 - alpha) r_acc r_svrl + alpha r_fmt.

    Args:
        scored: trajectory, tag, labels, numbers.
        accuracy: grade of the answer in [0, 1]: exact match, or a judge's.
        factors: of the arm.
    """
    values: dict[Factor, float] = {name: FACTORS[name](scored) for name in factors}
    formed = float(scored.trajectory.finish == "answered")
    alpha = scored.settings.alpha
    gated = accuracy * math.prod(values.values())
    return Reward((1 - alpha) * gated + alpha * formed, accuracy, formed, values)
