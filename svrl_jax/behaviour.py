"""How an agent behaves: when it searches, what it finds, what it believes, whether it is right."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from svrl_jax.arms import Arm
from svrl_jax.matching import is_gold
from svrl_jax.scoring import Outcome


@dataclass(frozen=True)
class Counts:
    """Of marks against the oracle's: true is useful.

    Attributes:
        hits: marked useful, and useful.
        marked: marked useful.
        useful: useful.
    """

    hits: int
    marked: int
    useful: int

    @property
    def precision(self) -> float | None:
        """hits / marked; None where nothing was marked."""
        return self.hits / self.marked if self.marked else None

    @property
    def recall(self) -> float | None:
        """hits / useful; None where nothing was useful."""
        return self.hits / self.useful if self.useful else None


@dataclass(frozen=True)
class Behaviour:
    """Figures over many trajectories; None where there is nothing to count.

    Attributes:
        items: trajectories.
        accuracy: share that is right by exact match.
        searched: share with at least one search (search ratio).
        calls: searches called / searches allowed (the other search ratio).
        needless: share of the items that need no tools on which a search was called.
        missed: share of the items that need tools on which none was called.
        irrelevant: share of the snippets that were read and are not useful.
        misled: share of the wrong answers that were given although a useful snippet was read.
        verify: marks of the policy against the oracle's.
        always_1: the same for marking everything useful.
        engine_first: the same for marking the search engine's best hit alone.
        formed: share of well-formed trajectories.
        unscorable: trajectories that the oracle failed to judge.
    """

    items: int
    accuracy: float
    searched: float
    calls: float | None
    needless: float | None
    missed: float | None
    irrelevant: float | None
    misled: float | None
    verify: Counts
    always_1: Counts
    engine_first: Counts
    formed: float
    unscorable: int


def _share(values: Iterable[bool]) -> float | None:
    found = list(values)
    return sum(found) / len(found) if found else None


def is_right(outcome: Outcome) -> bool:
    """Exact match of the answer."""
    return is_gold(outcome.trajectory.answer, outcome.task.golds)


def _read(outcome: Outcome) -> list[tuple[bool | None, bool, int]]:
    """Of each snippet read: the policy's mark (None for none), the oracle's, the engine's rank."""
    if outcome.labels is None:
        return []
    read: list[tuple[bool | None, bool, int]] = []
    for (search, marks), labels in zip(
        outcome.trajectory.marks, outcome.labels.snippets, strict=True
    ):
        own: Sequence[bool | None] = marks if marks and len(marks) == len(labels) else ()
        padded = own or [None] * len(labels)
        read += zip(padded, labels, search.ranks, strict=True)
    return read


def _counts(
    read: Sequence[tuple[bool | None, bool, int]], mark: Callable[[bool | None, int], bool]
) -> Counts:
    marked = [mark(own, rank) for own, _, rank in read]
    return Counts(
        sum(m and useful for m, (_, useful, _) in zip(marked, read, strict=True)),
        sum(marked),
        sum(useful for _, useful, _ in read),
    )


def behaviour(outcomes: Sequence[Outcome], arm: Arm) -> Behaviour:
    """The figures of an arm's trajectories.

    Args:
        outcomes: at least one; those without labels take no part in what is said of snippets.
        arm: how many searches it may call.
    """
    if not outcomes:
        raise ValueError("no trajectories to describe")
    read = [snippet for outcome in outcomes for snippet in _read(outcome)]
    allowed = arm.text_searches + arm.image_searches
    called = sum(
        exchange.result is not None
        for outcome in outcomes
        for exchange in outcome.trajectory.exchanges
    )
    wrong = [outcome for outcome in outcomes if not is_right(outcome) and outcome.labels]
    return Behaviour(
        items=len(outcomes),
        accuracy=sum(map(is_right, outcomes)) / len(outcomes),
        searched=sum(outcome.trajectory.called for outcome in outcomes) / len(outcomes),
        calls=called / (allowed * len(outcomes)) if allowed else None,
        needless=_share(o.trajectory.called for o in outcomes if o.search_free),
        missed=_share(not o.trajectory.called for o in outcomes if not o.search_free),
        irrelevant=_share(not useful for _, useful, _ in read),
        misled=_share(any(useful for _, useful, _ in _read(o)) for o in wrong),
        verify=_counts(read, lambda own, _: bool(own)),
        always_1=_counts(read, lambda *_: True),
        engine_first=_counts(read, lambda _, rank: rank == 0),
        formed=sum(o.trajectory.finish == "answered" for o in outcomes) / len(outcomes),
        unscorable=sum(outcome.error is not None for outcome in outcomes),
    )
