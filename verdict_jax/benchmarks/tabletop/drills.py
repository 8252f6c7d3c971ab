"""Reading drills: short questions that any table settles, to train the eye before reasoning.

No test asks them. A model of few parameters that starts with whole chains learns their form and
never looks at the picture; these ask for what stands where and for nothing else.
"""

from __future__ import annotations

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
from verdict_jax.benchmarks.tabletop.scene import Scene, Thing
from verdict_jax.prompts import ANSWER_PREFIX
from verdict_jax.protocols import Question


def _drill(text: str, steps: tuple[Meaning, ...], answer: str) -> ReasonerExample:
    question = Question("drill", text, answer=answer)
    return ReasonerExample(question, (*map(sentence, steps), ANSWER_PREFIX + answer))


def where(thing: Thing) -> ReasonerExample:
    """Asks for a thing's tile."""
    step = Located(thing.name, thing.tile)
    return _drill(f"Where is the {name_text(thing.name)}?", (step,), tile_text(thing.tile))


def what(thing: Thing) -> ReasonerExample:
    """Asks what stands on a tile."""
    step = Seen(thing.tile, thing.size, thing.name)
    return _drill(f"What is on {tile_text(thing.tile)}?", (step,), name_text(thing.name))


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
