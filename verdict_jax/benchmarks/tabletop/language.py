"""The controlled language of tabletop chains: sentences and what they mean."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, cast

from verdict_jax.benchmarks.tabletop.scene import (
    COLORS,
    DIRECTIONS,
    SHAPES,
    SIDE,
    SIZES,
    Direction,
    Name,
    Size,
    Tile,
)
from verdict_jax.prompts import ANSWER_PREFIX, LETTERS

COLUMNS = "abcdef"[:SIDE]
"""Letters of the columns, from the left."""

Extreme = Literal["front", "back", "fewest"]
"""What a thing among others is chosen for: nearest to the front, furthest back, fewest steps."""


@dataclass(frozen=True)
class Located:
    """Says where a named thing stands."""

    name: Name
    tile: Tile


@dataclass(frozen=True)
class Stepped:
    """Says where a named thing stands, how many steps from the one that the question names."""

    name: Name
    tile: Tile
    steps: int


@dataclass(frozen=True)
class Related:
    """Says on which side of the one thing the other stands."""

    side: Direction
    depth: Direction


@dataclass(frozen=True)
class Chosen:
    """Says which of several things is the one asked for."""

    name: Name
    extreme: Extreme


@dataclass(frozen=True)
class Walked:
    """The next thing of a walk over the table: whether it counts, and how many did so far."""

    size: Size
    name: Name
    tile: Tile
    counts: bool
    count: int


@dataclass(frozen=True)
class Ended:
    """The walk is over."""

    count: int


@dataclass(frozen=True)
class Furthest:
    """Says where the thing furthest towards a side stands."""

    direction: Direction
    tile: Tile


@dataclass(frozen=True)
class Nearest:
    """Says where the thing fewest steps from the named one stands."""

    tile: Tile
    steps: int


@dataclass(frozen=True)
class Seen:
    """Says what stands on a tile."""

    tile: Tile
    size: Size
    name: Name


@dataclass(frozen=True)
class Answer:
    """Ends the chain with a letter, as its place among the choices."""

    choice: int


@dataclass(frozen=True)
class Aside:
    """Says something harmless that no question asks."""

    text: str


Meaning = (
    Located
    | Stepped
    | Related
    | Chosen
    | Walked
    | Ended
    | Furthest
    | Nearest
    | Seen
    | Answer
    | Aside
)

ASIDES = (
    "The table is made of wood.",
    "The wall behind is gray.",
    "The light comes from the left.",
    "Tables are useful in a kitchen.",
    "A ball can roll away.",
    "A cube has six faces.",
    "Cats like to sleep.",
    "It may rain later.",
    "Music makes people happy.",
    "Two plus two is four.",
    "Paint dries slowly.",
    "Grass is green.",
)

SIDES: dict[Direction, str] = {
    "left": "left",
    "right": "right",
    "front": "in front",
    "back": "behind",
}
"""How a relation between two things names a direction."""

EXTREME_WORDS: dict[Extreme, str] = {
    "front": "nearest to the front",
    "back": "furthest back",
    "fewest": "the fewest steps away",
}


def tile_text(tile: Tile) -> str:
    """A tile as it is written: the column's letter, the row's number."""
    return f"{COLUMNS[tile[0] - 1]}{tile[1]}"


def name_text(name: Name) -> str:
    """A thing's name as it is written."""
    return " ".join(name)


def _plural(steps: int) -> str:
    return f"{steps} step" if steps == 1 else f"{steps} steps"


def related_text(side: Direction, depth: Direction) -> str:
    """Where a thing stands as seen from another: "left and behind"."""
    return f"{SIDES[side]} and {SIDES[depth]}"


def sentence(meaning: Meaning) -> str:
    """The one sentence with this meaning."""
    match meaning:
        case Located(name, tile):
            return f"The {name_text(name)} is on {tile_text(tile)}."
        case Stepped(name, tile, steps):
            return f"The {name_text(name)} is on {tile_text(tile)}, {_plural(steps)} away."
        case Related(side, depth):
            return f"So it is {related_text(side, depth)}."
        case Chosen(name, extreme):
            return f"So the {name_text(name)} is {EXTREME_WORDS[extreme]}."
        case Walked(size, name, tile, counts, count):
            look = f"{size} {name_text(name)} on {tile_text(tile)}"
            return f"Next is a {look}, {'yes' if counts else 'no'}, so {count}."
        case Ended(count):
            return f"Nothing else is there, so {count}."
        case Furthest(direction, tile):
            return f"Furthest {direction} is {tile_text(tile)}."
        case Nearest(tile, steps):
            return f"Fewest steps away is {tile_text(tile)}, {_plural(steps)}."
        case Seen(tile, size, name):
            return f"On {tile_text(tile)} is a {size} {name_text(name)}."
        case Answer(choice):
            return f"{ANSWER_PREFIX}{LETTERS[choice]}"
        case Aside(text):
            return text


_NAME = rf"(?P<color>{'|'.join(COLORS)}) (?P<shape>{'|'.join(SHAPES)})"
_SIZE = rf"(?P<size>{'|'.join(SIZES)})"
_TILE = rf"(?P<column>[{COLUMNS}])(?P<row>[1-{SIDE}])"
_STEPS = r"(?P<steps>1[0-9]|[0-9]) steps?"

Parts = Mapping[str, str]


def _name(parts: Parts) -> Name:
    return cast(Name, (parts["color"], parts["shape"]))


def _size(parts: Parts) -> Size:
    return cast(Size, parts["size"])


def _tile(parts: Parts) -> Tile:
    return COLUMNS.index(parts["column"]) + 1, int(parts["row"])


_EXTREME_OF: dict[str, Extreme] = {words: extreme for extreme, words in EXTREME_WORDS.items()}
_DIRECTION_OF: dict[str, Direction] = {words: side for side, words in SIDES.items()}

_READERS: tuple[tuple[re.Pattern[str], Callable[[Parts], Meaning]], ...] = tuple(
    (re.compile(pattern), read)
    for pattern, read in (
        (rf"The {_NAME} is on {_TILE}\.", lambda p: Located(_name(p), _tile(p))),
        (
            rf"The {_NAME} is on {_TILE}, {_STEPS} away\.",
            lambda p: Stepped(_name(p), _tile(p), int(p["steps"])),
        ),
        (
            r"So it is (?P<side>left|right) and (?P<depth>in front|behind)\.",
            lambda p: Related(_DIRECTION_OF[p["side"]], _DIRECTION_OF[p["depth"]]),
        ),
        (
            rf"So the {_NAME} is (?P<extreme>{'|'.join(_EXTREME_OF)})\.",
            lambda p: Chosen(_name(p), _EXTREME_OF[p["extreme"]]),
        ),
        (
            rf"Next is a {_SIZE} {_NAME} on {_TILE}, (?P<counts>yes|no), so (?P<count>\d)\.",
            lambda p: Walked(_size(p), _name(p), _tile(p), p["counts"] == "yes", int(p["count"])),
        ),
        (r"Nothing else is there, so (?P<count>\d)\.", lambda p: Ended(int(p["count"]))),
        (
            rf"Furthest (?P<direction>{'|'.join(DIRECTIONS)}) is {_TILE}\.",
            lambda p: Furthest(cast(Direction, p["direction"]), _tile(p)),
        ),
        (
            rf"Fewest steps away is {_TILE}, {_STEPS}\.",
            lambda p: Nearest(_tile(p), int(p["steps"])),
        ),
        (rf"On {_TILE} is a {_SIZE} {_NAME}\.", lambda p: Seen(_tile(p), _size(p), _name(p))),
        (rf"{ANSWER_PREFIX}(?P<letter>[A-Z])", lambda p: Answer(LETTERS.index(p["letter"]))),
    )
)


def meaning_of(text: str) -> Meaning | None:
    """What a sentence means; None where the language has no such sentence."""
    if text in ASIDES:
        return Aside(text)
    for pattern, read in _READERS:
        if match := pattern.fullmatch(text):
            meaning = read(match.groupdict())
            # "1 steps" is no sentence
            return meaning if sentence(meaning) == text else None
    return None
