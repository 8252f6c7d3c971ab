"""Rotary position tables of both towers: angles in float32, cast once (known-fault V4)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from verdict_jax.vlm.config import TextConfig, VisionConfig
from verdict_jax.vlm.inputs import Array


def inverse_frequencies(dim: int, theta: float) -> Float[np.ndarray, "half_dim"]:
    """theta ** (-2 i / dim) for i < dim / 2, in float32."""
    exponents = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
    return (np.float32(1.0) / np.float32(theta) ** exponents).astype(np.float32)


def text_table(
    config: TextConfig, positions: Int[Array, "3 batch time"], dtype: DTypeLike
) -> tuple[Float[jax.Array, "batch time half"], Float[jax.Array, "batch time half"]]:
    """Cosines and sines of M-RoPE.

    Frequency i belongs to the temporal, height or width axis by `mrope_section` and turns with
    that axis's position (Qwen2-VL, section 2.1).
    """
    axis = np.repeat(np.arange(3), config.mrope_section)
    frequencies = inverse_frequencies(config.head_dim, config.rope_theta)
    by_frequency = jnp.moveaxis(jnp.asarray(positions)[axis], 0, -1).astype(jnp.float32)
    angles = by_frequency * frequencies[None, None, :]
    return jnp.cos(angles).astype(dtype), jnp.sin(angles).astype(dtype)


def vision_table(
    config: VisionConfig, positions: Int[Array, "images windows slots 2"]
) -> tuple[
    Float[jax.Array, "images windows slots half"], Float[jax.Array, "images windows slots half"]
]:
    """Cosines and sines of the encoder's 2-D RoPE: the first half of the angles turns with the
    patch's row, the second with its column; theta 10000. Float32, as the published code rotates.
    """
    frequencies = inverse_frequencies(config.head_dim // 2, 10000.0)
    places = jnp.asarray(positions).astype(jnp.float32)[..., None]
    angles = places * frequencies[None, None, None, None, :]
    angles = angles.reshape(*angles.shape[:-2], -1)
    return jnp.cos(angles), jnp.sin(angles)


def rotate(
    heads: Float[jax.Array, "batch time heads head_dim"],
    cos: Float[jax.Array, "batch time half"],
    sin: Float[jax.Array, "batch time half"],
) -> Float[jax.Array, "batch time heads head_dim"]:
    """Rotates the pairs (i, i + head_dim / 2) of each head; computed in the tables' dtype."""
    dtype = heads.dtype
    first, second = jnp.split(heads.astype(cos.dtype), 2, axis=-1)
    cos, sin = cos[:, :, None, :], sin[:, :, None, :]
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(dtype)
