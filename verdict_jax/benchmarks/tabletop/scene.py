"""Scenes of the tabletop world: coloured solids on the tiles of a table."""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

Split = Literal["train", "validation", "test"]
Color = Literal["red", "green", "blue", "yellow", "purple", "white"]
Shape = Literal["ball", "cube", "cone", "cylinder"]
Size = Literal["small", "large"]
Direction = Literal["left", "right", "front", "back"]

COLORS: tuple[Color, ...] = ("red", "green", "blue", "yellow", "purple", "white")
SHAPES: tuple[Shape, ...] = ("ball", "cube", "cone", "cylinder")
SIZES: tuple[Size, ...] = ("small", "large")
DIRECTIONS: tuple[Direction, ...] = ("left", "right", "front", "back")

SIDE = 6
"""Tiles along each side of the table."""

FEWEST, MOST = 5, 8
"""Things on a table."""

Tile = tuple[int, int]
"""Column from the left and row from the front, both from 1. Written "c5"."""

TILES: tuple[Tile, ...] = tuple(itertools.product(range(1, SIDE + 1), range(1, SIDE + 1)))
"""In the order of a walk over the table: column by column, each from the front."""

Name = tuple[Color, Shape]
"""What a thing is called; no two things of a scene share both."""

NAMES: tuple[Name, ...] = tuple(itertools.product(COLORS, SHAPES))


def steps_between(a: Tile, b: Tile) -> int:
    """Steps along the tiles from one to another (never diagonal)."""
    return abs(a[0] - b[0]) + abs(a[1] - b[1])


def offset_towards(tile: Tile, direction: Direction) -> int:
    """How far a tile lies towards one side of the table; larger is further."""
    column, row = tile
    return {"left": -column, "right": column, "front": -row, "back": row}[direction]


@dataclass(frozen=True, order=True)
class Thing:
    """One solid; ordered by its tile.

    Attributes:
        tile: where it stands.
        color, shape, size: how it looks.
    """

    tile: Tile
    color: Color
    shape: Shape
    size: Size

    @property
    def name(self) -> Name:
        return self.color, self.shape

    def has(self, word: str) -> bool:
        """True where colour, shape or size is `word`."""
        return word in (self.color, self.shape, self.size)


@dataclass(frozen=True)
class Scene:
    """What stands on a table, in the order of a walk over it.

    Raises:
        ValueError: two things share a tile or a name, or they are out of order.
    """

    things: tuple[Thing, ...]

    def __post_init__(self) -> None:
        if list(self.things) != sorted(self.things):
            raise ValueError("things must stand in the order of their tiles")
        for kind, values in (("tile", self.by_tile), ("name", self.by_name)):
            if len(values) != len(self.things):
                raise ValueError(f"two things of a scene share a {kind}")

    @functools.cached_property
    def by_tile(self) -> dict[Tile, Thing]:
        return {thing.tile: thing for thing in self.things}

    @functools.cached_property
    def by_name(self) -> dict[Name, Thing]:
        return {thing.name: thing for thing in self.things}

    def after(self, tile: Tile | None) -> tuple[Thing, ...]:
        """The things that a walk has still to meet behind `tile`; all for None."""
        return self.things if tile is None else tuple(t for t in self.things if t.tile > tile)

    def furthest(self, direction: Direction) -> Thing | None:
        """The thing furthest towards a side; None where several are."""
        return _only_smallest([(-offset_towards(t.tile, direction), t) for t in self.things])

    def nearest(self, name: Name) -> Thing | None:
        """The thing fewest steps from a named one; None where several are."""
        tile = self.by_name[name].tile
        return _only_smallest(
            [(steps_between(tile, t.tile), t) for t in self.things if t.name != name]
        )

    @property
    def split(self) -> Split:
        """Where the scene belongs: a function of its content, so that splits never share one."""
        digest = hashlib.blake2b(repr(self.things).encode(), digest_size=8).digest()
        share = int.from_bytes(digest, "big") % 10
        return {0: "test", 1: "validation"}.get(share, "train")  # pyright: ignore[reportReturnType]


def _only_smallest(ranked: Iterable[tuple[int, Thing]]) -> Thing | None:
    first, second, *_ = *sorted(ranked), (None, None), (None, None)
    return first[1] if first[0] is not None and first[0] != second[0] else None


def draw_scene(
    rng: np.random.Generator,
    quota: tuple[str, int] | None = None,
    things: tuple[int, int] = (FEWEST, MOST),
) -> Scene:
    """A random scene of any split; what hides behind what is not looked at.

    Args:
        rng: advanced in place.
        quota: a colour, shape or size, and how many things are to have it.
        things: the fewest and the most on the table.
    """
    fewest, most = things
    count = int(rng.integers(fewest, most + 1))
    looks = list(itertools.product(COLORS, SHAPES, SIZES))
    chosen: dict[Name, Size] = {}
    wanted = [quota is not None and i < quota[1] for i in range(count)]
    for with_word in wanted:
        free = [
            look
            for look in looks
            if look[:2] not in chosen and (quota is None or (quota[0] in look) == with_word)
        ]
        color, shape, size = free[rng.integers(len(free))]
        chosen[color, shape] = size
    tiles = [TILES[i] for i in rng.choice(len(TILES), size=count, replace=False)]
    return Scene(
        tuple(
            sorted(
                Thing(tile, color, shape, size)
                for tile, ((color, shape), size) in zip(tiles, chosen.items(), strict=True)
            )
        )
    )
