"""Log-probabilities of given tokens, never with all logits in memory."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from verdict_jax.vlm.inputs import Array

CHUNK = 8192
"""Entries of the vocabulary that are looked at together."""


Carry = tuple[jax.Array, jax.Array, jax.Array, jax.Array]
"""Highest logit, sum of powers, their sum weighted by the logits, the token's own logit: so far."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TokenLogprobs:
    """What the model says of each token.

    Attributes:
        logprobs: of the token, in nats; float32.
        entropy: of the distribution it was drawn from, in nats; float32.
    """

    logprobs: Float[Array, "*batch"]
    entropy: Float[Array, "*batch"]


def token_logprobs(
    hidden: Float[Array, "*batch width"],
    head: Float[Array, "vocab width"],
    tokens: Int[Array, "*batch"],
    suppressed: Bool[Array, "vocab"],
    chunk: int = CHUNK,
) -> TokenLogprobs:
    """log softmax over the ids that the sampler may draw, read off at the given tokens.

    The vocabulary is scanned in chunks with a running maximum and sum (online softmax); the
    backward pass computes each chunk's logits again. So memory holds [*batch, chunk] at a time, in
    float32, and never [*batch, vocab].

    Args:
        hidden: final hidden states, each before the token it predicts.
        head: the output embedding, a row per id.
        tokens: ids to read off; a suppressed one has log-probability -inf.
        suppressed: ids that the sampler never draws: the one mask of sampler and loss.
        chunk: entries of the vocabulary at a time.
    """
    vocab, width = head.shape
    size = min(chunk, vocab)
    count = -(-vocab // size)
    rows = jnp.pad(jnp.asarray(head), ((0, count * size - vocab), (0, 0)))
    absent = jnp.pad(jnp.asarray(suppressed), (0, count * size - vocab), constant_values=True)
    flat = jnp.asarray(hidden).reshape(-1, width)
    wanted = jnp.asarray(tokens).reshape(-1)

    @jax.checkpoint
    def look(carry: Carry, part: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[Carry, None]:
        highest, total, weighted, found = carry
        kernel, missing, start = part
        logits = jnp.matmul(flat, kernel.T, preferred_element_type=jnp.float32)
        logits = jnp.where(missing[None, :], -jnp.inf, logits)
        top = jax.lax.stop_gradient(jnp.maximum(highest, jnp.max(logits, axis=1)))
        # a chunk without any id leaves -inf - -inf behind
        base = jnp.where(jnp.isfinite(top), top, 0.0)
        shrink = jnp.exp(highest - base)
        powers = jnp.exp(logits - base[:, None])
        finite = jnp.where(missing[None, :], 0.0, logits)
        place = wanted - start
        here = (place >= 0) & (place < size)
        own = jnp.take_along_axis(logits, jnp.clip(place, 0, size - 1)[:, None], axis=1)[:, 0]
        return (
            top,
            total * shrink + jnp.sum(powers, axis=1),
            weighted * shrink + jnp.sum(powers * finite, axis=1),
            jnp.where(here, own, found),
        ), None

    zeros = jnp.zeros(len(flat), jnp.float32)
    nothing = jnp.full(len(flat), -jnp.inf, jnp.float32)
    parts = (
        rows.reshape(count, size, width),
        absent.reshape(count, size),
        jnp.arange(count) * size,
    )
    (highest, total, weighted, found), _ = jax.lax.scan(
        look, (nothing, zeros, zeros, nothing), parts
    )
    normaliser = highest + jnp.log(total)
    return TokenLogprobs(
        (found - normaliser).reshape(tokens.shape),
        (normaliser - weighted / total).reshape(tokens.shape),
    )
