"""Pictures of a batch encoded once, for all who read them."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
from jaxtyping import Float
from PIL import Image

from verdict_jax.vlm.buckets import bucket
from verdict_jax.vlm.config import Config
from verdict_jax.vlm.images import (
    ImageError,
    ImageProcessor,
    ProcessedImage,
    load_image,
)
from verdict_jax.vlm.inputs import PatchBatch
from verdict_jax.vlm.model import encode_images
from verdict_jax.vlm.parameters import Params
from verdict_jax.vlm.windows import Picture, num_windows, pack_patches

ImageSource = Path | bytes | Image.Image

encode_patches = jax.jit(encode_images, static_argnames="config")
"""The vision tower on one bucket of pictures."""


@dataclass(frozen=True)
class EncodedPictures:
    """The pictures of a batch of rows.

    Attributes:
        features: of the vision tower; None where no row has a picture, or some row's cannot be
            used (the batch is then to be started anew without it).
        patches: what they were computed from, for a training that computes them anew.
        rows: each row's pictures, in order; none for a row that cannot be used.
        reasons: one line for each row with a picture that cannot be read or processed.
    """

    features: Float[jax.Array, "images units width"] | None
    patches: PatchBatch | None
    rows: tuple[tuple[Picture, ...], ...]
    reasons: Mapping[int, str]


@dataclass(frozen=True)
class _Encoded:
    features: Float[jax.Array, "images units width"] | None
    patches: PatchBatch | None
    pictures: Mapping[str, Picture]


class PictureMemo:
    """The features of the last few batches, by what the pictures show.

    An entry is a function of its batch alone, so a hit and a miss give the same bits.
    """

    def __init__(self, capacity: int = 2) -> None:
        self._capacity = capacity
        self._entries: OrderedDict[tuple[str, ...], _Encoded] = OrderedDict()

    def get(self, batch: tuple[str, ...]) -> _Encoded | None:
        """The batch's entry, which becomes the youngest."""
        if batch in self._entries:
            self._entries.move_to_end(batch)
        return self._entries.get(batch)

    def put(self, batch: tuple[str, ...], encoded: _Encoded) -> None:
        """Stores an entry; the eldest goes when there are too many."""
        self._entries[batch] = encoded
        while len(self._entries) > self._capacity:
            self._entries.popitem(last=False)


def encode_pictures(
    config: Config,
    params: Params,
    processor: ImageProcessor,
    memo: PictureMemo,
    rows: Sequence[Sequence[ImageSource]],
) -> EncodedPictures:
    """Reads, processes and encodes the pictures of a batch, unless `memo` knows the batch.

    A picture that stands in several rows is encoded once. The bucket is that of the number of
    pictures with repeats, so that it does not depend on which of them are alike. Where a row
    cannot be used, nothing is encoded: its reason is part of the result.
    """
    reasons: dict[int, str] = {}
    images: dict[str, Image.Image] = {}
    digests: list[list[str]] = []
    for row, sources in enumerate(rows):
        digests.append([])
        for source in sources:
            try:
                image = load_image(source)
            except ImageError as error:
                reasons[row] = str(error)
                break
            digest = hashlib.sha256(repr(image.size).encode() + image.tobytes()).hexdigest()
            images[digest] = image
            digests[row].append(digest)
    batch = tuple(digest for row in digests for digest in row)
    encoded = None if reasons else memo.get(batch)
    if encoded is None:
        processed: dict[str, ProcessedImage] = {}
        unusable: dict[str, str] = {}
        for digest, image in images.items():
            try:
                processed[digest] = processor.process(image)
            except ImageError as error:
                unusable[digest] = str(error)
        for row, names in enumerate(digests):
            for reason in [unusable[name] for name in names if name in unusable]:
                reasons.setdefault(row, reason)
        encoded = _Encoded(None, None, {})
        if processed:
            patches, pictures = _packed(config, processed, len(batch))
            features = None if reasons else encode_patches(config, params, patches)
            named = dict(zip(processed, pictures, strict=True))
            encoded = _Encoded(features, None if reasons else patches, named)
        if not reasons:
            memo.put(batch, encoded)
    found = tuple(
        () if row in reasons else tuple(encoded.pictures[name] for name in names)
        for row, names in enumerate(digests)
    )
    return EncodedPictures(encoded.features, encoded.patches, found, reasons)


def _packed(
    config: Config, processed: Mapping[str, ProcessedImage], count: int
) -> tuple[PatchBatch, tuple[Picture, ...]]:
    windows = max(num_windows(image.grid, config.vision) for image in processed.values())
    return pack_patches(list(processed.values()), config.vision, bucket(count), bucket(windows))
