"""Masked grouped-query attention against a plain numpy sum."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verdict_jax.vlm import attention
from verdict_jax.vlm.attention import attend

jitted = jax.jit(attend)

SETTINGS = settings(derandomize=True, deadline=None, max_examples=25)


def plain_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """Head by head in float64; `allowed` is [batch, time, slots]."""
    out = np.zeros(q.shape)
    groups = q.shape[2] // k.shape[2]
    for row, head in np.ndindex(q.shape[0], q.shape[2]):
        keys, values = k[row, :, head // groups], v[row, :, head // groups]
        scores = q[row, :, head].astype(np.float64) @ keys.T / np.sqrt(q.shape[3])
        weights = np.where(allowed[row], np.exp(scores), 0)
        out[row, :, head] = weights / weights.sum(axis=-1, keepdims=True) @ values
    return out


def arrays(
    rng: np.random.Generator, time: int, slots: int, heads: int = 6, kv_heads: int = 2
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    shapes = ((2, time, heads, 4), (2, slots, kv_heads, 4), (2, slots, kv_heads, 4))
    q, k, v = (rng.normal(size=shape).astype(np.float32) for shape in shapes)
    return q, k, v


@SETTINGS
@given(st.integers(0, 2**32 - 1), st.booleans(), st.booleans())
def test_equals_plain_attention(seed: int, causal: bool, segmented: bool) -> None:
    rng = np.random.default_rng(seed)
    time = 7
    q, k, v = arrays(rng, time, time)
    key_mask = rng.random((2, time)) < 0.7
    key_mask[:, 0] = True
    slots = np.broadcast_to(np.arange(time), (2, time))
    segments = np.sort(rng.integers(0, 3, (2, time)), axis=1)
    segments[:, 0] = 0
    allowed = np.broadcast_to(key_mask[:, None, :], (2, time, time)).copy()
    if causal:
        allowed &= slots[:, None, :] <= slots[:, :, None]
    if segmented:
        own = segments[:, None, :] == segments[:, :, None]
        allowed &= own | (segments[:, None, :] == 0)
    out = jitted(
        jnp.asarray(q),
        jnp.asarray(k),
        jnp.asarray(v),
        jnp.asarray(key_mask),
        jnp.asarray(slots) if causal else None,
        jnp.asarray(segments) if segmented else None,
    )
    np.testing.assert_allclose(out, plain_attention(q, k, v, allowed), rtol=0, atol=2e-6)


def test_queries_of_a_cache_see_slots_up_to_their_own() -> None:
    rng = np.random.default_rng(0)
    q, k, v = arrays(rng, 2, 9)
    places = np.array([[3, 4], [6, 7]])
    filled = np.arange(9)[None] < np.array([[5], [8]])
    out = jitted(q, k, v, filled, places)
    allowed = filled[:, None, :] & (np.arange(9)[None, None] <= places[:, :, None])
    np.testing.assert_allclose(out, plain_attention(q, k, v, allowed), rtol=0, atol=2e-6)


def test_a_query_without_keys_stays_finite() -> None:
    q, k, v = arrays(np.random.default_rng(0), 3, 3)
    out = jitted(q, k, v, np.zeros((2, 3), bool))
    assert np.isfinite(out).all()


def test_bfloat16_scores_are_float32() -> None:
    """Two keys whose scores differ by less than bfloat16 can tell at that size: the softmax of
    rounded scores would give 1/2 each."""
    q = jnp.full((1, 1, 1, 4), 16.0, jnp.bfloat16)
    k = jnp.full((1, 2, 1, 4), 16.0, jnp.bfloat16).at[0, 1, 0, 0].set(16.125)
    v = jnp.array([[[[0.0] * 4], [[1.0] * 4]]], jnp.bfloat16)
    out = jitted(q, k, v, np.ones((1, 2), bool))
    assert out.dtype == jnp.bfloat16
    # the scores are 512 and 513
    np.testing.assert_allclose(out.astype(jnp.float32), 1 / (1 + np.exp(-1)), atol=2**-8)


@pytest.mark.parametrize("segmented", [False, True])
def test_long_rows_are_attended_in_chunks(segmented: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 8 for 24 queries give what one piece does, and never hold all scores at once."""
    rng = np.random.default_rng(1)
    time = 24
    q, k, v = map(jnp.asarray, arrays(rng, time, time))
    key_mask = np.ones((2, time), bool)
    key_mask[0, :3] = False
    key_mask[1, -9:] = False
    slots = jnp.broadcast_to(jnp.arange(time), (2, time))
    segments = jnp.asarray(np.sort(rng.integers(0, 4, (2, time)), axis=1)) if segmented else None

    def run(chunk: int) -> tuple[np.ndarray, bool]:
        monkeypatch.setattr(attention, "CHUNK", chunk)

        def attended(q: jax.Array) -> jax.Array:
            return attend(q, k, v, jnp.asarray(key_mask), slots, segments)

        whole_scores = f"f32[2,2,3,{time},{time}]"
        return np.asarray(jax.jit(attended)(q)), whole_scores in str(jax.make_jaxpr(attended)(q))

    whole, whole_scores = run(attention.CHUNK)
    chunked, chunked_scores = run(8)
    np.testing.assert_allclose(chunked[0, 3:], whole[0, 3:], rtol=0, atol=2e-6)
    np.testing.assert_allclose(chunked[1], whole[1], rtol=0, atol=2e-6)
    assert whole_scores and not chunked_scores
    # a length that is no multiple of the chunk is attended at once
    ragged, ragged_scores = run(7)
    np.testing.assert_allclose(ragged, whole, rtol=0, atol=2e-6)
    assert ragged_scores


@pytest.mark.parametrize("segmented", [False, True])
@pytest.mark.parametrize("time", [9, 256, 258, 320])
def test_a_row_attends_to_its_own_tokens(time: int, segmented: bool) -> None:
    """In pieces or at once, the values and gradients of slots written out."""
    rng = np.random.default_rng(time)
    q, k, v = map(jnp.asarray, arrays(rng, time, time))
    key_mask = rng.random((2, time)) < 0.8
    key_mask[:, 0] = True
    segments = np.sort(rng.integers(0, 4, (2, time)), axis=1)
    segments[:, 0] = 0
    slots = np.broadcast_to(np.arange(time), (2, time))
    marks = jnp.asarray(segments) if segmented else None

    def value(q: jax.Array, k: jax.Array, v: jax.Array, own: bool) -> jax.Array:
        where = "own" if own else jnp.asarray(slots)
        return jnp.sum(jnp.sin(attend(q, k, v, jnp.asarray(key_mask), where, marks)))

    allowed = key_mask[:, None, :] & (slots[:, None, :] <= slots[:, :, None])
    if segmented:
        allowed &= (segments[:, None, :] == segments[:, :, None]) | (segments[:, None, :] == 0)
    got = attend(q, k, v, jnp.asarray(key_mask), "own", marks)
    expected = plain_attention(np.asarray(q), np.asarray(k), np.asarray(v), allowed)
    np.testing.assert_allclose(got, expected, rtol=0, atol=5e-6)
    gradient = jax.jit(jax.grad(value, (0, 1, 2)), static_argnums=3)
    for one, other in zip(gradient(q, k, v, True), gradient(q, k, v, False), strict=True):
        assert np.abs(other).max() > 0.1
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-5)
    # the scores of a whole row are never there together where it is attended in pieces
    whole = f"f32[2,2,3,{time},{time}]" in str(
        jax.make_jaxpr(value, static_argnums=3)(q, k, v, True)
    )
    assert whole == (time in (9, 258))
