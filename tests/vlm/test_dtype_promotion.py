"""No function of the port promotes a type by itself, in fp32 and in bf16."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from verdict_jax.vlm import model, sampling
from vlm.builders import SLOTS, Pair, mixed_prompts, pack

DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}


@pytest.mark.parametrize("name", DTYPES)
def test_types_are_what_is_said(name: str, untied: Pair) -> None:
    config, dtype = untied.config, DTYPES[name]
    params = jax.tree.map(lambda leaf: leaf.astype(dtype), untied.params)
    batch = pack(untied, mixed_prompts())
    rows = len(batch.inputs.tokens)
    none = np.zeros(config.text.vocab_size, bool)
    masks = sampling.TokenMasks(none, none, none, none, none)
    keys = jax.random.split(jax.random.key(0), rows)
    new = np.ones((rows, 3), np.int32), np.ones((rows, 3), bool)
    settings = np.ones(rows, bool), jnp.bool_(True), jnp.float32(0.8), jnp.float32(0.9)

    def whole_way(params: model.Params) -> tuple[jax.Array, ...]:
        features = model.encode_images(config, params, batch.patches)
        logits = model.forward(config, params, batch.inputs, features)
        after, cache = model.prefill(
            config, params, batch.inputs, batch.next_position, features, SLOTS
        )
        later, cache = model.extend(config, params, cache, *new)
        completion = sampling.decode(
            config, params, cache, later, keys, masks, *settings, top_k=5, max_tokens=2
        )
        return features, cache.k, logits, after, later, completion.logprobs, completion.tokens

    with jax.numpy_dtype_promotion("strict"):
        types = [array.dtype for array in jax.eval_shape(whole_way, params)]
    assert types == [jnp.dtype(dtype)] * 2 + [jnp.dtype(jnp.float32)] * 4 + [jnp.dtype(jnp.int32)]
