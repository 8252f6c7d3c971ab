"""The text decoder of Qwen2.5-VL: grouped-query attention, M-RoPE, gated MLPs."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Float

from verdict_jax.vlm.config import TextConfig
from verdict_jax.vlm.layers import Dense, GatedMLP, RMSNorm
from verdict_jax.vlm.parameters import Params, bind, stack_init
from verdict_jax.vlm.rope import rotate

EMBEDDING_STD = 0.02  # initializer_range of the published configs


class DecoderLayer(nnx.Module):
    """One block, split where the cache stands: `project` before it, `complete` after it."""

    def __init__(self, config: TextConfig, dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        width, head_dim = config.hidden_size, config.head_dim
        self.head_dim = head_dim
        self.input_layernorm = RMSNorm(width, config.rms_norm_eps, dtype)
        self.post_attention_layernorm = RMSNorm(width, config.rms_norm_eps, dtype)
        self.q_proj = Dense(width, config.num_attention_heads * head_dim, True, dtype, rngs)
        self.k_proj = Dense(width, config.num_key_value_heads * head_dim, True, dtype, rngs)
        self.v_proj = Dense(width, config.num_key_value_heads * head_dim, True, dtype, rngs)
        self.o_proj = Dense(config.num_attention_heads * head_dim, width, False, dtype, rngs)
        self.mlp = GatedMLP(width, config.intermediate_size, False, dtype, rngs)

    def project(
        self,
        x: Float[jax.Array, "batch time width"],
        cos: Float[jax.Array, "batch time half"],
        sin: Float[jax.Array, "batch time half"],
    ) -> tuple[
        Float[jax.Array, "batch time heads head_dim"],
        Float[jax.Array, "batch time kv_heads head_dim"],
        Float[jax.Array, "batch time kv_heads head_dim"],
    ]:
        """Rotated queries and keys, and values."""

        def heads(projected: jax.Array) -> jax.Array:
            return projected.reshape(*projected.shape[:2], -1, self.head_dim)

        x = self.input_layernorm(x)
        q, k, v = heads(self.q_proj(x)), heads(self.k_proj(x)), heads(self.v_proj(x))
        return rotate(q, cos, sin), rotate(k, cos, sin), v

    def complete(
        self,
        x: Float[jax.Array, "batch time width"],
        attended: Float[jax.Array, "batch time heads head_dim"],
    ) -> Float[jax.Array, "batch time width"]:
        """The block's output from its input and the attended values."""
        x = x + self.o_proj(attended.reshape(*attended.shape[:2], -1))
        return x + self.mlp(self.post_attention_layernorm(x))


class DecoderEnds(nnx.Module):
    """What stands before and after the stacked layers."""

    def __init__(self, config: TextConfig, dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        self.embed_tokens = nnx.Embed(
            config.vocab_size,
            config.hidden_size,
            param_dtype=dtype,
            embedding_init=nnx.initializers.normal(EMBEDDING_STD),
            rngs=rngs,
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype)
        if not config.tie_word_embeddings:
            self.lm_head = Dense(config.hidden_size, config.vocab_size, False, dtype, rngs)


@functools.lru_cache
def _graphs(config: TextConfig) -> tuple[nnx.GraphDef[DecoderEnds], nnx.GraphDef[DecoderLayer]]:
    def build() -> tuple[DecoderEnds, DecoderLayer]:
        rngs = nnx.Rngs(0)
        return DecoderEnds(config, jnp.float32, rngs), DecoderLayer(config, jnp.float32, rngs)

    ends, layer = nnx.eval_shape(build)
    return nnx.graphdef(ends), nnx.graphdef(layer)


def bind_ends(config: TextConfig, params: Params) -> DecoderEnds:
    """Embedding, final norm and head, from the decoder's parameters."""
    own = {name: leaf for name, leaf in params.items() if name != "layers"}
    return bind(_graphs(config)[0], own)


def bind_layer(config: TextConfig, layer_params: Params) -> DecoderLayer:
    """One decoder layer, from one slice of the stacked parameters."""
    return bind(_graphs(config)[1], layer_params)


def init_text(config: TextConfig, key: jax.Array, dtype: DTypeLike) -> Params:
    """Random parameters: both ends', with the layers' stacked along a leading layer axis."""
    ends_key, layer_key = jax.random.split(key)
    ends = DecoderEnds(config, dtype, nnx.Rngs(ends_key))
    layers = stack_init(
        lambda rngs: DecoderLayer(config, dtype, rngs), layer_key, config.num_hidden_layers
    )
    return {**nnx.to_pure_dict(nnx.state(ends)), "layers": layers}
