"""Questions about tabletop scenes, with the chain of steps that answers each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from verdict_jax.benchmarks.tabletop.language import (
    Answer,
    Chosen,
    Ended,
    Extreme,
    Furthest,
    Located,
    Meaning,
    Nearest,
    Related,
    Seen,
    Stepped,
    Walked,
    name_text,
    related_text,
)
from verdict_jax.benchmarks.tabletop.scene import (
    COLORS,
    DIRECTIONS,
    SHAPES,
    SIZES,
    Direction,
    Name,
    Scene,
    Thing,
    Tile,
    offset_towards,
    steps_between,
)

Family = Literal["count", "relation", "depth", "distance", "attribute", "neighbour", "count_beside"]
"""counting, 2-D relation, depth order, relative distance, attribute after reference; and two that
chain them: an attribute of the nearest neighbour of a thing, and counting what lies beside it."""

FAMILIES: tuple[Family, ...] = get_args(Family)

CHOICES = 4
"""Every question has as many: chance is 1 / CHOICES in all families."""

Attribute = Literal["color", "shape"]


@dataclass(frozen=True)
class Asked:
    """What a question asks.

    Attributes:
        family: its kind.
        choices: the option texts.
        names: the things that it names: of relation (from, what), of the options of depth, of
            distance the thing measured from and then the options, else the thing referred to.
        word: colour, shape or size counted.
        direction: the side looked to.
        extreme: what the option is chosen for.
        attribute: what is to be said of the thing found.
    """

    family: Family
    choices: tuple[str, ...]
    names: tuple[Name, ...] = ()
    word: str | None = None
    direction: Direction | None = None
    extreme: Extreme | None = None
    attribute: Attribute | None = None

    @property
    def reference(self) -> Name:
        """The thing that others are measured from."""
        return self.names[0]

    @property
    def options(self) -> tuple[Name, ...]:
        """The things among which one is to be chosen, in the order of the question's choices."""
        return self.names[-CHOICES:]

    @property
    def text(self) -> str:
        """The question as it is put."""
        named = f"the {name_text(self.names[0])}" if self.names else ""
        match self.family:
            case "count":
                plural = f"{self.word}s" if self.word in SHAPES else f"{self.word} things"
                return f"How many {plural} are on the table?"
            case "relation":
                return f"Where is the {name_text(self.names[1])}, seen from {named}?"
            case "depth":
                words = {"front": "nearest to the front", "back": "furthest back"}
                return f"Which of these is {words[str(self.extreme)]}?"
            case "distance":
                return f"Which of these is the fewest steps from {named}?"
            case "attribute":
                return f"What {self.attribute} is the thing furthest {self.direction}?"
            case "neighbour":
                return f"What {self.attribute} is the thing fewest steps from {named}?"
            case "count_beside":
                where = {
                    "left": "left of",
                    "right": "right of",
                    "front": "in front of",
                    "back": "behind",
                }[str(self.direction)]
                return f"How many things are {where} {named}?"

    def counts(self, thing: Thing, reference: Tile | None) -> bool:
        """Whether a walk counts a thing.

        Args:
            thing: what the walk comes to.
            reference: where the thing referred to stands (family count_beside).
        """
        if self.family == "count":
            return self.word is not None and thing.has(self.word)
        if reference is None or self.direction is None:
            return False
        return offset_towards(thing.tile, self.direction) > offset_towards(
            reference, self.direction
        )


def relation(reference: Tile, tile: Tile) -> Related | None:
    """Where a tile lies as seen from another; None if in the same column or row."""
    if reference[0] == tile[0] or reference[1] == tile[1]:
        return None
    return Related(
        "left" if tile[0] < reference[0] else "right",
        "front" if tile[1] < reference[1] else "back",
    )


def choose(asked: Asked, tiles: Sequence[Tile], reference: Tile | None) -> int | None:
    """Which of the options it is, by where they stand; None where two are.

    Args:
        asked: of family depth or distance.
        tiles: of the options in order.
        reference: of the thing measured from (distance).
    """
    if asked.family == "distance":
        if reference is None:
            return None
        ranks = [steps_between(reference, tile) for tile in tiles]
    else:
        sign = 1 if asked.extreme == "front" else -1
        ranks = [sign * tile[1] for tile in tiles]
    first = min(ranks)
    return ranks.index(first) if ranks.count(first) == 1 else None


def _value(thing: Thing, attribute: Attribute | None) -> str:
    return thing.color if attribute == "color" else thing.shape


def _walk(asked: Asked, scene: Scene) -> tuple[Meaning, ...]:
    steps: list[Meaning] = []
    count = 0
    reference = scene.by_name[asked.names[0]].tile if asked.names else None
    for thing in scene.things:
        counted = asked.counts(thing, reference)
        count += counted
        steps.append(Walked(thing.size, thing.name, thing.tile, counted, count))
    return (*steps, Ended(count))


def chain(asked: Asked, scene: Scene) -> tuple[Meaning, ...] | None:
    """The steps that answer a question about a scene, the answer last.

    None where the scene does not settle the question: a thing named is missing, two things share
    the extreme, or the answer is not among the choices.
    """
    if any(name not in scene.by_name for name in asked.names):
        return None
    steps: tuple[Meaning, ...]
    match asked.family:
        case "count":
            steps = _walk(asked, scene)
            answer = str(steps[-1].count) if isinstance(steps[-1], Ended) else ""
        case "count_beside":
            tile = scene.by_name[asked.reference].tile
            steps = (Located(asked.reference, tile), *_walk(asked, scene))
            answer = str(steps[-1].count) if isinstance(steps[-1], Ended) else ""
        case "relation":
            places = [scene.by_name[name].tile for name in asked.names]
            related = relation(*places)
            if related is None:
                return None
            located = tuple(map(Located, asked.names, places))
            steps = (*located, related)
            answer = related_text(related.side, related.depth)
        case "depth" | "distance":
            tiles = [scene.by_name[name].tile for name in asked.options]
            if asked.family == "depth":
                reference, extreme = None, asked.extreme
                steps = tuple(map(Located, asked.options, tiles))
            else:
                reference, extreme = scene.by_name[asked.reference].tile, "fewest"
                steps = (Located(asked.reference, reference),) + tuple(
                    Stepped(name, tile, steps_between(reference, tile))
                    for name, tile in zip(asked.options, tiles, strict=True)
                )
            chosen = choose(asked, tiles, reference)
            if chosen is None or extreme is None:
                return None
            steps = (*steps, Chosen(asked.options[chosen], extreme))
            answer = name_text(asked.options[chosen])
        case "attribute":
            assert asked.direction is not None
            thing = scene.furthest(asked.direction)
            if thing is None:
                return None
            steps = (
                Furthest(asked.direction, thing.tile),
                Seen(thing.tile, thing.size, thing.name),
            )
            answer = _value(thing, asked.attribute)
        case "neighbour":
            thing = scene.nearest(asked.reference)
            if thing is None:
                return None
            tile = scene.by_name[asked.reference].tile
            steps = (
                Located(asked.reference, tile),
                Nearest(thing.tile, steps_between(tile, thing.tile)),
                Seen(thing.tile, thing.size, thing.name),
            )
            answer = _value(thing, asked.attribute)
    if answer not in asked.choices:
        return None
    return (*steps, Answer(asked.choices.index(answer)))


def _names(scene: Scene, count: int, rng: np.random.Generator) -> tuple[Name, ...]:
    order = rng.permutation(len(scene.things))[:count]
    return tuple(scene.things[i].name for i in order)


def _numbers(rng: np.random.Generator) -> tuple[str, ...]:
    start = int(rng.integers(2))
    return tuple(str(start + i) for i in range(CHOICES))


def draw_count(rng: np.random.Generator) -> Asked:
    """A question of family count, whatever the scene."""
    words = (COLORS, SHAPES, SIZES)[rng.integers(3)]
    return Asked("count", _numbers(rng), word=words[rng.integers(len(words))])


def _draw_relation(scene: Scene, rng: np.random.Generator) -> Asked:
    texts = [related_text(side, depth) for side in DIRECTIONS[:2] for depth in DIRECTIONS[2:]]
    choices = tuple(texts[i] for i in rng.permutation(CHOICES))
    return Asked("relation", choices, _names(scene, 2, rng))


def _draw_depth(scene: Scene, rng: np.random.Generator) -> Asked:
    names = _names(scene, CHOICES, rng)
    extreme: Extreme = "front" if rng.random() < 0.5 else "back"
    return Asked("depth", tuple(map(name_text, names)), names, extreme=extreme)


def _draw_distance(scene: Scene, rng: np.random.Generator) -> Asked:
    names = _names(scene, 1 + CHOICES, rng)
    return Asked("distance", tuple(map(name_text, names[1:])), names)


def _attribute(rng: np.random.Generator) -> Attribute:
    return "color" if rng.random() < 0.5 else "shape"


def _with_value(
    asked: Callable[[tuple[str, ...]], Asked],
    attribute: Attribute,
    thing: Thing | None,
    rng: np.random.Generator,
) -> Asked | None:
    """A question whose choices hold a thing's attribute at a random place."""
    if thing is None:
        return None
    value = _value(thing, attribute)
    words = COLORS if attribute == "color" else SHAPES
    others = [word for word in words if word != value]
    choices = [value, *(others[i] for i in rng.permutation(len(others))[: CHOICES - 1])]
    return asked(tuple(choices[i] for i in rng.permutation(CHOICES)))


def _draw_attribute(scene: Scene, rng: np.random.Generator) -> Asked | None:
    direction, attribute = DIRECTIONS[rng.integers(4)], _attribute(rng)
    return _with_value(
        lambda choices: Asked("attribute", choices, direction=direction, attribute=attribute),
        attribute,
        scene.furthest(direction),
        rng,
    )


def _draw_neighbour(scene: Scene, rng: np.random.Generator) -> Asked | None:
    names, attribute = _names(scene, 1, rng), _attribute(rng)
    return _with_value(
        lambda choices: Asked("neighbour", choices, names, attribute=attribute),
        attribute,
        scene.nearest(names[0]),
        rng,
    )


def _draw_count_beside(scene: Scene, rng: np.random.Generator) -> Asked:
    direction = DIRECTIONS[rng.integers(4)]
    return Asked("count_beside", _numbers(rng), _names(scene, 1, rng), direction=direction)


_DRAWS: Mapping[Family, Callable[[Scene, np.random.Generator], Asked | None]] = {
    "count": lambda _, rng: draw_count(rng),
    "relation": _draw_relation,
    "depth": _draw_depth,
    "distance": _draw_distance,
    "attribute": _draw_attribute,
    "neighbour": _draw_neighbour,
    "count_beside": _draw_count_beside,
}

ATTEMPTS = 50


def right_choice(asked: Asked, scene: Scene) -> int | None:
    """The place of the right answer among the choices; None where the scene does not settle it."""
    steps = chain(asked, scene)
    if steps is None:
        return None
    assert isinstance(steps[-1], Answer)
    return steps[-1].choice


def draw_question(
    family: Family, scene: Scene, rng: np.random.Generator, answer: int | None = None
) -> Asked | None:
    """A question of a family that the scene settles; None where no attempt found one.

    Args:
        family: which.
        scene: what it is about.
        rng: advanced in place.
        answer: the place of the right choice; None for any.
    """
    for _ in range(ATTEMPTS):
        asked = _DRAWS[family](scene, rng)
        choice = None if asked is None else right_choice(asked, scene)
        if choice is not None and answer in (None, choice):
            return asked
    return None
