"""A reasoner's or a panel's state, kept in step with the rows of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic

from verdict_jax.protocols import Candidate, Participant, Question, QuestionErrors, State


@dataclass(frozen=True)
class Lane(Generic[State]):
    """A state and the rows of the batch that its places hold.

    Attributes:
        state: opaque.
        rows: the batch row at each place. A row may stand at several places: repeats fill a batch
            up to its size and are stepped alike.
        depth: how many steps are committed.
    """

    state: State
    rows: tuple[int, ...]
    depth: int


def open_lane(
    participant: Participant[State],
    questions: Sequence[Question],
    rows: Sequence[int],
    broken: Mapping[int, str],
) -> tuple[Lane[State] | None, Mapping[int, str]]:
    """Starts a participant on rows of a batch.

    A row that cannot be started is replaced by a repeat of one that can, so that the others keep
    the batch size, hence the arithmetic, that they would have had without it.

    Args:
        questions: of the whole batch.
        rows: the rows to start, one per place.
        broken: rows known not to be startable, with reasons.

    Returns:
        The lane at depth 0, None if no row can be started; `broken` with the new reasons.

    Raises:
        QuestionErrors: it names no row at all.
    """
    broken = dict(broken)
    while good := [row for row in rows if row not in broken]:
        places = tuple(good[0] if row in broken else row for row in rows)
        try:
            state = participant.start([questions[row] for row in places])
        except QuestionErrors as errors:
            # Each round must break a row more, or the loop would not end.
            if not errors.reasons:
                raise
            broken |= {places[place]: reason for place, reason in errors.reasons.items()}
        else:
            return Lane(state, places, 0), broken
    return None, broken


def catch_up(
    participant: Participant[State],
    lane: Lane[State],
    chains: Sequence[Sequence[Candidate]],
    depth: int,
) -> Lane[State]:
    """Commits the accepted steps of every row (`chains`, by batch row) up to a depth."""
    state = lane.state
    for d in range(lane.depth, depth):
        steps = [chains[row][d] if d < len(chains[row]) else None for row in lane.rows]
        state = participant.commit(state, steps)
    return Lane(state, lane.rows, max(depth, lane.depth))


def packed(rows: Sequence[int], size: int, buckets: Sequence[int]) -> tuple[int, ...] | None:
    """These rows in the smallest bucket below `size` that holds them; None if there is none.

    Places left over repeat the first of the rows.
    """
    fitting = [bucket for bucket in buckets if len(rows) <= bucket < size]
    if not fitting or not rows:
        return None
    return (*rows, *[rows[0]] * (min(fitting) - len(rows)))


def pack(
    participant: Participant[State], lane: Lane[State], rows: Sequence[int], buckets: Sequence[int]
) -> Lane[State]:
    """The lane cut down to these rows by `packed`; as it is if no bucket is smaller."""
    filled = packed(rows, len(lane.rows), buckets)
    if filled is None:
        return lane
    places = [lane.rows.index(row) for row in filled]
    return Lane(participant.take(lane.state, places), filled, lane.depth)
