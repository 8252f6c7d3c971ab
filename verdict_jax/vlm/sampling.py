"""Sampling continuations: one while-loop, per-row keys, the log-probs of what was done."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int, Key

from verdict_jax.vlm.cache import KVCache
from verdict_jax.vlm.config import Config
from verdict_jax.vlm.inputs import Array
from verdict_jax.vlm.model import extend
from verdict_jax.vlm.parameters import Params

Carry = tuple[jax.Array, jax.Array, "Completion", jax.Array, KVCache]
"""The loop's state: steps done, live rows, output, last tokens, cache of all tokens before them."""

LENGTH, DELIMITER, STOPPED = 0, 1, 2
"""Codes of `Completion.finish`: the token cap came first; a step delimiter; a stop id."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TokenMasks:
    """What the vocabulary means to the sampler, one entry per id.

    Attributes:
        suppressed: never sampled (image placeholders, other control tokens, padding ids). The
            same mask enters every log-prob, so that a policy and its sampler agree (V10).
        stop: ends the chain.
        contains_delimiter: holds a blank line inside one token.
        ends_newline: ends in a newline.
        starts_newline: starts with a newline.
    """

    suppressed: Bool[Array, "vocab"]
    stop: Bool[Array, "vocab"]
    contains_delimiter: Bool[Array, "vocab"]
    ends_newline: Bool[Array, "vocab"]
    starts_newline: Bool[Array, "vocab"]


@dataclass(frozen=True)
class SamplingSettings:
    """How continuations are drawn; nothing is taken from a checkpoint's generation_config (V9).

    The defaults are search-and-learn's: temperature 0.8, no truncation of the distribution.

    Attributes:
        temperature: divides the logits; 0 is greedy.
        top_k: keep the k most likely ids; 0 keeps all.
        top_p: keep the smallest set of most likely ids with at least this mass.
        max_tokens: cap of one continuation.
    """

    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 1.0
    max_tokens: int = 512

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise ValueError(f"temperature must be >= 0, got {self.temperature}")
        if self.top_k < 0:
            raise ValueError(f"top_k must be >= 0 (0 keeps every token), got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be in (0, 1], got {self.top_p}")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be >= 1, got {self.max_tokens}")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Completion:
    """Sampled continuations.

    Attributes:
        tokens: sampled ids; 0 behind a row's end.
        logprobs: of each token under the distribution it was drawn from (tempered, truncated,
            suppressed), in nats; 0 for a greedy draw and behind the end.
        model_logprobs: under the model itself (temperature 1, suppressed ids excluded).
        mask: True for sampled tokens, the ending one included.
        finish: LENGTH, DELIMITER or STOPPED per row.
    """

    tokens: Int[Array, "batch max_tokens"]
    logprobs: Float[Array, "batch max_tokens"]
    model_logprobs: Float[Array, "batch max_tokens"]
    mask: Bool[Array, "batch max_tokens"]
    finish: Int[Array, "batch"]


def suppressed_logprobs(
    logits: Float[Array, "*batch vocab"], suppressed: Bool[Array, "vocab"]
) -> Float[jax.Array, "*batch vocab"]:
    """log softmax of the logits with suppressed ids at -inf, in float32."""
    suppressed = jnp.asarray(suppressed).reshape((1,) * (logits.ndim - 1) + (-1,))
    logits = jnp.where(suppressed, -jnp.inf, jnp.asarray(logits, jnp.float32))
    return jax.nn.log_softmax(logits, axis=-1)


def truncate(
    logprobs: Float[jax.Array, "batch vocab"],
    top_k: int,
    top_p: Float[Array, ""] | None,
) -> Float[jax.Array, "batch vocab"]:
    """-inf outside the top k, then outside the smallest set of mass top_p, not renormalised
    (nucleus sampling, arXiv:1904.09751).

    Ids as likely as the last one kept stay too: which of them survived would otherwise depend on
    the order of a sort.
    """
    if top_k and top_k < logprobs.shape[-1]:
        smallest = jax.lax.top_k(logprobs, top_k)[0][:, -1:]
        logprobs = jnp.where(logprobs < smallest, -jnp.inf, logprobs)
    if top_p is not None:
        shifted = jax.nn.log_softmax(logprobs, axis=-1)
        ordered = -jnp.sort(-shifted, axis=-1)
        mass_before = jnp.cumsum(jnp.exp(ordered), axis=-1) - jnp.exp(ordered)
        kept = jnp.sum(mass_before < top_p, axis=-1, keepdims=True)
        smallest = jnp.take_along_axis(ordered, jnp.maximum(kept - 1, 0), axis=-1)
        logprobs = jnp.where(shifted < smallest, -jnp.inf, logprobs)
    return logprobs


def draw(
    logits: Float[Array, "batch vocab"],
    keys: Key[Array, "batch"],
    suppressed: Bool[Array, "vocab"],
    temperature: Float[Array, ""],
    top_k: int,
    top_p: Float[Array, ""] | None,
) -> tuple[Int[jax.Array, "batch"], Float[jax.Array, "batch"], Float[jax.Array, "batch"]]:
    """One token a row, each row from its own key.

    Returns:
        ids, log-prob under the distribution drawn from, log-prob under the model.
    """
    model = suppressed_logprobs(logits, suppressed)
    greedy = temperature == 0
    tempered = jax.nn.log_softmax(model / jnp.where(greedy, 1.0, temperature), axis=-1)
    drawn_from = jax.nn.log_softmax(truncate(tempered, top_k, top_p), axis=-1)
    sampled = jax.vmap(jax.random.categorical)(keys, drawn_from)
    tokens = jnp.where(greedy, jnp.argmax(model, axis=-1), sampled).astype(jnp.int32)

    def of(logprobs: jax.Array) -> jax.Array:
        return jnp.take_along_axis(logprobs, tokens[:, None], axis=-1)[:, 0]

    return tokens, jnp.where(greedy, 0.0, of(drawn_from)), of(model)


def decode(
    config: Config,
    params: Params,
    cache: KVCache,
    logits: Float[Array, "batch vocab"],
    keys: Key[Array, "batch"],
    masks: TokenMasks,
    active: Bool[Array, "batch"],
    stop_at_delimiter: Bool[Array, ""],
    temperature: Float[Array, ""],
    top_p: Float[Array, ""] | None,
    top_k: int,
    max_tokens: int,
) -> Completion:
    """Samples each row until a step delimiter, a stop id or the cap.

    A row's tokens depend on its own prompt and key alone: token t is drawn with
    fold_in(key, t), whatever its neighbours do.

    Args:
        config: the model (static under jit).
        params: its parameters.
        cache: the prompts; must have room for `max_tokens` - 1 more (checked by the caller).
        logits: after each prompt.
        keys: one per row.
        masks: of the vocabulary.
        active: rows to sample; the others (padding of the bucket) stay as they are.
        stop_at_delimiter: end at the first token that completes a blank line.
        temperature: 0 is greedy.
        top_p: None skips the sort over the vocabulary.
        top_k: static; 0 keeps all.
        max_tokens: static.
    """
    batch = keys.shape[0]
    blank = Completion(
        jnp.zeros((batch, max_tokens), jnp.int32),
        jnp.zeros((batch, max_tokens), jnp.float32),
        jnp.zeros((batch, max_tokens), jnp.float32),
        jnp.zeros((batch, max_tokens), jnp.bool_),
        jnp.zeros((batch,), jnp.int32),
    )
    stops, contains = jnp.asarray(masks.stop), jnp.asarray(masks.contains_delimiter)
    ends, starts = jnp.asarray(masks.ends_newline), jnp.asarray(masks.starts_newline)

    def sampled(
        step: jax.Array,
        live: jax.Array,
        after_newline: jax.Array,
        so_far: Completion,
        logits: jax.Array,
    ) -> tuple[jax.Array, Completion, jax.Array]:
        """Rows that go on, output and tokens, after one token more of each live row."""
        row_keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, step)
        tokens, logprobs, model_logprobs = draw(
            logits, row_keys, masks.suppressed, temperature, top_k, top_p
        )
        stopped = live & stops[tokens]
        complete = contains[tokens] | (after_newline & starts[tokens])
        delimited = live & ~stopped & stop_at_delimiter & complete

        def put(array: Array, value: jax.Array) -> jax.Array:
            array = jnp.asarray(array)
            return array.at[:, step].set(jnp.where(live, value, array[:, step]))

        so_far = Completion(
            put(so_far.tokens, tokens),
            put(so_far.logprobs, logprobs),
            put(so_far.model_logprobs, model_logprobs),
            put(so_far.mask, live),
            jnp.where(stopped, STOPPED, jnp.where(delimited, DELIMITER, so_far.finish)),
        )
        return live & ~stopped & ~delimited, so_far, tokens

    def going(carry: Carry) -> jax.Array:
        step, live = carry[0], carry[1]
        return (step < max_tokens) & jnp.any(live)

    # A token is read when another one is to follow: the last of each row never is.
    def body(carry: Carry) -> Carry:
        step, live, so_far, tokens, cache = carry
        logits, cache = extend(config, params, cache, tokens[:, None], live[:, None], unroll=True)
        live, so_far, drawn = sampled(step, live, ends[tokens], so_far, logits)
        return step + 1, live, so_far, drawn, cache

    zero = jnp.zeros((), jnp.int32)
    none = jnp.zeros((batch,), jnp.bool_)
    live, first, tokens = sampled(zero, jnp.asarray(active), none, blank, jnp.asarray(logits))
    return jax.lax.while_loop(going, body, (zero + 1, live, first, tokens, cache))[2]
