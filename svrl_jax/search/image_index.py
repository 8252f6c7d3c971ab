"""Image search over a local set of pictures: nearest colour layout.

A picture's embedding is its colours on a grid of 8 x 8 in OKLab, where equal distances look about
equal (Ottosson 2020); MPEG-7's colour layout descriptor is the same idea. The grid's coarseness
takes scale, noise and a small rotation away. A crop moves every colour, so each picture of the set
is embedded in 19 views: whole, and 9 crops each of .9 and .8 of both sides. Right for pictures
whose colours tell them apart, such as flags; it knows nothing of what a picture means.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from PIL import Image

from svrl_jax.search.protocol import ImageHit, check_top_k, query_key

GRID = 8
"""Cells along a side of the embedding's grid."""

CROPS = (0.9, 0.8)
"""Sides of the crops that a picture of the set is also seen in, as shares of its own."""

_LAYOUT = f"oklab-{GRID}-crops-{'-'.join(map(str, CROPS))}"

# linear sRGB to the cones' responses, and their cube roots to L, a, b (Ottosson 2020)
_CONES = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
_LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


@dataclass(frozen=True)
class IndexedImage:
    """A picture of the set.

    Attributes:
        hit: what a search gives for it.
        image: RGB.
    """

    hit: ImageHit
    image: Image.Image


def oklab(rgb: Float[np.ndarray, "*shape 3"]) -> Float[np.ndarray, "*shape 3"]:
    """L, a, b of sRGB colours in [0, 1]."""
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return np.cbrt(linear @ _CONES.T) @ _LAB.T


def embed(image: Image.Image) -> Float[np.ndarray, " dimensions"]:
    """The colour layout of an RGB picture of any size; dimensions = GRID * GRID * 3."""
    cells = image.convert("RGB").resize((GRID, GRID), Image.Resampling.BOX)
    return oklab(np.asarray(cells, np.float64) / 255).ravel()


def views(image: Image.Image) -> Iterator[Image.Image]:
    """The picture, then crops of it: three by three places for each of `CROPS`."""
    yield image
    for share in CROPS:
        width, height = max(1, round(share * image.width)), max(1, round(share * image.height))
        for row in range(3):
            for column in range(3):
                left = (image.width - width) * column // 2
                top = (image.height - height) * row // 2
                yield image.crop((left, top, left + width, top + height))


class LocalImageIndex:
    """Image search over pictures in memory.

    Pictures come by the distance of the query's embedding to their nearest view, equal ones by id.

    Attributes:
        name: of the backend.
        version: a digest of the set with the layout of the embedding.
    """

    def __init__(self, images: Sequence[IndexedImage], name: str = "local images") -> None:
        """Embeds the set.

        Args:
            images: the set, in any order.
            name: of the backend.

        Raises:
            ValueError: an id stands twice.
        """
        ordered = sorted(images, key=lambda indexed: indexed.hit.id)
        self._hits = tuple(indexed.hit for indexed in ordered)
        if len({hit.id for hit in self._hits}) < len(self._hits):
            raise ValueError("an id stands twice in the set of pictures")
        digest = hashlib.sha256()
        for indexed in ordered:
            hit = indexed.hit
            fields = (hit.id, hit.title, hit.thumbnail, hit.source, query_key(indexed.image))
            digest.update(json.dumps(fields).encode() + b"\n")
        self.name = name
        self.version = f"{_LAYOUT} {digest.hexdigest()[:16]}"
        embedded = [[embed(view) for view in views(indexed.image)] for indexed in ordered]
        self._views = np.array(embedded, np.float32)
        """[pictures, views, dimensions]"""

    def search(self, query: Image.Image, top_k: int) -> tuple[ImageHit, ...]:
        """The nearest pictures; the whole set if it is smaller than `top_k`.

        Raises:
            ValueError: top_k is less than 1.
        """
        check_top_k(top_k)
        if not self._hits:
            return ()
        apart = self._views - embed(query).astype(np.float32)
        distances = np.square(apart).sum(axis=-1).min(axis=-1)
        # stable, so that equal distances keep the order of the ids
        nearest = np.argsort(distances, kind="stable")[:top_k]
        return tuple(self._hits[index] for index in nearest)
