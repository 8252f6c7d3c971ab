"""Labelled steps for the judges: right ones and ones broken in a known way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from verdict_jax.benchmarks.examples import StepVerdict
from verdict_jax.benchmarks.tabletop.checker import check_meaning
from verdict_jax.benchmarks.tabletop.language import (
    ASIDES,
    EXTREME_WORDS,
    Answer,
    Aside,
    Chosen,
    Ended,
    Furthest,
    Located,
    Meaning,
    Nearest,
    Related,
    Seen,
    Stepped,
    Walked,
)
from verdict_jax.benchmarks.tabletop.questions import (
    CHOICES,
    FAMILIES,
    Asked,
    chain,
    draw_question,
)
from verdict_jax.benchmarks.tabletop.scene import (
    COLORS,
    DIRECTIONS,
    SHAPES,
    SIDE,
    SIZES,
    Name,
    Scene,
    Thing,
    Tile,
    steps_between,
)

T = TypeVar("T")

VERDICT_WEIGHTS: dict[StepVerdict, float] = {
    StepVerdict(True, True, True): 0.40,
    StepVerdict(False, True, True): 0.24,
    StepVerdict(True, False, True): 0.12,
    StepVerdict(True, True, False): 0.08,
    # a reasoner's own slips, such as a miscount, are often broken in two ways
    StepVerdict(False, False, True): 0.12,
    StepVerdict(False, True, False): 0.02,
    StepVerdict(True, False, False): 0.01,
    StepVerdict(False, False, False): 0.01,
}
"""How often each combination of labels is drawn where a position offers them all."""

_VERDICTS = tuple(VERDICT_WEIGHTS)

IMAGINED = 0.4
"""How often the accepted steps are a chain about another scene than the picture's."""

POOL = 14
"""Candidates among which one with the drawn labels is looked for."""


def _pick(options: Sequence[T], rng: np.random.Generator) -> T:
    return options[int(rng.integers(len(options)))]


def _near_tile(tile: Tile, rng: np.random.Generator) -> Tile:
    """Another tile: mostly a neighbour."""
    if rng.random() < 0.2:
        return int(rng.integers(1, SIDE + 1)), int(rng.integers(1, SIDE + 1))
    column, row = tile
    by = int(rng.choice((-1, 1)))
    moved = (column + by, row) if rng.random() < 0.4 else (column, row + by)
    return min(max(moved[0], 1), SIDE), min(max(moved[1], 1), SIDE)


def _other_name(name: Name, rng: np.random.Generator) -> Name:
    color, shape = name
    return (_pick(COLORS, rng), shape) if rng.random() < 0.5 else (color, _pick(SHAPES, rng))


def imagine(asked: Asked, scene: Scene, rng: np.random.Generator) -> Scene:
    """A scene that a careless eye could take for this one: one or two things changed.

    Things that the question names keep their names.
    """
    things = {thing.tile: thing for thing in scene.things}
    for _ in range(int(rng.integers(1, 3))):
        thing = _pick(list(things.values()), rng)
        named = thing.name in asked.names
        others = {t.name for t in things.values() if t != thing}
        roll = rng.random()
        if roll < 0.5:
            tile = _near_tile(thing.tile, rng)
            if tile not in things:
                del things[thing.tile]
                things[tile] = replace(thing, tile=tile)
        elif roll < 0.6 and not named and len(things) > 4:
            del things[thing.tile]
        elif roll < 0.75:
            things[thing.tile] = replace(thing, size=_pick(SIZES, rng))
        elif not named:
            name = _other_name(thing.name, rng)
            if name not in others:
                things[thing.tile] = replace(thing, color=name[0], shape=name[1])
    return Scene(tuple(sorted(things.values())))


def mutate(meaning: Meaning, asked: Asked, scene: Scene, rng: np.random.Generator) -> Meaning:
    """A step that differs in one part from another, mostly by little."""
    thing: Thing = _pick(scene.things, rng)
    roll = rng.random()
    match meaning:
        case Located(name, tile):
            if roll < 0.65:
                return replace(meaning, tile=_near_tile(tile, rng))
            return replace(meaning, tile=thing.tile) if roll < 0.85 else Located(*_named(thing))
        case Stepped(name, tile, steps):
            if roll < 0.4:
                moved = _near_tile(tile, rng)
                shift = steps_between(tile, moved)
                # the steps follow the move in one of the two ways it can have
                return replace(
                    meaning, tile=moved, steps=max(0, steps + int(rng.choice((-1, 1))) * shift)
                )
            if roll < 0.6:
                return replace(meaning, tile=_near_tile(tile, rng))
            return replace(meaning, steps=max(1, steps + int(rng.choice((-2, -1, 1, 2)))))
        case Related(side, depth):
            if roll < 0.5:
                return replace(meaning, side="left" if side == "right" else "right")
            return replace(meaning, depth="front" if depth == "back" else "back")
        case Chosen():
            if roll < 0.8:
                return replace(meaning, name=_pick(asked.options, rng))
            return replace(meaning, extreme=_pick(tuple(EXTREME_WORDS), rng))
        case Walked(size, name, tile, counts, count):
            if roll < 0.25:
                return replace(meaning, tile=_near_tile(tile, rng))
            if roll < 0.5:
                other = _other_name(name, rng)
                if asked.family == "count" and asked.word not in SIZES:
                    had, has = asked.word in name, asked.word in other
                    shift = int(has) - int(had)
                    return replace(meaning, name=other, counts=has, count=max(0, count + shift))
                return replace(meaning, name=other)
            if roll < 0.6:
                return replace(meaning, size=_other(SIZES, size))
            if roll < 0.7:
                shift = -1 if counts else 1
                return replace(meaning, counts=not counts, count=max(0, count + shift))
            if roll < 0.8:
                return replace(meaning, count=max(0, count + int(rng.choice((-1, 1)))))
            # a thing is passed over
            later = scene.after(tile)
            if not later:
                return Ended(count)
            return _walk_onto(_pick(later[:2], rng), meaning, asked, scene)
        case Ended(count):
            return Ended(max(0, count + int(rng.choice((-1, 1)))))
        case Furthest(_, tile):
            if roll < 0.45:
                return replace(meaning, tile=_near_tile(tile, rng))
            if roll < 0.9:
                return replace(meaning, tile=thing.tile)
            return replace(meaning, direction=_pick(DIRECTIONS, rng))
        case Nearest(tile, steps):
            reference = scene.by_name[asked.reference].tile if asked.names else tile
            other = thing.tile if roll < 0.5 else _near_tile(tile, rng)
            away = steps_between(reference, other)
            return Nearest(other, steps if roll > 0.9 else away)
        case Seen(tile, size, name):
            if roll < 0.15:
                return replace(meaning, size=_other(SIZES, size))
            if roll < 0.65:
                return replace(meaning, name=_other_name(name, rng))
            return Seen(thing.tile if roll < 0.8 else tile, thing.size, thing.name)
        case Answer():
            return Answer(int(rng.integers(CHOICES)))
        case Aside():
            return Aside(_pick(ASIDES, rng))


def _other(values: Sequence[T], value: T) -> T:
    return values[1] if value == values[0] else values[0]


def _named(thing: Thing) -> tuple[Name, Tile]:
    return thing.name, thing.tile


def _walk_onto(thing: Thing, before: Walked, asked: Asked, scene: Scene) -> Walked:
    reference = scene.by_name[asked.reference].tile if asked.names else None
    counts = asked.counts(thing, reference)
    so_far = before.count - before.counts
    return Walked(thing.size, thing.name, thing.tile, counts, so_far + counts)


def _candidates(
    asked: Asked,
    scene: Scene,
    steps: tuple[Meaning, ...],
    accepted: tuple[Meaning, ...],
    rng: np.random.Generator,
) -> Iterator[Meaning]:
    """What might be said next, the chain's own next step first."""
    place = min(len(accepted), len(steps) - 1)
    upcoming = steps[place]
    yield upcoming
    true_steps = chain(asked, scene)
    if true_steps is not None:
        yield true_steps[min(place, len(true_steps) - 1)]
        yield true_steps[-1]
    for _ in range(POOL // 2):
        yield mutate(upcoming, asked, scene, rng)
    if accepted:
        yield _pick(accepted, rng)
        yield mutate(_pick(accepted, rng), asked, scene, rng)
    yield _pick(steps, rng)
    yield Answer(int(rng.integers(CHOICES)))
    yield Aside(_pick(ASIDES, rng))
    other = draw_question(_pick(FAMILIES, rng), scene, rng)
    drift = None if other is None else chain(other, scene)
    if drift is not None:
        yield drift[rng.integers(len(drift) - 1)]


def draw_judgement(
    asked: Asked, scene: Scene, rng: np.random.Generator
) -> tuple[tuple[Meaning, ...], Meaning, StepVerdict]:
    """Accepted steps, a step to judge behind them, and its labels by the checker.

    The accepted steps are a right chain's, of the picture or (IMAGINED) of a scene that could be
    mistaken for it.

    Args:
        asked: a question that the scene settles.
        scene: what the picture shows.
        rng: advanced in place.
    """
    right = chain(asked, scene)
    assert right is not None
    steps = right
    if rng.random() < IMAGINED:
        steps = chain(asked, imagine(asked, scene, rng)) or right
    accepted = steps[: rng.integers(len(steps))]
    if rng.random() < 0.05:
        at = int(rng.integers(len(accepted) + 1))
        accepted = (*accepted[:at], Aside(_pick(ASIDES, rng)), *accepted[at:])
    pool: dict[StepVerdict, list[Meaning]] = {}
    for meaning in _candidates(asked, scene, steps, accepted, rng):
        pool.setdefault(check_meaning(meaning, asked, scene, accepted), []).append(meaning)
    weights = np.array([VERDICT_WEIGHTS[verdict] * (verdict in pool) for verdict in _VERDICTS])
    verdict = _VERDICTS[rng.choice(len(_VERDICTS), p=weights / weights.sum())]
    return accepted, _pick(pool[verdict], rng), verdict
