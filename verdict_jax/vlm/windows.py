"""Pictures in attention windows: rows of one bucket for the vision encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int32, Shaped

from verdict_jax.vlm.config import VisionConfig
from verdict_jax.vlm.images import ProcessedImage
from verdict_jax.vlm.inputs import PatchBatch


@dataclass(frozen=True)
class Picture:
    """One picture among the features of a batch.

    Attributes:
        grid: (rows, columns) in patches.
        feature_index: the rows of its merged tokens, in raster order, in the flattened features.
    """

    grid: tuple[int, int]
    feature_index: Int32[np.ndarray, "tokens"]


def num_windows(grid: tuple[int, int], config: VisionConfig) -> int:
    """Attention windows that a picture of this patch grid is cut into."""
    rows, columns = _window_grid(grid, config)
    return rows * columns


def _window_grid(grid: tuple[int, int], config: VisionConfig) -> tuple[int, int]:
    side = config.window_units * config.spatial_merge_size
    return -(-grid[0] // side), -(-grid[1] // side)


def _windowed(
    units: Shaped[np.ndarray, "unit_rows unit_columns *rest"], side: int, fill: int
) -> Shaped[np.ndarray, "windows window_units *rest"]:
    """Blocks of side x side units, in raster order of blocks and of units within a block."""
    rows, columns, *rest = units.shape
    block_rows, block_columns = -(-rows // side), -(-columns // side)
    padding = [(0, block_rows * side - rows), (0, block_columns * side - columns)]
    padded = np.pad(units, padding + [(0, 0)] * len(rest), constant_values=fill)
    blocks = padded.reshape(block_rows, side, block_columns, side, *rest).swapaxes(1, 2)
    return blocks.reshape(block_rows * block_columns, side**2, *rest)


def pack_patches(
    images: Sequence[ProcessedImage], config: VisionConfig, num_images: int, num_windows: int
) -> tuple[PatchBatch, tuple[Picture, ...]]:
    """Pictures as rows of one bucket, with the place of each picture's tokens in the features.

    Each patch grid is cut into windows of window_units x window_units merge units, in raster
    order, as transformers' get_vision_window_index blocks it. A window's units stand in raster
    order at fixed slots; the slots past the picture's edge, and the windows and images past the
    last, are padding.

    Args:
        images: at most `num_images` pictures.
        config: sizes of patch, merge unit and window.
        num_images: images of the bucket.
        num_windows: windows of the bucket, at least those of the largest picture.

    Returns:
        The batch (float32 patches, int32 positions), and the pictures among the encoder's features
        [num_images * num_windows * window_units**2, width].

    Raises:
        ValueError: a picture does not fit the bucket or does not match `config`.
    """
    if len(images) > num_images:
        raise ValueError(f"{len(images)} pictures do not fit a bucket of {num_images}")
    merge, side = config.spatial_merge_size, config.window_units
    units_per_image = num_windows * side**2
    shape = (num_images, num_windows, config.window_slots)
    patches = np.zeros((*shape, config.patch_dim), np.float32)
    positions = np.zeros((*shape, 2), np.int32)
    mask = np.zeros(shape, bool)
    packed = []
    for index, image in enumerate(images):
        rows, columns = image.grid[0] // merge, image.grid[1] // merge
        expected = (rows * columns * config.merge_unit, config.patch_dim)
        if image.grid != (rows * merge, columns * merge) or image.patches.shape != expected:
            raise ValueError(
                f"picture {index}: patches {image.patches.shape} of grid {image.grid} do not "
                f"match a merge size of {merge} and {config.patch_dim} pixels a patch"
            )
        block_rows, block_columns = _window_grid(image.grid, config)
        count = block_rows * block_columns
        if count > num_windows:
            raise ValueError(f"picture {index}: {count} windows do not fit {num_windows}")
        pixels = image.patches.reshape(rows, columns, config.merge_unit, config.patch_dim)
        places = _patch_positions(rows, columns, merge)
        real = np.ones((rows, columns, config.merge_unit), bool)
        patches[index, :count] = _windowed(pixels, side, 0).reshape(count, *shape[2:], -1)
        positions[index, :count] = _windowed(places, side, 0).reshape(count, *shape[2:], 2)
        mask[index, :count] = _windowed(real, side, 0).reshape(count, *shape[2:])
        tokens = np.arange(rows * columns, dtype=np.int32).reshape(rows, columns)
        slots = _windowed(tokens, side, -1).reshape(-1)
        filled = slots >= 0
        index_of_token = np.empty(rows * columns, np.int32)
        index_of_token[slots[filled]] = np.flatnonzero(filled) + index * units_per_image
        packed.append(Picture(image.grid, index_of_token))
    return PatchBatch(patches, positions, mask), tuple(packed)


def _patch_positions(
    rows: int, columns: int, merge: int
) -> Int32[np.ndarray, "unit_rows unit_columns merge_unit 2"]:
    """(row, column) of every patch, merge unit by merge unit."""
    row, column, inner_row, inner_column = np.indices((rows, columns, merge, merge), np.int32)
    places = np.stack([row * merge + inner_row, column * merge + inner_column], axis=-1)
    return places.reshape(rows, columns, merge**2, 2)
