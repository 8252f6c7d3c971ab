"""Training lessons from tabletop: a picture, right chains, labelled steps, auxiliary labels."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int

from verdict_jax.benchmarks.examples import JudgeExample, ReasonerExample
from verdict_jax.benchmarks.tabletop import Item, draw_table
from verdict_jax.benchmarks.tabletop.breaks import draw_judgement
from verdict_jax.benchmarks.tabletop.drills import draw_drills, draw_lettered
from verdict_jax.benchmarks.tabletop.language import sentence
from verdict_jax.benchmarks.tabletop.picture import PIXELS, VISIBLE, Picture, render
from verdict_jax.benchmarks.tabletop.questions import chain
from verdict_jax.benchmarks.tabletop.scene import (
    COLORS,
    FEWEST,
    MOST,
    SHAPES,
    SIDE,
    SIZES,
    Scene,
    draw_scene,
)
from verdict_jax.packing import Lesson
from verdict_jax.vlm.images import ImageProcessor, ProcessedImage

CLASSES = (len(COLORS), len(SHAPES), len(SIZES), SIDE, SIDE)
"""Of the auxiliary labels: a thing's colour, shape, size, column, row."""

QUESTIONS = 4
"""About one table."""

DRILLS, LETTERED = 14, 8
"""About one table: a row of training holds no more."""


def label_picture(
    processor: ImageProcessor, scene: Scene, drawn: Picture, token: int
) -> tuple[ProcessedImage, Int[np.ndarray, "tokens 5"]]:
    """A table's picture, with what stands in the middle of each of its image tokens.

    Args:
        processor: must leave the picture's size as it is.
        scene: what is on the table.
        drawn: its picture.
        token: pixels along a side of a merged image token.
    """
    picture = processor.process(drawn.image)
    side = PIXELS // token
    labels = np.full((side * side, len(CLASSES)), -1, np.int32)
    things = scene.things
    # what stands nearer hides what stands behind, so it is written last
    for i in sorted(range(len(things)), key=lambda i: -things[i].tile[1]):
        thing = things[i]
        x, y = np.clip(drawn.centres[i], 0, PIXELS - 1).astype(int) // token
        labels[y * side + x] = (
            COLORS.index(thing.color),
            SHAPES.index(thing.shape),
            SIZES.index(thing.size),
            thing.tile[0] - 1,
            thing.tile[1] - 1,
        )
    return picture, labels


def right_chain(item: Item) -> ReasonerExample:
    """The chain that answers a question."""
    steps = chain(item.asked, item.scene)
    assert steps is not None
    return ReasonerExample(item.question, tuple(map(sentence, steps)))


def judgement(item: Item, rng: np.random.Generator) -> JudgeExample:
    """A labelled step about a question; `rng` is advanced in place."""
    accepted, step, verdict = draw_judgement(item.asked, item.scene, rng)
    return JudgeExample(item.question, tuple(map(sentence, accepted)), sentence(step), verdict)


def draw_reading(
    processor: ImageProcessor,
    token: int,
    rng: np.random.Generator,
    things: tuple[int, int] = (FEWEST, MOST),
    lettered: bool = False,
) -> Lesson:
    """A train table with drills about it.

    Args:
        processor, token: as of `label_picture`.
        rng: advanced in place.
        things: the fewest and the most on the table.
        lettered: with choices.
    """
    draw, count = (draw_lettered, LETTERED) if lettered else (draw_drills, DRILLS)
    while True:
        scene = draw_scene(rng, things=things)
        drawn = render(scene, rng)
        if scene.split == "train" and drawn.visible.min() >= VISIBLE:
            picture, labels = label_picture(processor, scene, drawn, token)
            return Lesson(picture, draw(scene, count, rng), (), labels)


def draw_lesson(processor: ImageProcessor, token: int, rng: np.random.Generator) -> Lesson:
    """A train table with chains and judgements about it; arguments of `label_picture`."""
    table = draw_table("train", "train", rng, questions=QUESTIONS)
    picture, labels = label_picture(processor, table.scene, table.picture, token)
    return Lesson(
        picture,
        tuple(map(right_chain, table.items)),
        tuple(judgement(item, rng) for item in (*table.items, *table.items)),
        labels,
    )
