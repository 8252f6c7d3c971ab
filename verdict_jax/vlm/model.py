"""Qwen2.5-VL as pure functions of (config, params)."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Bool, Float, Int

from verdict_jax.vlm import vision
from verdict_jax.vlm.attention import attend
from verdict_jax.vlm.cache import KVCache, init_cache
from verdict_jax.vlm.config import Config, TextConfig
from verdict_jax.vlm.inputs import Array, ModelInputs, PatchBatch
from verdict_jax.vlm.parameters import Params
from verdict_jax.vlm.rope import text_table
from verdict_jax.vlm.text import DecoderEnds, bind_ends, bind_layer, init_text


def init_params(config: Config, key: jax.Array, dtype: DTypeLike = jnp.float32) -> Params:
    """Random parameters of both towers: {"vision": ..., "text": ...}."""
    vision_key, text_key = jax.random.split(key)
    return {
        "vision": vision.init_vision(config.vision, vision_key, dtype),
        "text": init_text(config.text, text_key, dtype),
    }


def encode_images(
    config: Config, params: Params, patches: PatchBatch
) -> Float[jax.Array, "images units width"]:
    """Decoder-width features of each picture; see `vision.encode_images`."""
    return vision.encode_images(config.vision, params["vision"], patches)


def _embed(
    ends: DecoderEnds,
    tokens: Int[Array, "batch time"],
    features: Float[Array, "images units width"] | None,
    feature_ids: Int[Array, "batch time"] | None,
) -> Float[jax.Array, "batch time width"]:
    # nnx.Embed would cast to the dtype it was built with, whatever the parameters hold.
    embedded = jnp.take(ends.embed_tokens.embedding[...], jnp.asarray(tokens), axis=0)
    if features is None or feature_ids is None:
        return embedded
    flat = features.reshape(-1, features.shape[-1]).astype(embedded.dtype)
    pictured = jnp.take(flat, jnp.maximum(jnp.asarray(feature_ids), 0), axis=0)
    return jnp.where((feature_ids >= 0)[:, :, None], pictured, embedded)


def _head(
    config: TextConfig, ends: DecoderEnds, hidden: Float[Array, "*batch width"]
) -> Float[jax.Array, "*batch vocab"]:
    """Logits in float32."""
    kernel = _output_embedding(config, ends).T
    return jnp.matmul(hidden, kernel, preferred_element_type=jnp.float32)


def _output_embedding(config: TextConfig, ends: DecoderEnds) -> Float[jax.Array, "vocab width"]:
    if config.tie_word_embeddings:
        return ends.embed_tokens.embedding[...]
    return ends.lm_head.linear.kernel[...].T


def output_embedding(config: Config, params: Params) -> Float[jax.Array, "vocab width"]:
    """The row of each token id whose product with a final hidden state is the id's logit."""
    return _output_embedding(config.text, bind_ends(config.text, params["text"]))


def forward_hidden(
    config: Config,
    params: Params,
    inputs: ModelInputs,
    features: Float[Array, "images units width"] | None = None,
    segments: Int[Array, "batch time"] | None = None,
    remat: bool = False,
) -> Float[jax.Array, "batch time width"]:
    """Final hidden states (after the last norm) of whole rows, without a cache.

    Args:
        config: the model.
        params: its parameters.
        inputs: token rows, padded on either side.
        features: of `encode_images`; None where no row holds a picture.
        segments: several continuations of one prefix in a row; see `attention.attend`.
        remat: recompute each layer in the backward pass instead of storing it.
    """
    ends = bind_ends(config.text, params["text"])
    x = _embed(ends, inputs.tokens, features, inputs.feature_ids)
    cos, sin = text_table(config.text, inputs.positions, x.dtype)
    key_mask = jnp.asarray(inputs.mask)
    segments = None if segments is None else jnp.asarray(segments)

    def layer(x: jax.Array, layer_params: Params) -> tuple[jax.Array, None]:
        block = bind_layer(config.text, layer_params)
        q, k, v = block.project(x, cos, sin)
        return block.complete(x, attend(q, k, v, key_mask, "own", segments)), None

    body: Callable[[jax.Array, Params], tuple[jax.Array, None]] = layer
    x, _ = jax.lax.scan(jax.checkpoint(body) if remat else body, x, params["text"]["layers"])
    return ends.norm(x)


def forward(
    config: Config,
    params: Params,
    inputs: ModelInputs,
    features: Float[Array, "images units width"] | None = None,
    segments: Int[Array, "batch time"] | None = None,
    remat: bool = False,
) -> Float[jax.Array, "batch time vocab"]:
    """Logits of whole rows in float32; arguments as `forward_hidden`."""
    hidden = forward_hidden(config, params, inputs, features, segments, remat)
    return logits_of(config, params, hidden)


def logits_of(
    config: Config, params: Params, hidden: Float[Array, "*batch width"]
) -> Float[jax.Array, "*batch vocab"]:
    """Logits in float32 of final hidden states (of all positions, or of the few that matter)."""
    return _head(config.text, bind_ends(config.text, params["text"]), jnp.asarray(hidden))


def _run_cached(
    config: TextConfig,
    params: Params,
    ends: DecoderEnds,
    x: Float[jax.Array, "batch time width"],
    positions: Int[Array, "3 batch time"],
    mask: Bool[Array, "batch time"],
    cache: KVCache,
    unroll: bool,
) -> tuple[Float[jax.Array, "batch vocab"], KVCache]:
    """Writes the real tokens behind each row's filled slots; logits after each row's last one."""
    batch, slots = x.shape[0], cache.slots
    counts = jnp.cumsum(mask, axis=1, dtype=jnp.int32)
    length = cache.length + counts[:, -1]
    places = cache.length[:, None] + counts - 1
    # Out of range on purpose: a scatter drops what padding would write.
    places = jnp.where(mask, places, slots)
    rows = jnp.broadcast_to(jnp.arange(batch)[:, None], places.shape)
    filled = jnp.arange(slots)[None, :] < length[:, None]
    cos, sin = text_table(config, positions, x.dtype)

    def layer(
        carry: tuple[jax.Array, jax.Array, jax.Array], step: tuple[Params, jax.Array]
    ) -> tuple[tuple[jax.Array, jax.Array, jax.Array], None]:
        x, keys, values = carry
        layer_params, index = step
        block = bind_layer(config, layer_params)
        q, k, v = block.project(x, cos, sin)
        keys = keys.at[index, rows, places].set(k.astype(keys.dtype), mode="drop")
        values = values.at[index, rows, places].set(v.astype(values.dtype), mode="drop")
        attended = attend(q, keys[index], values[index], filled, places)
        return (block.complete(x, attended), keys, values), None

    (x, keys, values), _ = jax.lax.scan(
        layer,
        (x, jnp.asarray(cache.k), jnp.asarray(cache.v)),
        (params["layers"], jnp.arange(config.num_hidden_layers)),
        unroll=unroll,
    )
    # The last real token, wherever the row's padding stands.
    time = x.shape[1]
    last = time - 1 - jnp.argmax(jnp.flip(mask, axis=1), axis=1)
    hidden = jnp.take_along_axis(x, last[:, None, None], axis=1)[:, 0]
    logits = _head(config, ends, ends.norm(hidden))
    return logits, KVCache(keys, values, length, cache.next_position)


def prefill(
    config: Config,
    params: Params,
    inputs: ModelInputs,
    next_position: Int[Array, "batch"],
    features: Float[Array, "images units width"] | None,
    slots: int,
) -> tuple[Float[jax.Array, "batch vocab"], KVCache]:
    """Reads whole prompts into a new cache.

    Args:
        config: the model.
        params: its parameters.
        inputs: prompts, padded on either side.
        next_position: M-RoPE position of the first token after each prompt.
        features: of `encode_images`, or None.
        slots: room of the cache; must hold the longest prompt (tokens past it are lost, so the
            caller checks on the host, where lengths are known).

    Returns:
        Logits after each prompt (float32), and the cache.
    """
    ends = bind_ends(config.text, params["text"])
    x = _embed(ends, inputs.tokens, features, inputs.feature_ids)
    empty = init_cache(config.text, x.shape[0], slots, x.dtype)
    logits, cache = _run_cached(
        config.text, params["text"], ends, x, inputs.positions, inputs.mask, empty, unroll=False
    )
    return logits, KVCache(cache.k, cache.v, cache.length, jnp.asarray(next_position))


def extend(
    config: Config,
    params: Params,
    cache: KVCache,
    tokens: Int[Array, "batch time"],
    mask: Bool[Array, "batch time"],
    unroll: bool = False,
) -> tuple[Float[jax.Array, "batch vocab"], KVCache]:
    """Appends text tokens to each row.

    Args:
        config: the model.
        params: its parameters.
        cache: what the rows hold so far; must have room (checked by the caller on the host).
        tokens: new ids, padded on either side.
        mask: True for real tokens; a row without any stays as it is.
        unroll: straight-line layers instead of a scan: slower to compile, faster to decode.

    Returns:
        Logits after each row's last new token in float32 (meaningless for a row without any), and
        the longer cache.
    """
    ends = bind_ends(config.text, params["text"])
    x = _embed(ends, tokens, None, None)
    counts = jnp.cumsum(mask, axis=1, dtype=jnp.int32)
    offsets = cache.next_position[:, None] + jnp.maximum(counts - 1, 0)
    positions = jnp.broadcast_to(offsets[None], (3, *offsets.shape))
    logits, longer = _run_cached(
        config.text, params["text"], ends, x, positions, jnp.asarray(mask), cache, unroll
    )
    return logits, KVCache(longer.k, longer.v, longer.length, cache.next_position + counts[:, -1])
