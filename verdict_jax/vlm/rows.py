"""Prompts as token rows of one bucket, with their M-RoPE positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Int, Int32

from verdict_jax.vlm.config import Config
from verdict_jax.vlm.inputs import ModelInputs
from verdict_jax.vlm.windows import Picture


def expand_images(
    tokens: Int[np.ndarray, "time"], image_token_id: int, counts: Sequence[int]
) -> Int32[np.ndarray, "expanded"]:
    """Repeats the i-th placeholder counts[i] times.

    Raises:
        ValueError: the number of placeholders is not that of `counts`.
    """
    placeholders = tokens == image_token_id
    if placeholders.sum() != len(counts):
        raise ValueError(f"{placeholders.sum()} image placeholders for {len(counts)} pictures")
    repeats = np.ones(tokens.shape, np.int64)
    repeats[placeholders] = counts
    return np.repeat(tokens, repeats).astype(np.int32)


def mrope_positions(
    tokens: Int[np.ndarray, "time"], config: Config, grids: Sequence[tuple[int, int]]
) -> tuple[Int32[np.ndarray, "3 time"], int]:
    """M-RoPE positions (temporal, height, width) and the position after the last.

    Text advances all three axes by one a token. A picture of h x w merged tokens that starts at
    position p has temporal p, height p + row, width p + column, and the text after it goes on at
    p + max(h, w) (Qwen2-VL, arXiv:2409.12191, section 2.1; transformers' get_rope_index).

    Args:
        tokens: one row with its placeholders expanded, without padding.
        config: the placeholder's id and the merge size.
        grids: (rows, columns) in patches of each picture, in order.

    Raises:
        ValueError: the placeholders are not those of `grids`.
    """
    merge = config.vision.spatial_merge_size
    placeholder = tokens == config.image_token_id
    positions = np.empty((3, len(tokens)), np.int32)
    pending = iter(grids)
    at, position = 0, 0
    while at < len(tokens):
        if not placeholder[at]:
            positions[:, at] = position
            at, position = at + 1, position + 1
            continue
        grid = next(pending, None)
        if grid is None:
            raise ValueError(f"more image placeholders than {len(grids)} picture(s) fill")
        rows, columns = grid[0] // merge, grid[1] // merge
        end = at + rows * columns
        if end > len(tokens) or not placeholder[at:end].all():
            raise ValueError(f"too few image placeholders for a picture of {rows} x {columns}")
        row, column = np.indices((rows, columns), np.int32)
        positions[0, at:end] = position
        positions[1, at:end] = position + row.ravel()
        positions[2, at:end] = position + column.ravel()
        at, position = end, position + max(rows, columns)
    if next(pending, None) is not None:
        raise ValueError(f"fewer image placeholders than {len(grids)} picture(s) fill")
    return positions, position


@dataclass(frozen=True)
class TokenRow:
    """One prompt, before it is padded into a batch.

    Attributes:
        tokens: ids with the image placeholders expanded.
        positions: M-RoPE positions.
        feature_ids: the row of the flattened image features behind each placeholder, else -1.
        next_position: M-RoPE position of the token that follows.
    """

    tokens: Int32[np.ndarray, "time"]
    positions: Int32[np.ndarray, "3 time"]
    feature_ids: Int32[np.ndarray, "time"]
    next_position: int


def token_row(
    tokens: Int[np.ndarray, "time"],
    config: Config,
    pictures: Sequence[Picture],
) -> TokenRow:
    """A prompt of `prompting.encode_prompt` joined with its pictures.

    Args:
        tokens: ids with one placeholder a picture.
        config: the model.
        pictures: of `pack_patches`, in the order of the placeholders.

    Raises:
        ValueError: placeholders, grids and features do not match.
    """
    grids = [picture.grid for picture in pictures]
    counts = [rows * columns // config.vision.merge_unit for rows, columns in grids]
    features = [len(picture.feature_index) for picture in pictures]
    if features != counts:
        raise ValueError(f"pictures of {counts} tokens have {features} features")
    expanded = expand_images(tokens, config.image_token_id, counts)
    positions, next_position = mrope_positions(expanded, config, grids)
    feature_ids = np.full(expanded.shape, -1, np.int32)
    if counts:
        index = np.concatenate([picture.feature_index for picture in pictures])
        feature_ids[expanded == config.image_token_id] = index
    return TokenRow(expanded, positions, feature_ids, next_position)


def pack_tokens(
    rows: Sequence[TokenRow],
    num_rows: int,
    width: int,
    pad_id: int,
    side: Literal["right", "left"] = "right",
) -> ModelInputs:
    """Rows of one bucket, int32; rows past the last are all padding.

    Args:
        rows: at most `num_rows` prompts of at most `width` tokens.
        num_rows: rows of the bucket.
        width: tokens of the bucket.
        pad_id: the id that padding holds; its position is 0.
        side: where padding stands.

    Raises:
        ValueError: the rows do not fit.
    """
    if len(rows) > num_rows:
        raise ValueError(f"{len(rows)} rows do not fit a bucket of {num_rows}")
    tokens = np.full((num_rows, width), pad_id, np.int32)
    positions = np.zeros((3, num_rows, width), np.int32)
    mask = np.zeros((num_rows, width), bool)
    feature_ids = np.full((num_rows, width), -1, np.int32)
    for index, row in enumerate(rows):
        length = len(row.tokens)
        if length > width:
            raise ValueError(f"row {index} of {length} tokens does not fit a bucket of {width}")
        span = slice(0, length) if side == "right" else slice(width - length, width)
        tokens[index, span] = row.tokens
        positions[:, index, span] = row.positions
        mask[index, span] = True
        feature_ids[index, span] = row.feature_ids
    return ModelInputs(tokens, positions, mask, feature_ids)
