"""The blocks that both towers are built from."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Float


class RMSNorm(nnx.Module):
    """x / rms(x) * scale; the statistics in float32, the product in x's dtype (as published)."""

    def __init__(self, width: int, eps: float, dtype: DTypeLike) -> None:
        self.scale = nnx.Param(jnp.ones((width,), dtype))
        self.eps = eps

    def __call__(self, x: Float[jax.Array, "*batch width"]) -> Float[jax.Array, "*batch width"]:
        x32 = x.astype(jnp.float32)
        normed = x32 * jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + self.eps)
        return normed.astype(x.dtype) * self.scale[...].reshape((1,) * (x.ndim - 1) + (-1,))


class Dense(nnx.Module):
    """x @ kernel + bias on flattened rows (one 2-D matmul is faster on CPU than a batched one)."""

    def __init__(self, width: int, out: int, bias: bool, dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        self.linear = nnx.Linear(width, out, use_bias=bias, param_dtype=dtype, rngs=rngs)

    def __call__(self, x: Float[jax.Array, "*batch width"]) -> Float[jax.Array, "*batch out"]:
        return self.linear(x.reshape(-1, x.shape[-1])).reshape(*x.shape[:-1], -1)


class GatedMLP(nnx.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(
        self, width: int, hidden: int, bias: bool, dtype: DTypeLike, rngs: nnx.Rngs
    ) -> None:
        self.gate_proj = Dense(width, hidden, bias, dtype, rngs)
        self.up_proj = Dense(width, hidden, bias, dtype, rngs)
        self.down_proj = Dense(hidden, width, bias, dtype, rngs)

    def __call__(self, x: Float[jax.Array, "*batch width"]) -> Float[jax.Array, "*batch width"]:
        return self.down_proj(jax.nn.silu(self.gate_proj(x)) * self.up_proj(x))
