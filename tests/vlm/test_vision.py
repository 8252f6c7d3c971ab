"""Attention windows are blocks (known-fault V2); padding reaches no patch (V3)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from verdict_jax.vlm.inputs import PatchBatch
from vlm.builders import IMAGES, WINDOWS, Pair, encode, our_features, pack, prompt


def two_pictures():
    """5 x 3 merge units, no multiple of a window's 2 x 2; and 3 x 4."""
    return [prompt(np.random.default_rng(7), (40, 24), (24, 32))]


def features_of(pair: Pair, patches: PatchBatch, full: tuple[int, ...] | None) -> np.ndarray:
    """[images, windows, units of a window, width]"""
    config = pair.config
    if full is not None:
        config = replace(config, vision=replace(config.vision, fullatt_block_indexes=full))
    units = config.vision.window_units**2
    features = np.asarray(encode(config, pair.params, patches))
    return features.reshape(*features.shape[:1], -1, units, features.shape[-1])


def patches_of(pair: Pair) -> PatchBatch:
    patches = pack(pair, two_pictures()).patches
    assert patches is not None
    return patches


def perturbed(patches: PatchBatch, image: int, window: int, slot: int) -> PatchBatch:
    assert patches.mask[image, window, slot]
    pixels = np.array(patches.patches)
    pixels[image, window, slot] += 1
    return replace(patches, patches=pixels)


@pytest.mark.parametrize(("image", "window"), [(0, 0), (0, 1), (0, 2), (0, 5), (1, 0), (1, 3)])
def test_a_patch_moves_its_own_window_only(image: int, window: int, untied: Pair) -> None:
    patches = patches_of(untied)
    before = features_of(untied, patches, full=())
    after = features_of(untied, perturbed(patches, image, window, 0), full=())
    changed = np.abs(after - before).max(axis=(2, 3)) > 0
    expected = np.zeros((IMAGES, WINDOWS), bool)
    expected[image, window] = True
    assert changed.tolist() == expected.tolist()
    # every unit of the window sees the patch
    units = patches.mask[image, window].reshape(-1, untied.config.vision.merge_unit).all(axis=1)
    moved = np.abs(after - before)[image, window].max(axis=1)
    assert (moved[units] > 1e-3).all()


def test_full_blocks_reach_the_whole_picture_and_no_other(untied: Pair) -> None:
    patches = patches_of(untied)
    before = features_of(untied, patches, full=None)
    after = features_of(untied, perturbed(patches, 0, 5, 0), full=None)
    moved = np.abs(after - before).max(axis=3)
    real = patches.mask.reshape(IMAGES, WINDOWS, -1, untied.config.vision.merge_unit).all(axis=3)
    assert (moved[0][real[0]] > 0).all()
    assert moved[1:].max() == 0


def test_what_padding_holds_changes_nothing(untied: Pair) -> None:
    patches = patches_of(untied)
    padding = ~patches.mask
    dirty = PatchBatch(
        np.where(padding[..., None], np.float32(1e4), patches.patches),
        np.where(padding[..., None], np.int32(10_000), patches.positions),
        patches.mask,
    )
    real = patches.mask.reshape(IMAGES, WINDOWS, -1, untied.config.vision.merge_unit).all(axis=3)
    clean = features_of(untied, patches, full=None)[real]
    np.testing.assert_array_equal(features_of(untied, dirty, full=None)[real], clean)


@pytest.mark.parametrize(("images", "windows"), [(4, 6), (3, 8)])
def test_bucketed_equals_unpadded(images: int, windows: int, untied: Pair) -> None:
    def tokens(images: int, windows: int) -> np.ndarray:
        batch = pack(untied, two_pictures(), images=images, windows=windows)
        features = our_features(untied, batch)
        assert features is not None
        ids = batch.rows[0].feature_ids
        return np.asarray(features).reshape(-1, features.shape[-1])[ids[ids >= 0]]

    expected = tokens(2, 6)
    assert expected.std() > 0.5
    np.testing.assert_allclose(tokens(images, windows), expected, rtol=0, atol=2e-5)


def test_each_picture_is_what_it_is_alone(untied: Pair) -> None:
    first, second = two_pictures()[0].pictures
    together = features_of(untied, patches_of(untied), full=None)
    for index, image in enumerate((first, second)):
        alone = replace(two_pictures()[0], pictures=(image,), tokens=two_pictures()[0].tokens[:3])
        patches = pack(untied, [alone]).patches
        assert patches is not None
        real = patches.mask[0].reshape(WINDOWS, -1, untied.config.vision.merge_unit).all(axis=2)
        single = features_of(untied, patches, full=None)[0]
        np.testing.assert_allclose(together[index][real], single[real], rtol=0, atol=2e-5)
