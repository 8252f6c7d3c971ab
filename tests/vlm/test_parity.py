"""Logits equal transformers' on torch, and would not if anything were wrong."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from verdict_jax.vlm import model, windows
from verdict_jax.vlm.attention import attend
from verdict_jax.vlm.config import VisionConfig
from verdict_jax.vlm.inputs import ModelInputs
from vlm.builders import (
    CASES,
    TOLERANCE,
    WINDOWS,
    Batch,
    Logits,
    Pair,
    compare,
    encode,
    forward,
    in_bfloat16,
    mixed_prompts,
    our_features,
    our_logits,
    pack,
    published_shapes,
    reference_inputs,
    reference_logits,
    split_rows,
)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", ["untied", "tied"])
def test_logits_equal_transformers(name: str, case: str, request: pytest.FixtureRequest) -> None:
    parity = CASES[case](request.getfixturevalue(name))
    assert parity.spread >= 1
    assert parity.difference <= TOLERANCE


def test_logits_at_the_published_3b_shapes(tmp_path: Path) -> None:
    cases = published_shapes(tmp_path)
    assert cases.pop("every vision block windowed").difference > 100 * TOLERANCE
    assert len(cases) == 2
    for parity in cases.values():
        assert parity.spread >= 1
        assert parity.difference <= TOLERANCE


def test_image_features_equal_transformers(untied: Pair) -> None:
    """Picture by picture in the order of the placeholders."""
    prompts = mixed_prompts()
    batch = pack(untied, prompts)
    features = our_features(untied, batch)
    assert features is not None
    flat = np.asarray(features).reshape(-1, features.shape[-1])
    ids = np.concatenate([row.feature_ids[row.feature_ids >= 0] for row in batch.rows])
    given = reference_inputs(untied.reference, prompts)
    with torch.no_grad():
        vision = untied.reference.model.visual
        expected = vision(given["pixel_values"], given["image_grid_thw"]).pooler_output.numpy()
    assert expected.std() >= 0.5
    np.testing.assert_allclose(flat[ids], expected, rtol=0, atol=TOLERANCE)


# ------------------------------------------------------------------- the test of the test


def wrong_text(pair: Pair, batch: Batch) -> Logits:
    """A fresh trace of the decoder, as it is patched now."""
    features = our_features(pair, batch)
    run = jax.jit(lambda params, inputs: model.forward(pair.config, params, inputs, features))
    return split_rows(run(pair.params, batch.inputs), batch)


def wrong_section(section: tuple[int, int, int]) -> Callable[[Pair, pytest.MonkeyPatch], Logits]:
    def run(pair: Pair, _: pytest.MonkeyPatch) -> Logits:
        config = replace(pair.config, text=replace(pair.config.text, mrope_section=section))
        return our_logits(replace(pair, config=config), pack(pair, mixed_prompts(), side="left"))

    return run


def wrong_vision(
    full: tuple[int, ...] | None = None, window: int | None = None
) -> Callable[[Pair, pytest.MonkeyPatch], Logits]:
    def run(pair: Pair, _: pytest.MonkeyPatch) -> Logits:
        vision = pair.config.vision
        changed = replace(
            vision,
            fullatt_block_indexes=vision.fullatt_block_indexes if full is None else full,
            window_size=vision.window_size if window is None else window,
        )
        other = replace(pair, config=replace(pair.config, vision=changed))
        # as many units as in the right bucket, so that the decoder is not compiled again
        count = WINDOWS * vision.window_units**2 // changed.window_units**2
        batch = pack(other, mixed_prompts(), windows=count, side="left")
        features = our_features(other, batch)
        return split_rows(forward(pair.config, pair.params, batch.inputs, features), batch)

    return run


def shifted_windows(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> Logits:
    """The first block holds one row and one column of units only, as in a sliding band."""

    def windowed(units: np.ndarray, side: int, fill: int) -> np.ndarray:
        ahead = [(side - 1, 0), (side - 1, 0)] + [(0, 0)] * (units.ndim - 2)
        return right(np.pad(units, ahead, constant_values=fill), side, fill)

    def grid(grid: tuple[int, int], config: VisionConfig) -> tuple[int, int]:
        side = config.window_units * config.spatial_merge_size
        ahead = side - config.spatial_merge_size
        return -(-(grid[0] + ahead) // side), -(-(grid[1] + ahead) // side)

    right = windows._windowed
    monkeypatch.setattr(windows, "_windowed", windowed)
    monkeypatch.setattr(windows, "_window_grid", grid)
    return our_logits(pair, pack(pair, mixed_prompts(), side="left"))


Attend = Callable[..., jax.Array]


def wrong_attention(change: Attend) -> Callable[[Pair, pytest.MonkeyPatch], Logits]:
    def run(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> Logits:
        monkeypatch.setattr(model, "attend", change)
        return wrong_text(pair, pack(pair, mixed_prompts(), side="left"))

    return run


def own_slots(q: jax.Array) -> jax.Array:
    return jnp.broadcast_to(jnp.arange(q.shape[1])[None, :], q.shape[:2])


def interleaved_heads(
    q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array, slots: Literal["own"], _: None
) -> jax.Array:
    """Head h reads kv head h % kv_heads instead of h // groups."""
    heads, kv_heads = q.shape[2], k.shape[2]
    order = np.arange(heads).reshape(-1, kv_heads).T.reshape(-1)
    return attend(q[:, :, order], k, v, mask, slots)[:, :, np.argsort(order)]


def transposed_patches(pair: Pair, _: pytest.MonkeyPatch) -> Logits:
    """2-D RoPE with rows and columns exchanged."""
    batch = pack(pair, mixed_prompts(), side="left")
    assert batch.patches is not None
    patches = replace(batch.patches, positions=batch.patches.positions[..., ::-1])
    return our_logits(pair, replace(batch, patches=patches))


def flat_positions(pair: Pair, _: pytest.MonkeyPatch) -> Logits:
    """1-D RoPE over pictures (known-fault V7)."""
    batch = pack(pair, mixed_prompts(), side="left")
    order = np.maximum(np.cumsum(batch.inputs.mask, axis=1, dtype=np.int32) - 1, 0)
    positions = np.broadcast_to(order, batch.inputs.positions.shape)
    return our_logits(pair, replace(batch, inputs=replace(batch.inputs, positions=positions)))


WRONG: dict[str, Callable[[Pair, pytest.MonkeyPatch], Logits]] = {
    "M-RoPE section permuted": wrong_section((3, 3, 2)),
    "1-D positions": flat_positions,
    "rows and columns exchanged": transposed_patches,
    "every vision block full": wrong_vision(full=(0, 1, 2, 3)),
    "every vision block windowed": wrong_vision(full=()),
    "wrong block full": wrong_vision(full=(0, 3)),
    "window of another size": wrong_vision(window=8),
    "window shifted": shifted_windows,
    "GQA heads interleaved": wrong_attention(interleaved_heads),
    "no causal mask": wrong_attention(lambda q, k, v, mask, slots, _: attend(q, k, v, mask)),
    "one token ahead": wrong_attention(
        lambda q, k, v, mask, *_: attend(q, k, v, mask, own_slots(q) + 1)
    ),
    "padding seen": wrong_attention(
        lambda q, k, v, mask, slots, _: attend(q, k, v, jnp.ones_like(mask), slots)
    ),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_fault_would_be_seen(fault: str, untied: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = WRONG[fault](untied, monkeypatch)
    reference = reference_logits(untied.reference, mixed_prompts())
    assert compare(wrong, reference).difference > 100 * TOLERANCE


# ------------------------------------------------------------------------------- bfloat16

UNIT_ROUNDOFF = 2.0**-8
"""Largest relative error of rounding to bfloat16 (8 significant bits)."""

ROUNDINGS_A_BLOCK = 20
"""Values a transformer block rounds on the way from its input to its output: 2 in each norm, 3
projections to q, k, v, 3 in rotating, 2 of scores and weights, 1 of the attended values, 1 in the
output projection, 4 in the gated MLP up to its product, 1 down, and 1 in each residual sum."""


def relative_error(logits: Logits, exact: Logits) -> float:
    flat, right = np.concatenate(logits), np.concatenate(exact)
    return float(np.sqrt(np.mean((flat - right) ** 2) / np.mean(right**2)))


def test_bfloat16(tied: Pair) -> None:
    """bf16 weights and activations against the same weights in fp32 (they are representable).

    Tolerance. Rounding to bf16 errs by at most u = 2**-8, and by u / sqrt(3) in root mean square
    where the error is uniform. R roundings on the way to a logit that err independently, each
    passed on at about the scale it has, give a relative error of sqrt(R) u / sqrt(3) in root mean
    square. R = 20 a block, and the towers have 7 blocks: sqrt(140 / 3) 2**-8 = .027. Since
    transformers rounds at the same places, its error is a second draw from the same distribution:
    ours may be at most 1.25 times as large.
    """
    prompts = mixed_prompts()
    batch = pack(tied, prompts)
    exact = reference_logits(tied.reference, prompts)
    half = in_bfloat16(tied)
    features = our_features(half, batch)
    assert features is not None and features.dtype == jnp.bfloat16
    hidden = jax.eval_shape(
        lambda params: model.forward_hidden(half.config, params, batch.inputs, features),
        half.params,
    )
    assert hidden.dtype == jnp.bfloat16
    logits = forward(half.config, half.params, batch.inputs, features)
    assert logits.dtype == jnp.float32
    ours = relative_error(split_rows(logits, batch), exact)
    theirs = relative_error(
        reference_logits(copy.deepcopy(tied.reference).bfloat16(), prompts), exact
    )
    blocks = tied.config.vision.depth + tied.config.text.num_hidden_layers
    derived = (blocks * ROUNDINGS_A_BLOCK / 3) ** 0.5 * UNIT_ROUNDOFF
    assert ours <= derived
    assert ours <= 1.25 * theirs


# ---------------------------------------------------------------- rows, padding, segments (V1)


def test_a_row_is_what_it_is_alone(untied: Pair) -> None:
    """A text row among rows of pictures, and each of these."""
    prompts = mixed_prompts()
    together = our_logits(untied, pack(untied, prompts))
    for row, alone in enumerate(prompts):
        assert (
            compare(our_logits(untied, pack(untied, [alone])), [together[row]]).difference <= 2e-5
        )


@pytest.mark.parametrize("padding", [0, 7, 64])
def test_padding_on_either_side_changes_nothing(padding: int, untied: Pair) -> None:
    prompts = mixed_prompts()
    expected = our_logits(untied, pack(untied, prompts))
    longest = max(len(row) for row in expected)
    for side in ("left", "right"):
        batch = pack(untied, prompts, width=longest + padding, side=side)
        assert compare(our_logits(untied, batch), expected).difference <= 2e-5


def test_what_padding_holds_changes_nothing(untied: Pair) -> None:
    batch = pack(untied, mixed_prompts())
    assert batch.patches is not None
    features = encode(untied.config, untied.params, batch.patches)
    inputs, padding = batch.inputs, ~np.asarray(batch.inputs.mask)
    dirty = ModelInputs(
        np.where(padding, 299, inputs.tokens),
        np.where(padding, 10_000, inputs.positions),
        inputs.mask,
        np.where(padding, 1, inputs.feature_ids),
    )
    clean, other = (
        split_rows(forward(untied.config, untied.params, given, features), batch)
        for given in (inputs, dirty)
    )
    assert compare(other, clean).difference == 0


def test_segments_equal_separate_rows(untied: Pair) -> None:
    """Two continuations of a prompt with a picture, packed behind it, see it and themselves."""
    prompts = mixed_prompts()[:1]
    batch = pack(untied, prompts)
    features = our_features(untied, batch)
    row = batch.rows[0]
    start = len(row.tokens)
    tails = [np.arange(50, 57, dtype=np.int32), np.arange(200, 205, dtype=np.int32)]

    def continued(parts: list[np.ndarray]) -> tuple[ModelInputs, np.ndarray]:
        inputs = jax.tree.map(np.copy, batch.inputs)
        segments = np.zeros(inputs.tokens.shape, np.int32)
        at = start
        for number, part in enumerate(parts, start=1):
            span = slice(at, at + len(part))
            inputs.tokens[0, span] = part
            inputs.mask[0, span] = True
            inputs.positions[:, 0, span] = row.next_position + np.arange(len(part))
            segments[0, span] = number
            at += len(part)
        return inputs, segments

    packed, segments = continued(tails)
    together = np.asarray(forward(untied.config, untied.params, packed, features, segments))[0]
    at = start
    for tail in tails:
        inputs, _ = continued([tail])
        alone = np.asarray(forward(untied.config, untied.params, inputs, features))[0]
        end = start + len(tail)
        assert np.abs(together[at : at + len(tail)] - alone[start:end]).max() <= 1e-5
        assert np.abs(together[:start] - alone[:start]).max() <= 1e-5
        at += len(tail)


def test_remat_changes_neither_logits_nor_gradients(untied: Pair) -> None:
    batch = pack(untied, mixed_prompts())
    features = our_features(untied, batch)
    weight = (
        np.random.default_rng(0).normal(size=(*batch.inputs.tokens.shape, 320))
        * batch.inputs.mask[:, :, None]
    )

    def loss(params: model.Params, remat: bool) -> jax.Array:
        logits = model.forward(untied.config, params, batch.inputs, features, remat=remat)
        return jnp.mean(logits * weight.astype(np.float32))

    gradient = jax.jit(jax.value_and_grad(loss), static_argnums=1)
    (plain, plain_gradient), (again, again_gradient) = (
        gradient(untied.params, remat) for remat in (False, True)
    )
    assert abs(plain - again) <= 1e-7
    for one, other in zip(
        jax.tree.leaves(plain_gradient["text"]),
        jax.tree.leaves(again_gradient["text"]),
        strict=True,
    ):
        assert np.abs(one).max() > 0
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6 + 1e-5 * np.abs(one).max())
