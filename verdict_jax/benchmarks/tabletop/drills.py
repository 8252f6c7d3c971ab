"""Reading drills: short questions that any table settles, to train the eye before reasoning.

No test asks them. A model of few parameters that starts with whole chains learns their form and
looks neither at the picture nor at the question; these ask for what stands where, and with choices
for the letter of what was found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from verdict_jax.benchmarks.examples import ReasonerExample
from verdict_jax.benchmarks.tabletop.language import (
    Ended,
    Located,
    Meaning,
    Seen,
    Walked,
    name_text,
    sentence,
    tile_text,
)
from verdict_jax.benchmarks.tabletop.questions import CHOICES, Attribute
from verdict_jax.benchmarks.tabletop.scene import COLORS, NAMES, SHAPES, SIZES, TILES, Scene, Thing
from verdict_jax.prompts import ANSWER_PREFIX, LETTERS
from verdict_jax.protocols import Question


def _drill(text: str, steps: tuple[Meaning, ...], answer: str) -> ReasonerExample:
    question = Question("drill", text, answer=answer)
    return ReasonerExample(question, (*map(sentence, steps), ANSWER_PREFIX + answer))


def _lettered(
    text: str, step: Meaning, answer: str, others: Sequence[str], rng: np.random.Generator
) -> ReasonerExample:
    """With the answer among choices in a random order."""
    wrong = [others[i] for i in rng.permutation(len(others))[: CHOICES - 1]]
    choices = [answer, *wrong]
    order = rng.permutation(CHOICES)
    letter = LETTERS[int(np.flatnonzero(order == 0)[0])]
    question = Question("drill", text, (), tuple(choices[i] for i in order), letter)
    return ReasonerExample(question, (sentence(step), ANSWER_PREFIX + letter))


def where(thing: Thing) -> ReasonerExample:
    """Asks for a thing's tile."""
    step = Located(thing.name, thing.tile)
    return _drill(f"Where is the {name_text(thing.name)}?", (step,), tile_text(thing.tile))


def what(thing: Thing) -> ReasonerExample:
    """Asks what stands on a tile."""
    step = Seen(thing.tile, thing.size, thing.name)
    return _drill(f"What is on {tile_text(thing.tile)}?", (step,), name_text(thing.name))


def where_of(thing: Thing, rng: np.random.Generator) -> ReasonerExample:
    """Asks for a thing's tile among others."""
    others = [tile_text(tile) for tile in TILES if tile != thing.tile]
    step = Located(thing.name, thing.tile)
    text = f"Where is the {name_text(thing.name)}?"
    return _lettered(text, step, tile_text(thing.tile), others, rng)


def which(thing: Thing, rng: np.random.Generator) -> ReasonerExample:
    """Asks which of several things stands on a tile."""
    others = [name_text(name) for name in NAMES if name != thing.name]
    step = Seen(thing.tile, thing.size, thing.name)
    text = f"Which of these is on {tile_text(thing.tile)}?"
    return _lettered(text, step, name_text(thing.name), others, rng)


def value_of(thing: Thing, attribute: Attribute, rng: np.random.Generator) -> ReasonerExample:
    """Asks for the colour or the shape of what stands on a tile."""
    words, value = (COLORS, thing.color) if attribute == "color" else (SHAPES, thing.shape)
    others = [word for word in words if word != value]
    step = Seen(thing.tile, thing.size, thing.name)
    text = f"What {attribute} is the thing on {tile_text(thing.tile)}?"
    return _lettered(text, step, value, others, rng)


def walk(scene: Scene) -> ReasonerExample:
    """Asks for the number of things, all of which count."""
    steps = tuple(
        Walked(thing.size, thing.name, thing.tile, True, number)
        for number, thing in enumerate(scene.things, start=1)
    )
    count = len(steps)
    return _drill("How many things are on the table?", (*steps, Ended(count)), str(count))


def draw_drills(scene: Scene, count: int, rng: np.random.Generator) -> tuple[ReasonerExample, ...]:
    """A walk, then drills about single things, half of each kind.

    Args:
        scene: what the picture shows.
        count: of drills in all.
        rng: advanced in place.
    """
    things = [scene.things[i] for i in rng.integers(len(scene.things), size=count - 1)]
    single = [(where, what)[i % 2](thing) for i, thing in enumerate(things)]
    return (walk(scene), *single)


def letter(rng: np.random.Generator) -> ReasonerExample:
    """A drill with choices about a thing that no picture shows, or a count: a step that says which
    choice it is, and the choice's letter."""
    if rng.random() < 0.2:
        count = int(rng.integers(2 * CHOICES))
        others = [str(other) for other in range(2 * CHOICES) if other != count]
        return _lettered("How many are there?", Ended(count), str(count), others, rng)
    tile, (color, shape) = TILES[rng.integers(len(TILES))], NAMES[rng.integers(len(NAMES))]
    thing = Thing(tile, color, shape, SIZES[rng.integers(len(SIZES))])
    return LETTERED[rng.integers(len(LETTERED))](thing, rng)


LETTERED: tuple[Callable[[Thing, np.random.Generator], ReasonerExample], ...] = (
    where_of,
    lambda thing, rng: value_of(thing, "color", rng),
    which,
    lambda thing, rng: value_of(thing, "shape", rng),
)
"""Every kind of drill with choices about one thing."""


def draw_lettered(
    scene: Scene, count: int, rng: np.random.Generator
) -> tuple[ReasonerExample, ...]:
    """Drills with choices, as many of each kind; arguments as of `draw_drills`."""
    things = [scene.things[i] for i in rng.integers(len(scene.things), size=count)]
    return tuple(LETTERED[i % len(LETTERED)](thing, rng) for i, thing in enumerate(things))
