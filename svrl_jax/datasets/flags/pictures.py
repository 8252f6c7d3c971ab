"""Pictures of a flag: the stored one scaled, cropped, turned, lit, noisy, on a plain ground."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import UInt8
from PIL import Image

CANVAS = 64
"""Pixels of each side of a picture."""


@dataclass(frozen=True)
class Ranges:
    """Between which values a picture's parameters are drawn, uniformly.

    Attributes:
        scale: width of the flag, as a share of the canvas.
        crop: most of each side that may be cut off, as a share of it.
        turn: largest rotation, either way, in degrees.
        light: factor of the brightness.
        noise: standard deviation of the noise of each value, of 255.
    """

    scale: tuple[float, float]
    crop: float
    turn: float
    light: tuple[float, float]
    noise: tuple[float, float]


TRAINING = Ranges((0.72, 1.0), 0.04, 8.0, (0.85, 1.15), (0.0, 6.0))
"""Of pretraining's and training's pictures."""

UNSEEN = Ranges((0.62, 1.0), 0.07, 13.0, (0.75, 1.25), (0.0, 11.0))
"""Of validation's and test's pictures: wider in everything."""


def draw(
    flag: UInt8[np.ndarray, "72 96 3"], ranges: Ranges, rng: np.random.Generator
) -> UInt8[np.ndarray, "64 64 3"]:
    """A picture of a flag; a pure function of its arguments.

    Args:
        flag: as stored.
        ranges: of the parameters.
        rng: advanced in place, by the same number of draws for every flag.
    """
    height, width, _ = flag.shape
    left, right, top, bottom = rng.uniform(0, ranges.crop, 4)
    box = (left * width, top * height, (1 - right) * width, (1 - bottom) * height)
    shown_width = CANVAS * rng.uniform(*ranges.scale)
    size = (round(shown_width), round(shown_width * height / width))
    small = Image.fromarray(flag).resize(size, Image.Resampling.BOX, box=box).convert("RGBA")
    turned = small.rotate(
        rng.uniform(-ranges.turn, ranges.turn), Image.Resampling.BILINEAR, expand=True
    )
    ground = tuple(int(value) for value in rng.integers(0, 256, 3))
    canvas = Image.new("RGBA", (CANVAS, CANVAS), (*ground, 255))
    # where the flag is larger than the canvas its middle stays in sight
    spare = (CANVAS - turned.width, CANVAS - turned.height)
    place = [round(room * rng.uniform(0, 1)) if room > 0 else room // 2 for room in spare]
    shifted = Image.new("RGBA", canvas.size)
    shifted.paste(turned, (place[0], place[1]))
    canvas.alpha_composite(shifted)
    values = np.asarray(canvas.convert("RGB"), np.float64) * rng.uniform(*ranges.light)
    values += rng.normal(0, 1, values.shape) * rng.uniform(*ranges.noise)
    return np.clip(np.rint(values), 0, 255).astype(np.uint8)
