"""Grouped-query attention over masked slots, with a float32 softmax."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

# Large and finite: a query with no key at all (padding) averages garbage instead of giving NaN.
MASKED = -1e30

# Longer query rows are attended in chunks, so that scores never take time x time memory.
CHUNK = 512

# Shorter rows of own tokens are attended in so many pieces, each against the keys up to its end:
# of a causal row that leaves out most of what the mask would hide. Each piece is compiled.
PIECES = 4
SHORTEST = 256


def _attend_chunk(
    q: Float[jax.Array, "batch time heads head_dim"],
    k: Float[jax.Array, "batch slots kv_heads head_dim"],
    v: Float[jax.Array, "batch slots kv_heads head_dim"],
    key_mask: Bool[jax.Array, "batch slots"],
    query_slots: Int[jax.Array, "batch time"] | None,
    query_segments: Int[jax.Array, "batch time"] | None,
    key_segments: Int[jax.Array, "batch slots"] | None,
) -> Float[jax.Array, "batch time heads head_dim"]:
    batch, time, heads, head_dim = q.shape
    slots, kv_heads = k.shape[1], k.shape[2]
    groups = heads // kv_heads
    allowed = key_mask[:, None, :]
    if query_slots is not None:
        allowed = allowed & (jnp.arange(slots)[None, None, :] <= query_slots[:, :, None])
    if query_segments is not None and key_segments is not None:
        keys, queries = key_segments[:, None, :], query_segments[:, :, None]
        allowed = allowed & ((keys == 0) | (keys == queries))
    # The query heads of a group join the time axis: one matmul per kv head, keys never repeated.
    grouped = q.reshape(batch, time, kv_heads, groups, head_dim).transpose(0, 2, 3, 1, 4)
    grouped = grouped.reshape(batch, kv_heads, groups * time, head_dim)
    scores = jnp.einsum("bkqh,bskh->bkqs", grouped, k, preferred_element_type=jnp.float32)
    scores = scores.reshape(batch, kv_heads, groups, -1, slots) * head_dim**-0.5
    scores = jnp.where(allowed[:, None, None, :, :], scores, MASKED)
    weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
    weights = weights.reshape(batch, kv_heads, groups * time, slots)
    out = jnp.einsum("bkqs,bskh->bkqh", weights, v)
    out = out.reshape(batch, kv_heads, groups, time, head_dim).transpose(0, 3, 1, 2, 4)
    return out.reshape(batch, time, heads, head_dim)


def _attend_own(
    q: Float[jax.Array, "batch time heads head_dim"],
    k: Float[jax.Array, "batch time kv_heads head_dim"],
    v: Float[jax.Array, "batch time kv_heads head_dim"],
    key_mask: Bool[jax.Array, "batch time"],
    query_slots: Int[jax.Array, "batch time"],
    segments: Int[jax.Array, "batch time"] | None,
) -> Float[jax.Array, "batch time heads head_dim"]:
    """Causal attention of a row to itself, in PIECES."""
    size = q.shape[1] // PIECES
    pieces = []
    for end in range(size, q.shape[1] + 1, size):
        own, seen = slice(end - size, end), slice(0, end)
        pieces.append(
            _attend_chunk(
                q[:, own], k[:, seen], v[:, seen], key_mask[:, seen], query_slots[:, own],
                None if segments is None else segments[:, own],
                None if segments is None else segments[:, seen],
            )
        )  # fmt: skip
    return jnp.concatenate(pieces, axis=1)


def attend(
    q: Float[jax.Array, "batch time heads head_dim"],
    k: Float[jax.Array, "batch slots kv_heads head_dim"],
    v: Float[jax.Array, "batch slots kv_heads head_dim"],
    key_mask: Bool[jax.Array, "batch slots"],
    query_slots: Int[jax.Array, "batch time"] | Literal["own"] | None = None,
    segments: Int[jax.Array, "batch time"] | None = None,
) -> Float[jax.Array, "batch time heads head_dim"]:
    """softmax(q k^T / sqrt(head_dim)) v, over the keys that `key_mask` admits.

    Grouped-query attention (arXiv:2305.13245).

    Args:
        q: queries; head h reads kv head h // (heads / kv_heads).
        k: keys.
        v: values.
        key_mask: False for padding and empty cache slots.
        query_slots: the slot each query stands in; it sees slots up to its own (causal). "own":
            the keys are the queries' own tokens, query i stands in slot i. None lets every query
            see every admitted key (vision).
        segments: where keys are the queries' own tokens, several continuations of one prefix can
            share a row: segment 0 is the prefix, seen by all; any other sees itself and it.
    """
    time = q.shape[1]
    if isinstance(query_slots, str):
        query_slots = jnp.broadcast_to(jnp.arange(time)[None, :], q.shape[:2])
        if SHORTEST <= time <= 2 * CHUNK and time % PIECES == 0:
            return _attend_own(q, k, v, key_mask, query_slots, segments)
    if time <= 2 * CHUNK or time % CHUNK:
        return _attend_chunk(q, k, v, key_mask, query_slots, segments, segments)
    chunks = time // CHUNK

    def split(x: jax.Array) -> jax.Array:
        return jnp.moveaxis(x.reshape(x.shape[0], chunks, CHUNK, *x.shape[2:]), 1, 0)

    def optional(x: jax.Array | None) -> jax.Array | None:
        return None if x is None else split(x)

    out = jax.lax.map(
        lambda chunk: _attend_chunk(chunk[0], k, v, key_mask, chunk[1], chunk[2], segments),
        (split(q), optional(query_slots), optional(segments)),
    )
    return jnp.moveaxis(out, 0, 1).reshape(q.shape)
