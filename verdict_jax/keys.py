"""PRNG keys of a run, folded from what they are for and never from a place in a batch."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Key, UInt32

Array = jax.Array | np.ndarray

ROWS_PER_CALL = 64
"""Keys of a compiled call; fewer are padded, more take several. So one compilation serves all."""

# Two streams, so that the sampling of a step and its rule's draw are independent.
_SAMPLING, _RULE = 0, 1


def sampling_keys(seed: int, items: Sequence[str], step: int, n: int) -> Key[jax.Array, "batch n"]:
    """Keys of a step's candidates, folded from (seed, 0, crc32 of the id, step, candidate).

    Args:
        seed: in [0, 2**32).
        items: ids of the questions, one per row.
        step: 0 for the first.
        n: candidates per row.
    """
    hashes = _hashes(items)
    words = np.zeros((len(items), n, 4), np.uint32)
    words[..., 0] = _SAMPLING
    words[..., 1] = hashes[:, None]
    words[..., 2] = step
    words[..., 3] = np.arange(n)
    data = _fold(seed, words.reshape(-1, 4))
    return jax.random.wrap_key_data(jnp.asarray(data.reshape(len(items), n, data.shape[-1])))


def rule_keys(seed: int, items: Sequence[str], step: int) -> Key[jax.Array, " batch"]:
    """Keys of a rule's draws in one step, folded from (seed, 1, crc32 of the id, step, 0)."""
    words = np.zeros((len(items), 4), np.uint32)
    words[:, 0] = _RULE
    words[:, 1] = _hashes(items)
    words[:, 2] = step
    return jax.random.wrap_key_data(jnp.asarray(_fold(seed, words)))


def _hashes(items: Sequence[str]) -> UInt32[np.ndarray, " batch"]:
    return np.array([zlib.crc32(item.encode()) for item in items], np.uint32)


def _fold(
    seed: int, words: UInt32[np.ndarray, "rows depth"]
) -> UInt32[np.ndarray, "rows key_words"]:
    """Key data of jax.random.key(seed) with each row's words folded in, one after the other."""
    parts = []
    for start in range(0, len(words), ROWS_PER_CALL):
        rows = words[start : start + ROWS_PER_CALL]
        padded = np.pad(rows, [(0, ROWS_PER_CALL - len(rows)), (0, 0)])
        parts.append(np.asarray(_fold_rows(np.uint32(seed), padded))[: len(rows)])
    return np.concatenate(parts)


@jax.jit
def _fold_rows(
    seed: UInt32[Array | np.uint32, ""],
    words: UInt32[Array, "rows depth"],
) -> UInt32[jax.Array, "rows key_words"]:
    def row_key(row: UInt32[Array, " depth"]) -> UInt32[jax.Array, " key_words"]:
        # A scan, because XLA takes seconds over each unrolled hash.
        key, _ = jax.lax.scan(
            lambda key, word: (jax.random.fold_in(key, word), None), jax.random.key(seed), row
        )
        return jax.random.key_data(key)

    return jax.vmap(row_key)(words)
