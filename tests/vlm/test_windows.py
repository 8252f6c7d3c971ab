"""Attention windows of pictures equal transformers' (known-fault V2)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.vision_utils import get_vision_position_ids, get_vision_window_index

from verdict_jax.vlm.config import VisionConfig
from verdict_jax.vlm.images import ProcessedImage
from verdict_jax.vlm.windows import num_windows, pack_patches

SETTINGS = settings(derandomize=True, deadline=None, max_examples=60)


def vision_config(patch_size: int, window_size: int, merge: int = 2) -> VisionConfig:
    return VisionConfig(2, 32, 32, 2, 3, patch_size, merge, 2, window_size, 32, (1,))


def numbered(rows: int, columns: int, config: VisionConfig, start: float = 1) -> ProcessedImage:
    """A picture whose patch p is filled with start + p."""
    count = rows * columns
    values = start + np.arange(count, dtype=np.float32)
    return ProcessedImage(np.repeat(values[:, None], config.patch_dim, axis=1), (rows, columns))


def test_windows_by_hand():
    """2 x 3 merge units in windows of 2 x 2: the second window lacks its right column."""
    config = vision_config(patch_size=1, window_size=4)
    assert config.window_units == 2
    batch, (packed,) = pack_patches([numbered(4, 6, config)], config, num_images=1, num_windows=3)
    first = [1, 2, 3, 4, 5, 6, 7, 8, 13, 14, 15, 16, 17, 18, 19, 20]
    second = [9, 10, 11, 12, 0, 0, 0, 0, 21, 22, 23, 24, 0, 0, 0, 0]
    assert batch.patches[0, :, :, 0].tolist() == [first, second, [0] * 16]
    assert (batch.patches == batch.patches[..., :1]).all()
    assert batch.mask[0].astype(int).tolist() == [
        [1] * 16,
        [1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0],
        [0] * 16,
    ]
    assert batch.positions[0, 0].tolist() == [
        *([0, 0], [0, 1], [1, 0], [1, 1], [0, 2], [0, 3], [1, 2], [1, 3]),
        *([2, 0], [2, 1], [3, 0], [3, 1], [2, 2], [2, 3], [3, 2], [3, 3]),
    ]
    assert batch.positions[0, 1, :4].tolist() == [[0, 4], [0, 5], [1, 4], [1, 5]]
    assert batch.positions[0, 1, 8:12].tolist() == [[2, 4], [2, 5], [3, 4], [3, 5]]
    # raster order of tokens: (0,0) (0,1) (0,2) (1,0) (1,1) (1,2)
    assert packed.grid == (4, 6)
    assert packed.feature_index.tolist() == [0, 1, 4, 2, 3, 6]


def test_second_picture_starts_after_the_first_ones_windows():
    config = vision_config(patch_size=1, window_size=4)
    pictures = [numbered(4, 6, config), numbered(2, 2, config, start=100)]
    batch, (first, second) = pack_patches(pictures, config, num_images=3, num_windows=2)
    assert first.feature_index.tolist() == [0, 1, 4, 2, 3, 6]
    assert second.feature_index.tolist() == [8]
    assert batch.patches.shape == (3, 2, 16, config.patch_dim)
    assert batch.patches[1, 0, :4, 0].tolist() == [100, 101, 102, 103]
    assert batch.mask.sum(axis=(1, 2)).tolist() == [24, 4, 0]
    assert batch.mask.dtype == bool
    assert batch.positions.dtype == first.feature_index.dtype == np.int32


SIZES = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=3)


@SETTINGS
@given(SIZES, st.integers(1, 4), st.integers(1, 3), st.integers(0, 2))
def test_windows_equal_transformers(sizes, window_units, merge, spare):
    config = vision_config(patch_size=1, window_size=window_units * merge, merge=merge)
    grids = [(rows * merge, columns * merge) for rows, columns in sizes]
    pictures, start = [], 1
    for rows, columns in grids:
        pictures.append(numbered(rows, columns, config, start))
        start += rows * columns
    count = max(num_windows(grid, config) for grid in grids) + spare
    batch, packed = pack_patches(pictures, config, len(grids) + spare, count)

    grid_thw = torch.tensor([[1, *grid] for grid in grids])
    window_index, bounds = get_vision_window_index(grid_thw, merge, config.window_size, 1)
    units = torch.arange(1, start).reshape(-1, config.merge_unit)[window_index].reshape(-1)
    expected = [units[a:b].tolist() for a, b in zip(bounds[:-1], bounds[1:], strict=True)]
    rows_of_windows = zip(
        batch.patches[..., 0].reshape(-1, config.window_slots),
        batch.mask.reshape(-1, config.window_slots),
        strict=True,
    )
    windows = [values[real].tolist() for values, real in rows_of_windows if real.any()]
    assert windows == expected
    assert (batch.patches[~batch.mask] == 0).all()

    order = np.argsort(batch.patches[..., 0][batch.mask])
    positions = get_vision_position_ids(grid_thw, merge)
    assert batch.positions[batch.mask][order].tolist() == positions.tolist()

    # the features of unit u, placed where the encoder puts them, come back in raster order
    features = batch.patches.reshape(-1, config.merge_unit, config.patch_dim)[:, 0, 0]
    gathered = np.concatenate([features[picture.feature_index] for picture in packed])
    assert gathered.tolist() == list(range(1, start, config.merge_unit))


def test_what_does_not_fit_is_named():
    config = vision_config(patch_size=1, window_size=4)
    picture = numbered(4, 6, config)
    with pytest.raises(ValueError, match="2 pictures do not fit a bucket of 1"):
        pack_patches([picture, picture], config, num_images=1, num_windows=2)
    with pytest.raises(ValueError, match="picture 0: 2 windows do not fit 1"):
        pack_patches([picture], config, num_images=1, num_windows=1)
    odd = ProcessedImage(picture.patches[:15], (3, 5))
    with pytest.raises(ValueError, match="picture 0: .*merge size of 2"):
        pack_patches([odd], config, num_images=1, num_windows=9)
    wrong = ProcessedImage(picture.patches[:, :3], (4, 6))
    with pytest.raises(ValueError, match="picture 0"):
        pack_patches([wrong], config, num_images=1, num_windows=9)
