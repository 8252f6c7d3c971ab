"""Low-rank adapters (LoRA, arXiv:2106.09685): the policy is the base plus a small difference."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from verdict_jax.vlm.parameters import Params


def _is_adapted(path: jax.tree_util.KeyPath, leaf: jax.Array) -> bool:
    """Kernels of the decoder's layers; they are stacked, so they have three axes."""
    names = [str(key.key) for key in path if isinstance(key, jax.tree_util.DictKey)]
    return names[-1] == "kernel" and "layers" in names and leaf.ndim == 3


def init_adapters(params: Params, rank: int, key: jax.Array) -> Params:
    """Adapters of all kernels of the decoder's layers, under the kernels' own names.

    Each is {"down" [layers, in, rank], "up" [layers, rank, out]}; `up` is zero, so that the adapted
    policy is the base at first.

    Args:
        params: of the base.
        rank: of the difference.
        key: of `down`.

    Raises:
        ValueError: rank below 1.
    """
    if rank < 1:
        raise ValueError(f"the rank of adapters must be at least 1, got {rank}")
    adapters: Params = {}
    for number, (path, leaf) in enumerate(jax.tree_util.tree_leaves_with_path(params)):
        if _is_adapted(path, leaf):
            layers, inputs, outputs = leaf.shape
            down = jax.random.normal(jax.random.fold_in(key, number), (layers, inputs, rank))
            adapters[jax.tree_util.keystr(path, simple=True, separator=".")] = {
                "down": (down / jnp.sqrt(inputs)).astype(leaf.dtype),
                "up": jnp.zeros((layers, rank, outputs), leaf.dtype),
            }
    return adapters


def merge(params: Params, adapters: Params, scale: float) -> Params:
    """The parameters of the adapted policy: each adapted kernel plus scale * down @ up.

    Args:
        params: of the base.
        adapters: of `init_adapters`.
        scale: LoRA's alpha / rank.
    """

    def adapted(path: jax.tree_util.KeyPath, leaf: jax.Array) -> jax.Array:
        adapter = adapters.get(jax.tree_util.keystr(path, simple=True, separator="."))
        if adapter is None:
            return leaf
        difference = jnp.matmul(adapter["down"], adapter["up"], preferred_element_type=jnp.float32)
        return (leaf.astype(jnp.float32) + scale * difference).astype(leaf.dtype)

    return jax.tree_util.tree_map_with_path(adapted, params)
