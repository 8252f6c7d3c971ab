"""The vision encoder of Qwen2.5-VL: windowed and full attention blocks, then the patch merger."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Bool, Float

from verdict_jax.vlm.attention import attend
from verdict_jax.vlm.config import VisionConfig
from verdict_jax.vlm.inputs import PatchBatch
from verdict_jax.vlm.layers import Dense, GatedMLP, RMSNorm
from verdict_jax.vlm.parameters import Params, bind, stack_init
from verdict_jax.vlm.rope import rotate, vision_table

NORM_EPS = 1e-6  # fixed in the published code, not in its config


class VisionBlock(nnx.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: VisionConfig, dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        width = config.hidden_size
        self.heads = config.num_heads
        self.norm1 = RMSNorm(width, NORM_EPS, dtype)
        self.norm2 = RMSNorm(width, NORM_EPS, dtype)
        self.qkv = Dense(width, 3 * width, True, dtype, rngs)
        self.proj = Dense(width, width, True, dtype, rngs)
        self.mlp = GatedMLP(width, config.intermediate_size, True, dtype, rngs)

    def __call__(
        self,
        x: Float[jax.Array, "rows slots width"],
        cos: Float[jax.Array, "rows slots half"],
        sin: Float[jax.Array, "rows slots half"],
        mask: Bool[jax.Array, "rows slots"],
    ) -> Float[jax.Array, "rows slots width"]:
        rows, slots, width = x.shape
        qkv = self.qkv(self.norm1(x)).reshape(rows, slots, 3, self.heads, -1)
        q, k = rotate(qkv[:, :, 0], cos, sin), rotate(qkv[:, :, 1], cos, sin)
        x = x + self.proj(attend(q, k, qkv[:, :, 2], mask).reshape(rows, slots, width))
        return x + self.mlp(self.norm2(x))


class PatchMerger(nnx.Module):
    """Joins the patches of a merge unit into one token of the decoder's width."""

    def __init__(self, config: VisionConfig, dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        joined = config.hidden_size * config.merge_unit
        self.ln_q = RMSNorm(config.hidden_size, NORM_EPS, dtype)
        self.fc1 = Dense(joined, joined, True, dtype, rngs)
        self.fc2 = Dense(joined, config.out_hidden_size, True, dtype, rngs)

    def __call__(
        self, x: Float[jax.Array, "images patches width"]
    ) -> Float[jax.Array, "images units out"]:
        images, patches, width = x.shape
        joined = self.fc1.linear.kernel.shape[0]
        x = self.ln_q(x).reshape(images, patches * width // joined, joined)
        return self.fc2(jax.nn.gelu(self.fc1(x), approximate=False))


class VisionStem(nnx.Module):
    """What stands before and after the stacked blocks."""

    def __init__(self, config: VisionConfig, dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        self.patch_embed = Dense(config.patch_dim, config.hidden_size, False, dtype, rngs)
        self.merger = PatchMerger(config, dtype, rngs)


@functools.lru_cache
def _graphs(config: VisionConfig) -> tuple[nnx.GraphDef[VisionStem], nnx.GraphDef[VisionBlock]]:
    def build() -> tuple[VisionStem, VisionBlock]:
        rngs = nnx.Rngs(0)
        return VisionStem(config, jnp.float32, rngs), VisionBlock(config, jnp.float32, rngs)

    stem, block = nnx.eval_shape(build)
    return nnx.graphdef(stem), nnx.graphdef(block)


def init_vision(config: VisionConfig, key: jax.Array, dtype: DTypeLike) -> Params:
    """Random parameters: the stem's, with the blocks' stacked along a leading depth axis."""
    stem_key, block_key = jax.random.split(key)
    stem = VisionStem(config, dtype, nnx.Rngs(stem_key))
    blocks = stack_init(lambda rngs: VisionBlock(config, dtype, rngs), block_key, config.depth)
    return {**nnx.to_pure_dict(nnx.state(stem)), "blocks": blocks}


def encode_images(
    config: VisionConfig, params: Params, batch: PatchBatch
) -> Float[jax.Array, "images units out"]:
    """Features of each picture, window after window (Qwen2.5-VL, arXiv:2502.13923, section 2.1).

    Args:
        config: the vision tower.
        params: its parameters (`params["vision"]` of the model).
        batch: windowed patches; padding never reaches a real patch.

    Returns:
        One row per merge unit, [images, windows * window_units ** 2, out_hidden_size], in the
        parameters' dtype; rows of padding units hold finite garbage.
    """
    stem_graph, block_graph = _graphs(config)
    blocks = params["blocks"]
    stem = bind(stem_graph, {name: params[name] for name in ("patch_embed", "merger")})
    images, windows, slots, _ = batch.patches.shape
    dtype = stem.patch_embed.linear.kernel.dtype
    x = stem.patch_embed(jnp.asarray(batch.patches).astype(dtype))
    cos, sin = vision_table(config, batch.positions)
    mask = jnp.asarray(batch.mask)

    def attend_in(rows: int, x: jax.Array, block: VisionBlock) -> jax.Array:
        def row(a: jax.Array) -> jax.Array:
            return a.reshape(rows, -1, a.shape[-1])

        return block(row(x), row(cos), row(sin), mask.reshape(rows, -1)).reshape(x.shape)

    def layer(x: jax.Array, step: tuple[Params, jax.Array]) -> tuple[jax.Array, None]:
        block_params, is_full = step
        block = bind(block_graph, block_params)
        x = jax.lax.cond(
            is_full,
            lambda x: attend_in(images, x, block),
            lambda x: attend_in(images * windows, x, block),
            x,
        )
        return x, None

    is_full = jnp.asarray(np.isin(np.arange(config.depth), config.fullatt_block_indexes))
    x, _ = jax.lax.scan(layer, x, (blocks, is_full))
    return stem.merger(x.reshape(images, windows * slots, -1))
