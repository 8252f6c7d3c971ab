"""PRNG keys of a run, folded from what they are for and never from a place in a batch."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Key, UInt32

Array = jax.Array | np.ndarray
Word = jax.Array | np.ndarray | np.uint32

# Two streams, so that the sampling of a step and its rule's draw are independent.
_SAMPLING, _RULE = 0, 1


def item_hashes(items: Sequence[str]) -> UInt32[np.ndarray, " batch"]:
    """32 bits that stand for each item's id in keys: crc32 of its UTF-8 form."""
    return np.array([zlib.crc32(item.encode()) for item in items], np.uint32)


def sampling_keys(seed: int, items: Sequence[str], step: int, n: int) -> Key[jax.Array, "batch n"]:
    """Keys of a step's candidates, folded from (seed, item's id, step, candidate).

    Args:
        seed: in [0, 2**32).
        items: ids of the questions, one per row.
        step: 0 for the first.
        n: candidates per row.
    """
    return _candidate_keys(np.uint32(seed), item_hashes(items), np.uint32(step), n)


def rule_keys(
    seed: UInt32[Word, ""], items: UInt32[Array, " batch"], step: UInt32[Word, ""]
) -> Key[jax.Array, " batch"]:
    """Keys of a rule's draws in one step, folded from (seed, item's hash, step)."""
    return jax.vmap(_item_key, in_axes=(None, None, 0, None))(seed, _RULE, items, step)


@partial(jax.jit, static_argnames="n")
def _candidate_keys(
    seed: UInt32[Word, ""], items: UInt32[Array, " batch"], step: UInt32[Word, ""], n: int
) -> Key[jax.Array, "batch n"]:
    keys = jax.vmap(_item_key, in_axes=(None, None, 0, None))(seed, _SAMPLING, items, step)
    fold = jax.vmap(jax.random.fold_in, in_axes=(None, 0))
    return jax.vmap(fold, in_axes=(0, None))(keys, jnp.arange(n))


def _item_key(
    seed: UInt32[Word, ""], stream: int, item: UInt32[Word, ""], step: UInt32[Word, ""]
) -> Key[jax.Array, ""]:
    key = jax.random.fold_in(jax.random.key(seed), stream)
    return jax.random.fold_in(jax.random.fold_in(key, item), step)
