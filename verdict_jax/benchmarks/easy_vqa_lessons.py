"""Training lessons from easy-vqa: a picture, right chains, labelled steps, auxiliary labels."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
from jaxtyping import Int, UInt8
from PIL import Image

from verdict_jax.benchmarks.easy_vqa_language import COLORS, SHAPES
from verdict_jax.benchmarks.easy_vqa_steps import by_picture, draw_chain, draw_judgement
from verdict_jax.packing import Lesson
from verdict_jax.vlm.images import ImageProcessor, ProcessedImage, load_image

CLASSES = (len(COLORS), len(SHAPES))
"""Of the auxiliary labels: the shape's colour and kind."""


@functools.cache
def pictures() -> tuple[Path, ...]:
    """The train pictures whose content is known, in a fixed order."""
    return tuple(sorted(by_picture("train")))


@functools.cache
def pixels_of(path: Path) -> tuple[UInt8[np.ndarray, "rows columns 3"], tuple[slice, slice]]:
    """A picture with the box of its shape: all that differs from the commonest colour."""
    pixels = np.asarray(load_image(path))
    colours, counts = np.unique(pixels.reshape(-1, 3), axis=0, return_counts=True)
    ground = colours[counts.argmax()].astype(int)
    rows, columns = np.nonzero(np.abs(pixels - ground).sum(axis=-1) > 30)
    return pixels, (
        slice(int(rows.min()), int(rows.max()) + 1),
        slice(int(columns.min()), int(columns.max()) + 1),
    )


def draw_picture(
    processor: ImageProcessor, path: Path, token: int, rng: np.random.Generator
) -> tuple[ProcessedImage, Int[np.ndarray, "tokens 2"]]:
    """A picture with its shape moved about, half the time mirrored; and its labels.

    Colour and kind are to be told by the image token in which the shape's centre lies.

    Args:
        processor: must leave the picture's size as it is.
        path: one of `pictures`.
        token: pixels along a side of a merged image token.
        rng: advanced in place.
    """
    pixels, box = pixels_of(path)
    shifts = [
        int(rng.integers(-side.start, size - side.stop + 1))
        for side, size in zip(box, pixels.shape, strict=False)
    ]
    pixels = np.roll(pixels, shifts, axis=(0, 1))
    row, column = (
        (side.start + side.stop) // 2 + shift for side, shift in zip(box, shifts, strict=True)
    )
    if rng.random() < 0.5:
        pixels, column = pixels[:, ::-1], pixels.shape[1] - 1 - column
    picture = processor.process(Image.fromarray(np.ascontiguousarray(pixels)))
    content = by_picture("train")[path][0].content
    height, width = (size // token for size in pixels.shape[:2])
    labels = np.full((height * width, 2), -1, np.int32)
    place = row // token * width + column // token
    labels[place] = COLORS.index(content.color), SHAPES.index(content.shape)
    return picture, labels


def draw_lesson(
    processor: ImageProcessor, path: Path, token: int, rng: np.random.Generator
) -> Lesson:
    """A picture with chains and judgements about its questions; arguments of `draw_picture`."""
    items = by_picture("train")[path]
    picture, labels = draw_picture(processor, path, token, rng)
    order = rng.permutation(len(items))
    return Lesson(
        picture,
        tuple(draw_chain(items[i], rng) for i in order),
        tuple(draw_judgement(items[i], rng) for i in [*order, *order[::-1]]),
        labels,
    )


def draw_paths(count: int, rng: np.random.Generator) -> list[Path]:
    """Different train pictures."""
    return [pictures()[i] for i in rng.choice(len(pictures()), size=count, replace=False)]
