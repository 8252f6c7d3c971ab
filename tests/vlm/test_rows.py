"""Rows of a bucket and their M-RoPE positions, by hand and against transformers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLModel

from verdict_jax.vlm.config import Config, TextConfig, VisionConfig
from verdict_jax.vlm.rows import TokenRow, expand_images, mrope_positions, pack_tokens, token_row
from verdict_jax.vlm.windows import Picture

SETTINGS = settings(derandomize=True, deadline=None, max_examples=100)
IMAGE = 50

CONFIG = Config(
    vision=VisionConfig(2, 32, 32, 2, 3, 14, 2, 2, 112, 32, (1,)),
    text=TextConfig(64, 32, 32, 2, 2, 1, 1e-6, 1e6, (2, 3, 3), False, 4096),
    image_token_id=IMAGE,
    video_token_id=51,
    vision_start_token_id=52,
    vision_end_token_id=53,
    eos_token_ids=(1, 2),
    pad_token_id=0,
)

T = 9  # any text token
I = IMAGE  # noqa: E741


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def test_placeholders_are_repeated():
    tokens = ints(1, I, 2, I, 3)
    expanded = expand_images(tokens, I, [3, 1])
    assert expanded.tolist() == [1, I, I, I, 2, I, 3]
    assert expanded.dtype == np.int32
    assert expand_images(ints(1, 2), I, []).tolist() == [1, 2]
    for counts in ([], [3], [3, 1, 1]):
        with pytest.raises(ValueError, match=f"2 image placeholders for {len(counts)} pictures"):
            expand_images(tokens, I, counts)


@pytest.mark.parametrize(
    ("tokens", "grids", "positions", "next_position"),
    [
        ([T, T, T], [], [[0, 1, 2]] * 3, 3),
        # 2 x 3 merged tokens from position 2 on; text goes on at 2 + 3
        (
            [T, T, I, I, I, I, I, I, T, T],
            [(4, 6)],
            [
                [0, 1, 2, 2, 2, 2, 2, 2, 5, 6],
                [0, 1, 2, 2, 2, 3, 3, 3, 5, 6],
                [0, 1, 2, 3, 4, 2, 3, 4, 5, 6],
            ],
            7,
        ),
        # 3 x 1 from 1 (to 4), text, 2 x 2 from 6 (to 8), nothing after
        (
            [T, I, I, I, T, T, I, I, I, I],
            [(6, 2), (4, 4)],
            [
                [0, 1, 1, 1, 4, 5, 6, 6, 6, 6],
                [0, 1, 2, 3, 4, 5, 6, 6, 7, 7],
                [0, 1, 1, 1, 4, 5, 6, 7, 6, 7],
            ],
            8,
        ),
        # pictures that touch
        (
            [I, I, I],
            [(2, 4), (2, 2)],
            [[0, 0, 2], [0, 0, 2], [0, 1, 2]],
            3,
        ),
        ([], [], [[], [], []], 0),
    ],
)
def test_positions_by_hand(tokens, grids, positions, next_position):
    found, following = mrope_positions(ints(*tokens), CONFIG, grids)
    assert found.tolist() == positions
    assert found.dtype == np.int32
    assert following == next_position


@pytest.mark.parametrize(
    ("tokens", "grids", "message"),
    [
        ([T, I], [], "more image placeholders"),
        ([I, I, I], [(2, 4)], "more image placeholders"),
        ([T, I, T], [(2, 4)], "too few"),
        ([T, I], [(2, 4)], "too few"),
        ([T, T], [(2, 4)], "fewer"),
        ([I, T], [(2, 2), (2, 2)], "fewer"),
    ],
)
def test_positions_need_the_pictures_placeholders(tokens, grids, message):
    with pytest.raises(ValueError, match=message):
        mrope_positions(ints(*tokens), CONFIG, grids)


@pytest.fixture(scope="module")
def published_model() -> Qwen2_5_VLModel:
    """transformers' model without weights, for its get_rope_index."""
    config = Qwen2_5_VLConfig(
        vision_config={
            "depth": 1,
            "hidden_size": 32,
            "num_heads": 2,
            "intermediate_size": 32,
            "out_hidden_size": 32,
            "spatial_merge_size": 2,
            "fullatt_block_indexes": [0],
        },
        text_config={
            "hidden_size": 32,
            "intermediate_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "vocab_size": 64,
            "rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3]},
        },
    )
    with torch.device("meta"):
        return Qwen2_5_VLModel(config)


SEGMENTS = st.lists(
    st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4)), min_size=1, max_size=3
)


def row_of(segments: list[tuple[int, int, int]], tail: int) -> tuple[TokenRow, list]:
    """Text, picture, text, picture, ..., text; features numbered from 100."""
    tokens: list[int] = []
    grids = []
    for text, rows, columns in segments:
        tokens += [T] * text + [I]
        grids.append((2 * rows, 2 * columns))
    counts = [rows * columns // 4 for rows, columns in grids]
    starts = 100 + np.cumsum([0, *counts])
    pictures = [
        Picture(grid, np.arange(start, start + count, dtype=np.int32))
        for grid, start, count in zip(grids, starts, counts, strict=False)
    ]
    return token_row(ints(*tokens, *[T] * tail), CONFIG, pictures), grids


@settings(SETTINGS, max_examples=25)
@given(st.lists(st.tuples(SEGMENTS | st.just([]), st.integers(1, 5)), min_size=1, max_size=3))
@pytest.mark.parametrize("side", ["left", "right"])
def test_positions_equal_transformers(published_model, side, rows):
    packed_rows, grids = [], []
    for segments, tail in rows:
        row, row_grids = row_of(segments, tail)
        packed_rows.append(row)
        grids += row_grids
    width = max(len(row.tokens) for row in packed_rows) + 2
    inputs = pack_tokens(packed_rows, len(rows), width, pad_id=0, side=side)
    tokens, mask = torch.tensor(inputs.tokens).long(), torch.tensor(inputs.mask)
    positions, delta = published_model.get_rope_index(
        tokens,
        (tokens == I).int(),
        torch.tensor([[1, *grid] for grid in grids]) if grids else None,
        attention_mask=mask.int(),
    )
    assert inputs.positions[:, inputs.mask].tolist() == positions[:, mask].tolist()
    lengths = mask.sum(1, keepdim=True)
    assert [row.next_position for row in packed_rows] == (lengths + delta)[:, 0].tolist()


def test_features_stand_behind_the_placeholders():
    pictures = [Picture((2, 4), ints(5, 3)), Picture((4, 2), ints(20, 22))]
    row = token_row(ints(T, I, T, I), CONFIG, pictures)
    assert row.tokens.tolist() == [T, I, I, T, I, I]
    assert row.feature_ids.tolist() == [-1, 5, 3, -1, 20, 22]
    assert row.positions.tolist() == [
        [0, 1, 1, 3, 4, 4],
        [0, 1, 1, 3, 4, 5],
        [0, 1, 2, 3, 4, 4],
    ]
    assert row.next_position == 6
    with pytest.raises(ValueError, match=r"pictures of \[2\] tokens have \[3\] features"):
        token_row(ints(I), CONFIG, [Picture((2, 4), ints(1, 2, 3))])
    with pytest.raises(ValueError, match="1 image placeholders for 0 pictures"):
        token_row(ints(I), CONFIG, [])


@pytest.mark.parametrize("side", ["right", "left"])
def test_rows_are_padded_on_the_side_asked_for(side):
    picture = token_row(ints(T, I), CONFIG, [Picture((2, 4), ints(6, 7))])
    text = token_row(ints(4), CONFIG, [])
    inputs = pack_tokens([picture, text], num_rows=3, width=4, pad_id=99, side=side)
    right = side == "right"
    assert inputs.tokens.tolist() == [
        [T, I, I, 99] if right else [99, T, I, I],
        [4, 99, 99, 99] if right else [99, 99, 99, 4],
        [99] * 4,
    ]
    assert inputs.mask.astype(int).tolist() == [
        [1, 1, 1, 0] if right else [0, 1, 1, 1],
        [1, 0, 0, 0] if right else [0, 0, 0, 1],
        [0] * 4,
    ]
    assert inputs.feature_ids.tolist() == [
        [-1, 6, 7, -1] if right else [-1, -1, 6, 7],
        [-1] * 4,
        [-1] * 4,
    ]
    assert inputs.positions.tolist() == [
        [[0, 1, 1, 0] if right else [0, 0, 1, 1], [0] * 4, [0] * 4],
        [[0, 1, 1, 0] if right else [0, 0, 1, 1], [0] * 4, [0] * 4],
        [[0, 1, 2, 0] if right else [0, 0, 1, 2], [0] * 4, [0] * 4],
    ]
    assert {a.dtype for a in (inputs.tokens, inputs.positions, inputs.feature_ids)} == {
        np.dtype(np.int32)
    }


def test_rows_that_do_not_fit():
    text = token_row(ints(4, 5), CONFIG, [])
    with pytest.raises(ValueError, match="2 rows do not fit a bucket of 1"):
        pack_tokens([text, text], num_rows=1, width=4, pad_id=0)
    with pytest.raises(ValueError, match="row 0 of 2 tokens does not fit a bucket of 1"):
        pack_tokens([text], num_rows=1, width=1, pad_id=0)
