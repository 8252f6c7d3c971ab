"""Tabletop: questions of several steps about rendered scenes, made by a seeded generator.

Item i of a (split, seed) is a pure function of the three. A scene's split follows from its content,
so that no scene is in two splits, whatever the seeds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from verdict_jax.benchmarks.benchmark import Benchmark
from verdict_jax.benchmarks.examples import StepVerdict
from verdict_jax.benchmarks.tabletop.checker import check_step
from verdict_jax.benchmarks.tabletop.picture import VISIBLE, Picture, render
from verdict_jax.benchmarks.tabletop.questions import (
    CHOICES,
    FAMILIES,
    Asked,
    Family,
    draw_count,
    draw_question,
    right_choice,
)
from verdict_jax.benchmarks.tabletop.scene import Scene, Split, draw_scene
from verdict_jax.prompts import LETTERS
from verdict_jax.protocols import Question

SPLITS: tuple[Split, ...] = ("train", "validation", "test")


@dataclass(frozen=True)
class Item:
    """A question with what its picture shows.

    Attributes:
        question: as it is put, with its picture, its choices and the letter of the right one.
        asked: what it asks.
        scene: what the picture shows.
    """

    question: Question
    asked: Asked
    scene: Scene

    @property
    def picture(self) -> Image.Image:
        """The question's one picture."""
        (picture,) = self.question.images
        assert isinstance(picture, Image.Image)
        return picture


@dataclass(frozen=True)
class Table:
    """A picture with questions about it."""

    scene: Scene
    picture: Picture
    items: tuple[Item, ...]


def _settled(
    family: Family, split: Split, rng: np.random.Generator
) -> tuple[Asked, Scene, Picture]:
    """A question with a scene that settles it, in which all is seen, its answer anywhere."""
    while True:
        answer = int(rng.integers(CHOICES))
        if family == "count":
            # each count is as likely as any other, so that a guess gains nothing
            asked = draw_count(rng)
            scene = draw_scene(rng, (str(asked.word), int(asked.choices[answer])))
        else:
            scene = draw_scene(rng)
            asked = draw_question(family, scene, rng, answer)
        if asked is None or scene.split != split:
            continue
        picture = render(scene, rng)
        if picture.visible.min() >= VISIBLE:
            return asked, scene, picture


def draw_table(
    name: str,
    split: Split,
    rng: np.random.Generator,
    family: Family | None = None,
    questions: int = 1,
) -> Table:
    """A scene of a split with questions about it.

    Args:
        name: the first question's id, and what the others' begin with.
        split: whose scene it is.
        rng: advanced in place.
        family: of the first question; random if None.
        questions: how many; the others' families are random.
    """
    first, scene, picture = _settled(family or _any_family(rng), split, rng)
    drawn = [first]
    while len(drawn) < questions:
        if (more := draw_question(_any_family(rng), scene, rng)) is not None:
            drawn.append(more)
    return Table(
        scene,
        picture,
        tuple(
            Item(_question(asked, scene, picture, f"{name}/{i}" if i else name), asked, scene)
            for i, asked in enumerate(drawn)
        ),
    )


def _any_family(rng: np.random.Generator) -> Family:
    return FAMILIES[rng.integers(len(FAMILIES))]


def _question(asked: Asked, scene: Scene, picture: Picture, name: str) -> Question:
    choice = right_choice(asked, scene)
    assert choice is not None
    return Question(name, asked.text, (picture.image,), asked.choices, LETTERS[choice])


def load(split: Split, seed: int, count: int, start: int = 0) -> Iterator[Item]:
    """Items `start` to `start + count` of a split and seed; the families take turns.

    Args:
        split: which scenes.
        seed: another seed, other items.
        count: how many.
        start: the first one's index.
    """
    for index in range(start, start + count):
        rng = np.random.default_rng((seed, SPLITS.index(split), index))
        family = FAMILIES[index % len(FAMILIES)]
        yield draw_table(f"tabletop/{split}/{seed}/{index}", split, rng, family).items[0]


TEST_SEED = 2026
"""Of the questions that figures are reported on."""

TEST_QUESTIONS = 3000


def benchmark(limit: int | None) -> Benchmark:
    """The test questions: the first `limit` of TEST_QUESTIONS."""
    count = TEST_QUESTIONS if limit is None else min(limit, TEST_QUESTIONS)
    items = {item.question.id: item for item in load("test", TEST_SEED, count)}

    def check(question: Question, accepted: Sequence[str], step: str) -> StepVerdict:
        item = items[question.id]
        return check_step(step, item.asked, item.scene, accepted)

    return Benchmark(
        "tabletop",
        tuple(item.question for item in items.values()),
        {name: item.asked.family for name, item in items.items()},
        check,
    )
