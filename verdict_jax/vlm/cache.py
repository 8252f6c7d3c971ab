"""The immutable key-value cache: each operation returns a new one."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from verdict_jax.vlm.config import TextConfig
from verdict_jax.vlm.inputs import Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class KVCache:
    """Keys and values of every layer, each row filled from slot 0 without gaps.

    Attributes:
        k: rotated keys.
        v: values.
        length: filled slots of each row.
        next_position: M-RoPE position of the row's next text token. It is not the length: a
            picture takes fewer positions than tokens.
    """

    k: Float[Array, "layers batch slots kv_heads head_dim"]
    v: Float[Array, "layers batch slots kv_heads head_dim"]
    length: Int[Array, "batch"]
    next_position: Int[Array, "batch"]

    @property
    def slots(self) -> int:
        return self.k.shape[2]


def init_cache(config: TextConfig, batch: int, slots: int, dtype: DTypeLike) -> KVCache:
    """An empty cache with room for `slots` tokens a row."""
    shape = (config.num_hidden_layers, batch, slots, config.num_key_value_heads, config.head_dim)
    zeros = jnp.zeros((batch,), jnp.int32)
    return KVCache(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype), zeros, zeros)


def gather(cache: KVCache, rows: Int[Array, "new_batch"]) -> KVCache:
    """The cache of these rows, in this order; a row may be named more than once."""
    return KVCache(
        jnp.take(cache.k, rows, axis=1),
        jnp.take(cache.v, rows, axis=1),
        jnp.take(cache.length, rows),
        jnp.take(cache.next_position, rows),
    )


def fork(cache: KVCache, ways: int) -> KVCache:
    """Each row `ways` times in succession: row b becomes rows b * ways ... b * ways + ways - 1."""
    return gather(cache, jnp.repeat(jnp.arange(cache.length.shape[0]), ways))


def resize(cache: KVCache, slots: int) -> KVCache:
    """The same rows with room for `slots` tokens; shrinking drops only slots past every length."""

    def fit(x: Array) -> jax.Array:
        x = jnp.asarray(x)[:, :, :slots]
        return jnp.pad(x, ((0, 0), (0, 0), (0, slots - x.shape[2]), (0, 0), (0, 0)))

    return KVCache(fit(cache.k), fit(cache.v), cache.length, cache.next_position)
