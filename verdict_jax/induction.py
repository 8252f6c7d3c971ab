"""Two decoder layers in front of others that make copying easy to learn.

A small decoder takes very long to find out that a word it wrote stands further up, beside a letter
that names it: no gradient leads there before two heads work together ("induction heads",
arXiv:2209.11895). The layers here begin with such heads. Everything stays trainable, and the
architecture is the same as ever.
"""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Float

from verdict_jax.vlm.config import TextConfig
from verdict_jax.vlm.parameters import Params
from verdict_jax.vlm.rope import inverse_frequencies
from verdict_jax.vlm.text import init_text

NEARNESS = 3.0
"""Of the first layer's biases: .6 of a head's attention falls on the distance that it looks at."""

LIKENESS = 2.5
"""Of the second layer's projections: most of its attention falls on like tokens."""

APARTNESS = 2.0
"""Of the second layer's biases, which keep a token from finding itself."""

CARRIED, FOUND = 0.3, 1.0
"""Norm of what a head of either layer adds, as a share of the token embeddings' mean norm. The more
is carried the better it can be read, and the less a token looks like its twin."""


def prepend_induction(
    config: TextConfig, params: Params, key: jax.Array
) -> tuple[TextConfig, Params]:
    """The decoder with two more layers, before its own.

    The first layer's heads carry each token's neighbours to it: head h looks h + 1 tokens back,
    whatever stands there, since RoPE turns the product of two constant vectors into a function of
    their distance. The second layer's heads find earlier tokens like their own: queries and keys
    are one random projection, in those dimensions that RoPE turns slowly. What a head adds goes
    through a random projection of its own. The layers' MLPs add nothing at first.

    Args:
        config: of the decoder.
        params: of the decoder, layers stacked along their first axis.
        key: of the random projections.
    """
    fresh_key, *keys = jax.random.split(key, 5)
    embedding = params["embed_tokens"]["embedding"]
    norm = jnp.mean(jnp.linalg.norm(embedding, axis=-1))
    two = init_text(replace(config, num_hidden_layers=2), fresh_key, embedding.dtype)["layers"]
    first, second = (jax.tree.map(lambda leaf, i=i: leaf[i], two) for i in range(2))
    layers = [
        _with(first, _looking_back(config, keys[0]), _adding(config, keys[1], CARRIED * norm)),
        _with(second, _looking_alike(config, keys[2]), _adding(config, keys[3], FOUND * norm)),
    ]
    stacked = jax.tree.map(
        lambda own, *new: jnp.concatenate([*(leaf[None] for leaf in new), own]),
        params["layers"],
        *layers,
    )
    longer = replace(config, num_hidden_layers=config.num_hidden_layers + 2)
    return longer, {**params, "layers": stacked}


def _with(layer: Params, looking: Params, adding: Params) -> Params:
    """A fresh layer with other attention and with an MLP that adds nothing."""
    down = jax.tree.map(jnp.zeros_like, layer["mlp"]["down_proj"])
    return {**layer, **looking, **adding, "mlp": {**layer["mlp"], "down_proj": down}}


def _looking_back(config: TextConfig, key: jax.Array) -> Params:
    """Queries and keys that are constants: head h's product is largest h + 1 tokens back."""
    half = config.head_dim // 2
    frequencies = jnp.asarray(inverse_frequencies(config.head_dim, config.rope_theta))
    distances = 1 + jnp.arange(config.num_attention_heads)
    angles = -jnp.outer(distances, frequencies)
    query = NEARNESS * jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=1)
    constant = jnp.concatenate([jnp.full(half, NEARNESS), jnp.zeros(half)])
    width, kv_heads = config.hidden_size, config.num_key_value_heads
    return {
        "q_proj": _linear(jnp.zeros((width, query.size)), query.reshape(-1)),
        "k_proj": _linear(
            jnp.zeros((width, kv_heads * config.head_dim)), jnp.tile(constant, kv_heads)
        ),
        "v_proj": _values(config, key),
    }


def _looking_alike(config: TextConfig, key: jax.Array) -> Params:
    """Queries and keys that are one projection of a token, more sharply in every second head."""
    quarter = config.head_dim // 4
    value_key, *keys = jax.random.split(key, 1 + config.num_key_value_heads)
    groups = config.num_attention_heads // config.num_key_value_heads
    # the first half of a head's pairs turns fast: there stands what tells a token from itself
    apart = jnp.concatenate([jnp.full(quarter, APARTNESS), jnp.zeros(3 * quarter)])
    queries: list[jax.Array] = []
    own: list[jax.Array] = []
    for head_key in keys:
        slow = LIKENESS * _orthogonal(head_key, config.hidden_size, 2 * quarter)
        nothing = jnp.zeros((config.hidden_size, quarter))
        kernel = jnp.concatenate([nothing, slow[:, :quarter], nothing, slow[:, quarter:]], axis=1)
        own.append(kernel)
        queries += [kernel / (1 + group % 2) for group in range(groups)]
    return {
        "q_proj": _linear(
            jnp.concatenate(queries, axis=1), jnp.tile(-apart, config.num_attention_heads)
        ),
        "k_proj": _linear(
            jnp.concatenate(own, axis=1), jnp.tile(apart, config.num_key_value_heads)
        ),
        "v_proj": _values(config, value_key),
    }


def _values(config: TextConfig, key: jax.Array) -> Params:
    """A random projection of the token for each key-value head."""
    keys = jax.random.split(key, config.num_key_value_heads)
    kernels = [_orthogonal(head, config.hidden_size, config.head_dim) for head in keys]
    return _linear(
        jnp.concatenate(kernels, axis=1),
        jnp.zeros(config.num_key_value_heads * config.head_dim),
    )


def _adding(config: TextConfig, key: jax.Array, norm: Float[jax.Array, ""]) -> Params:
    """An output projection whose every head adds a vector of about this norm."""
    keys = jax.random.split(key, config.num_attention_heads)
    # a normed token's projection onto head_dim random directions has norm sqrt(head_dim)
    scale = norm / jnp.sqrt(config.head_dim)
    kernels = [_orthogonal(head, config.hidden_size, config.head_dim).T * scale for head in keys]
    return {"o_proj": {"linear": {"kernel": jnp.concatenate(kernels)}}}


def _orthogonal(key: jax.Array, rows: int, columns: int) -> Float[jax.Array, "rows columns"]:
    return jax.nn.initializers.orthogonal()(key, (rows, columns))


def _linear(kernel: jax.Array, bias: jax.Array) -> Params:
    return {"linear": {"kernel": kernel, "bias": bias}}
