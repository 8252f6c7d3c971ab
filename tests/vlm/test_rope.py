"""Position tables of both towers, and the M-RoPE positions that enter them."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from verdict_jax.vlm import model
from verdict_jax.vlm.rope import inverse_frequencies, rotate, text_table, vision_table
from vlm.builders import (
    IMAGE,
    VISION_END,
    VISION_START,
    Pair,
    Prompt,
    in_bfloat16,
    mixed_prompts,
    pack,
    reference_inputs,
)

SETTINGS = settings(derandomize=True, deadline=None, max_examples=30)


@pytest.mark.parametrize(("dim", "theta"), [(8, 1e4), (16, 1e6), (40, 1e4), (128, 1e6)])
def test_inverse_frequencies(dim: int, theta: float) -> None:
    exact = [theta ** (-2 * i / dim) for i in range(dim // 2)]
    frequencies = inverse_frequencies(dim, theta)
    assert frequencies.dtype == np.float32
    np.testing.assert_allclose(frequencies, exact, rtol=3e-7)


def test_text_table_by_hand(tied: Pair) -> None:
    """Sections (1, 2, 1) of a head of 8: one frequency temporal, two height, one width."""
    config = tied.config.text
    assert (config.mrope_section, config.head_dim, config.rope_theta) == ((1, 2, 1), 8, 1e4)
    positions = np.array([[[3]], [[5]], [[7]]], np.int32)
    cos, sin = text_table(config, positions, jnp.float32)
    angles = [3 * 1.0, 5 * 0.1, 5 * 0.01, 7 * 0.001]
    np.testing.assert_allclose(cos[0, 0], np.cos(angles), atol=1e-6)
    np.testing.assert_allclose(sin[0, 0], np.sin(angles), atol=1e-6)


def test_vision_table_by_hand(untied: Pair) -> None:
    """A head of 16: four frequencies turn with the row, then the same four with the column."""
    config = untied.config.vision
    assert config.head_dim == 16
    cos, sin = vision_table(config, np.array([[[[3, 11]]]], np.int32))
    angles = [3 * 1.0, 3 * 0.1, 3 * 0.01, 3 * 0.001, 11 * 1.0, 11 * 0.1, 11 * 0.01, 11 * 0.001]
    np.testing.assert_allclose(cos[0, 0, 0], np.cos(angles), atol=2e-6)
    np.testing.assert_allclose(sin[0, 0, 0], np.sin(angles), atol=2e-6)


@SETTINGS
@given(st.integers(0, 2**32 - 1))
def test_rotation_is_complex_multiplication(seed: int) -> None:
    rng = np.random.default_rng(seed)
    heads = rng.normal(size=(1, 3, 2, 8)).astype(np.float32)
    angles = rng.uniform(-9, 9, (1, 3, 4)).astype(np.float32)
    turned = np.asarray(jax.jit(rotate)(heads, np.cos(angles), np.sin(angles)))
    pairs = (heads[..., :4] + 1j * heads[..., 4:]) * np.exp(1j * angles[:, :, None, :])
    np.testing.assert_allclose(turned[..., :4], pairs.real, atol=2e-6)
    np.testing.assert_allclose(turned[..., 4:], pairs.imag, atol=2e-6)


def test_bfloat16_tables_are_the_float32_ones_cast_once(untied: Pair) -> None:
    """Known-fault V4: angles in bf16 are off by whole turns from position 256 on."""
    config = untied.config.text
    positions = np.random.default_rng(0).integers(0, 32768, (3, 2, 50)).astype(np.int32)
    single = text_table(config, positions, jnp.float32)
    half = text_table(config, positions, jnp.bfloat16)
    theta, dim = config.rope_theta, config.head_dim
    axis = np.repeat(np.arange(3), config.mrope_section)
    angles = np.moveaxis(positions[axis], 0, -1) * theta ** (-2 * np.arange(dim // 2) / dim)
    for exact, full, cast in zip((np.cos(angles), np.sin(angles)), single, half, strict=True):
        assert (full.dtype, cast.dtype) == (jnp.float32, jnp.bfloat16)
        # an angle of 2**15 has a spacing of 2**-8 in float32
        np.testing.assert_allclose(full, exact, rtol=0, atol=2**-8)
        np.testing.assert_array_equal(cast, full.astype(jnp.bfloat16))


def test_a_bfloat16_model_asks_for_these_tables(
    untied: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def table(config, positions, dtype):
        seen.append((positions.dtype, jnp.dtype(dtype)))
        return text_table(config, positions, dtype)

    monkeypatch.setattr(model, "text_table", table)
    params = in_bfloat16(untied).params
    inputs = pack(untied, mixed_prompts()).inputs
    jax.eval_shape(lambda params: model.forward(untied.config, params, inputs), params)
    assert seen == [(jnp.dtype(jnp.int32), jnp.dtype(jnp.bfloat16))]
    # the encoder rotates in float32, as published
    tables = vision_table(untied.config.vision, np.zeros((1, 1, 1, 2), np.int32))
    assert {table.dtype for table in tables} == {jnp.dtype(jnp.float32)}


# ------------------------------------------------------------------------- positions (V1)


def golden_prompts() -> list[Prompt]:
    """Pictures of 2 x 3 and 1 x 2 merge units between text; and text alone."""
    tokens = [7, 8, VISION_START, IMAGE, VISION_END, 9, VISION_START, IMAGE, VISION_END, 10]
    pictures = (Image.new("RGB", (24, 16)), Image.new("RGB", (16, 8)))
    return [
        Prompt(np.array(tokens, np.int32), pictures),
        Prompt(np.array([7, 8, 9], np.int32)),
    ]


GOLDEN = [
    [0, 1, 2, 3, 3, 3, 3, 3, 3, 6, 7, 8, 9, 9, 11, 12],
    [0, 1, 2, 3, 3, 3, 4, 4, 4, 6, 7, 8, 9, 9, 11, 12],
    [0, 1, 2, 3, 4, 5, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12],
]
"""Temporal, height and width of the first prompt, by hand."""


def test_positions_equal_hand_written_goldens(untied: Pair) -> None:
    batch = pack(untied, golden_prompts(), width=20, side="left")
    positions = np.asarray(batch.inputs.positions)
    assert positions[:, 0, 4:].tolist() == GOLDEN
    assert positions[:, 1, 17:].tolist() == [[0, 1, 2]] * 3
    assert batch.next_position[:2].tolist() == [13, 3]
    assert batch.inputs.mask.sum(axis=1).tolist() == [16, 3, 0, 0]


def test_positions_equal_transformers(untied: Pair) -> None:
    for prompts in (golden_prompts(), mixed_prompts()):
        batch = pack(untied, prompts, side="left")
        given = reference_inputs(untied.reference, prompts)
        ids, mask = given["input_ids"], given["attention_mask"]
        assert ids is not None and mask is not None
        with torch.no_grad():
            expected, deltas = untied.reference.model.get_rope_index(
                ids, given["mm_token_type_ids"], given["image_grid_thw"], attention_mask=mask
            )
        for row, real in enumerate(mask.bool().numpy()):
            ours = np.asarray(batch.inputs.positions)[:, row][:, batch.inputs.mask[row]]
            np.testing.assert_array_equal(ours, expected[:, row].numpy()[:, real])
            assert batch.next_position[row] == real.sum() + deltas[row].item()


def test_each_axis_has_its_own_frequencies(untied: Pair) -> None:
    """Moving one axis changes that section of the table and nothing else."""
    config = replace(untied.config.text, mrope_section=(2, 3, 3))
    start = np.full((3, 1, 1), 5, np.int32)
    before = np.asarray(text_table(config, start, jnp.float32)[1])[0, 0]
    for axis, section in enumerate((slice(0, 2), slice(2, 5), slice(5, 8))):
        moved = start.copy()
        moved[axis] += 1
        changed = np.asarray(text_table(config, moved, jnp.float32)[1])[0, 0] != before
        expected = np.zeros(8, bool)
        expected[section] = True
        assert changed.tolist() == expected.tolist()
