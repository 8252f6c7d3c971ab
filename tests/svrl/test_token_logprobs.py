"""Chunked log-probabilities against the plain ones, in value, gradient and memory."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from svrl_jax.token_logprobs import token_logprobs
from verdict_jax.vlm.sampling import suppressed_logprobs

VOCAB, WIDTH = 50, 8


def inputs(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=(3, 5, WIDTH)).astype(np.float32)
    head = rng.normal(size=(VOCAB, WIDTH)).astype(np.float32)
    suppressed = rng.random(VOCAB) < 0.2
    suppressed[:7] = True  # a whole chunk of 7 without any id, the first one
    allowed = np.flatnonzero(~suppressed)
    return hidden, head, rng.choice(allowed, (3, 5)), suppressed


def plain(
    hidden: jax.Array, head: jax.Array, tokens: np.ndarray, suppressed: np.ndarray
) -> tuple[jax.Array, jax.Array]:
    logprobs = suppressed_logprobs(hidden @ head.T, suppressed)
    own = jnp.take_along_axis(logprobs, jnp.asarray(tokens)[..., None], axis=-1)[..., 0]
    finite = jnp.where(jnp.isfinite(logprobs), logprobs, 0.0)
    return own, -jnp.sum(jnp.exp(logprobs) * finite, axis=-1)


@pytest.mark.parametrize("chunk", [1, 7, 16, 50, 64])
def test_equal_to_the_samplers(chunk: int) -> None:
    """The sampler's own log-probs, with its one mask (V10), for chunks that fit and do not."""
    hidden, head, tokens, suppressed = inputs()
    got = token_logprobs(hidden, head, tokens, suppressed, chunk)
    logprobs, entropy = plain(jnp.asarray(hidden), jnp.asarray(head), tokens, suppressed)
    np.testing.assert_allclose(got.logprobs, logprobs, atol=1e-5)
    np.testing.assert_allclose(got.entropy, entropy, atol=1e-5)


@pytest.mark.parametrize("chunk", [7, 64])
def test_gradients_equal(chunk: int) -> None:
    hidden, head, tokens, suppressed = inputs(1)

    def chunked(h: jax.Array, k: jax.Array) -> jax.Array:
        out = token_logprobs(h, k, tokens, suppressed, chunk)
        return jnp.sum(jnp.sin(out.logprobs)) + jnp.sum(out.entropy**2)

    def whole(h: jax.Array, k: jax.Array) -> jax.Array:
        logprobs, entropy = plain(h, k, tokens, suppressed)
        return jnp.sum(jnp.sin(logprobs)) + jnp.sum(entropy**2)

    arguments = jnp.asarray(hidden), jnp.asarray(head)
    for got, expected in zip(
        jax.grad(chunked, (0, 1))(*arguments), jax.grad(whole, (0, 1))(*arguments), strict=True
    ):
        assert np.abs(expected).max() > 0.1
        np.testing.assert_allclose(got, expected, atol=2e-5)


def test_a_suppressed_token_cannot_have_been_drawn() -> None:
    hidden, head, tokens, suppressed = inputs()
    got = token_logprobs(hidden, head, np.zeros_like(tokens), suppressed, 16)
    assert (np.asarray(got.logprobs) == -np.inf).all()


def test_bfloat16_hidden_states_are_summed_in_float32() -> None:
    hidden, head, tokens, suppressed = inputs()
    half = jnp.asarray(hidden, jnp.bfloat16), jnp.asarray(head, jnp.bfloat16)
    got = token_logprobs(*half, tokens, suppressed, 16)
    assert got.logprobs.dtype == jnp.float32
    exact, _ = plain(*(x.astype(jnp.float32) for x in half), tokens, suppressed)
    np.testing.assert_allclose(got.logprobs, exact, atol=1e-5)


def test_all_logits_are_never_in_memory() -> None:
    """The published vocabulary, 512 positions: a full float32 [N, T, V] would take 311 MB."""
    vocab, width, time = 151_936, 16, 512
    shapes = (
        jax.ShapeDtypeStruct((1, time, width), jnp.float32),
        jax.ShapeDtypeStruct((vocab, width), jnp.float32),
        jax.ShapeDtypeStruct((1, time), jnp.int32),
        jax.ShapeDtypeStruct((vocab,), jnp.bool_),
    )

    def total(h: jax.Array, k: jax.Array, t: jax.Array, s: jax.Array, chunk: int) -> jax.Array:
        return jnp.sum(token_logprobs(h, k, t, s, chunk).logprobs)

    def peak(chunk: int) -> int:
        step = jax.jit(jax.grad(total, (0, 1)), static_argnums=4)
        memory = step.lower(*shapes, chunk).compile().memory_analysis()
        return memory.temp_size_in_bytes

    full = vocab * time * 4
    assert peak(vocab) > full
    assert peak(8192) < 0.35 * full
