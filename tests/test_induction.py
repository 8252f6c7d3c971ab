"""The layers that copy: what their heads look at before any training."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Float

from verdict_jax.induction import prepend_induction
from verdict_jax.vlm.config import TextConfig
from verdict_jax.vlm.parameters import Params
from verdict_jax.vlm.rope import text_table
from verdict_jax.vlm.text import bind_layer, init_text

CONFIG = TextConfig(
    vocab_size=300,
    hidden_size=128,
    intermediate_size=64,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    rms_norm_eps=1e-6,
    rope_theta=10000.0,
    mrope_section=(4, 6, 6),
    tie_word_embeddings=True,
    max_position_embeddings=512,
)
TOKENS = np.random.default_rng(0).permutation(300)[:100]


@pytest.fixture(scope="module")
def decoder() -> tuple[Params, TextConfig, Params]:
    own = init_text(CONFIG, jax.random.key(1), jnp.float32)
    config, params = prepend_induction(CONFIG, own, jax.random.key(2))
    return own, config, params


def attention(
    config: TextConfig, layer: Params, x: Float[np.ndarray, "time width"]
) -> Float[np.ndarray, "heads time time"]:
    """Causal attention weights of a layer."""
    time = len(x)
    positions = np.broadcast_to(np.arange(time), (3, 1, time))
    cos, sin = text_table(config, positions, jnp.float32)
    q, k, _ = bind_layer(config, layer).project(jnp.asarray(x[None]), cos, sin)
    groups = config.num_attention_heads // config.num_key_value_heads
    k = np.repeat(np.asarray(k[0]), groups, axis=1)
    scores = np.einsum("qhd,khd->hqk", np.asarray(q[0]), k) / np.sqrt(config.head_dim)
    scores = np.where(np.tril(np.ones((time, time), bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def layer_of(params: Params, number: int) -> Params:
    return jax.tree.map(lambda leaf: leaf[number], params["layers"])


def test_head_h_of_the_first_layer_looks_h_plus_1_back(
    decoder: tuple[Params, TextConfig, Params],
) -> None:
    own, config, params = decoder
    x = np.asarray(own["embed_tokens"]["embedding"])[TOKENS]
    weights = attention(config, layer_of(params, 0), x)
    for head in range(config.num_attention_heads):
        for place in range(10, len(TOKENS)):
            looked = weights[head, place, place - head - 1]
            assert looked == weights[head, place].max() > 0.5


def test_the_second_layer_finds_the_same_token_further_up(
    decoder: tuple[Params, TextConfig, Params],
) -> None:
    own, config, params = decoder
    tokens = np.concatenate([TOKENS[:40], TOKENS[10:20]])
    x = np.asarray(own["embed_tokens"]["embedding"])[tokens]
    sharp = attention(config, layer_of(params, 1), x)[::2]
    for place in range(40, 50):
        assert (sharp[:, place].argmax(axis=-1) == place - 30).all()
        assert (sharp[:, place, place - 30] > 0.5).all()


def test_each_head_adds_a_share_of_an_embeddings_norm(
    decoder: tuple[Params, TextConfig, Params],
) -> None:
    own, config, params = decoder
    embedding = np.asarray(own["embed_tokens"]["embedding"])
    norm = np.linalg.norm(embedding, axis=-1).mean()
    for number, share in ((0, 0.3), (1, 1.0)):
        layer = layer_of(params, number)
        block = bind_layer(config, layer)
        x = jnp.asarray(embedding[None, TOKENS])
        positions = np.broadcast_to(np.arange(len(TOKENS)), (3, 1, len(TOKENS)))
        _, _, v = block.project(x, *text_table(config, positions, jnp.float32))
        for head in range(config.num_attention_heads):
            only = jnp.zeros((1, len(TOKENS), config.num_attention_heads, config.head_dim))
            only = only.at[:, :, head].set(v[:, :, head // 2])
            added = block.complete(jnp.zeros_like(x), only)
            found = np.linalg.norm(np.asarray(added), axis=-1).mean()
            np.testing.assert_allclose(found, share * norm, rtol=0.1)


def test_the_own_layers_follow_as_they_were(decoder: tuple[Params, TextConfig, Params]) -> None:
    own, config, params = decoder
    assert config.num_hidden_layers == 5
    for number in range(3):
        for left, right in zip(
            jax.tree.leaves(layer_of(own, number)),
            jax.tree.leaves(layer_of(params, number + 2)),
            strict=True,
        ):
            np.testing.assert_array_equal(left, right)
    for name in ("embed_tokens", "norm"):
        assert jax.tree.all(jax.tree.map(np.array_equal, own[name], params[name]))
