"""Prompts of a batch in one cache: read once, then only extended or forked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int, Key, UInt32

from verdict_jax.vlm.buckets import bucket
from verdict_jax.vlm.cache import KVCache, fork, gather, resize
from verdict_jax.vlm.checkpoint import VLM
from verdict_jax.vlm.config import Config
from verdict_jax.vlm.inputs import Array
from verdict_jax.vlm.model import extend, prefill
from verdict_jax.vlm.parameters import Params
from verdict_jax.vlm.rows import TokenRow, pack_tokens
from verdict_jax.vlm.sampling import (
    Completion,
    SamplingSettings,
    TokenMasks,
    decode,
    suppressed_logprobs,
)

MIN_STEP_TOKENS = 16
"""Least tokens of a bucket of steps, so that short steps share one."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Prefixes:
    """Token prefixes that the model has read.

    Attributes:
        cache: their keys and values; rows past the last prefix are padding.
        logits: after each prefix, float32.
        lengths: tokens of each prefix, on the host, where room is checked.
    """

    cache: KVCache
    logits: Float[Array, "rows vocab"]
    lengths: tuple[int, ...] = field(metadata={"static": True})

    @property
    def num_rows(self) -> int:
        """Rows of the bucket."""
        return self.logits.shape[0]


def read_prompts(
    vlm: VLM,
    prompts: Sequence[TokenRow],
    num_rows: int,
    features: Float[Array, "images units width"] | None,
) -> Prefixes:
    """Prefills the prompts into a new cache of `num_rows` rows, in one pass.

    Raises:
        ValueError: more prompts than rows.
    """
    lengths = tuple(len(prompt.tokens) for prompt in prompts)
    width = bucket(max(lengths, default=1), MIN_STEP_TOKENS)
    inputs = pack_tokens(prompts, num_rows, width, vlm.config.pad_token_id)
    next_position = np.zeros(num_rows, np.int32)
    next_position[: len(prompts)] = [prompt.next_position for prompt in prompts]
    logits, cache = prefill_rows(
        vlm.config, vlm.params, inputs, next_position, features, slots=width
    )
    return Prefixes(cache, logits, lengths)


def append(vlm: VLM, prefixes: Prefixes, steps: Sequence[Int[np.ndarray, "_"]]) -> Prefixes:
    """Extends each prefix by its step; an empty one leaves its prefix, and its logits, as is.

    Raises:
        ValueError: not one step per prefix.
    """
    lengths = tuple(
        length + len(step) for length, step in zip(prefixes.lengths, steps, strict=True)
    )
    if lengths == prefixes.lengths:
        return prefixes
    tokens, mask = _packed(steps, prefixes.num_rows, vlm.config.pad_token_id)
    slots = max(prefixes.cache.slots, bucket(max(lengths)))
    logits, cache = extend_rows(
        vlm.config, vlm.params, prefixes.cache, prefixes.logits, tokens, mask, slots=slots
    )
    return Prefixes(cache, logits, lengths)


def take(prefixes: Prefixes, rows: Sequence[int], num_rows: int) -> Prefixes:
    """The prefixes of these rows, in this order, in a bucket of `num_rows` rows.

    Raises:
        ValueError: more rows than the bucket holds.
    """
    if len(rows) > num_rows:
        raise ValueError(f"{len(rows)} rows do not fit a bucket of {num_rows}")
    lengths = tuple(prefixes.lengths[row] for row in rows)
    padded = np.zeros(num_rows, np.int32)
    padded[: len(rows)] = rows
    cache, logits = take_rows(prefixes.cache, prefixes.logits, padded)
    return Prefixes(cache, logits, lengths)


def sample(
    vlm: VLM,
    prefixes: Prefixes,
    keys: Key[jax.Array, "batch ways"],
    settings: SamplingSettings,
    active: Sequence[bool],
    stop_at_delimiter: bool,
) -> Completion:
    """Forks each prefix `ways` times and samples a continuation of each.

    Args:
        keys: one per prefix and continuation.
        settings: of the sampler.
        active: prefixes to continue; the others get empty continuations.
        stop_at_delimiter: False runs to the end of the chain.

    Returns:
        Host arrays with ways * rows rows; prefix b's begin at row b * ways.

    Raises:
        ValueError: not one row of keys and one flag per prefix.
    """
    batch, ways = keys.shape
    if not batch == len(active) == len(prefixes.lengths):
        raise ValueError(
            f"{len(prefixes.lengths)} prefixes, {batch} rows of keys, {len(active)} flags"
        )
    bits = np.asarray(jax.random.key_data(keys))
    padded = np.zeros((prefixes.num_rows, *bits.shape[1:]), bits.dtype)
    padded[:batch] = bits
    running = np.zeros((prefixes.num_rows, ways), bool)
    running[:batch] = np.asarray(active, bool)[:, None]
    completion = sample_rows(
        vlm.config,
        vlm.params,
        prefixes.cache,
        prefixes.logits,
        padded.reshape(prefixes.num_rows * ways, -1),
        vlm.masks,
        running.reshape(-1),
        np.bool_(stop_at_delimiter),
        np.float32(settings.temperature),
        None if settings.top_p == 1 else np.float32(settings.top_p),
        ways=ways,
        slots=bucket(max(prefixes.lengths, default=0) + settings.max_tokens),
        top_k=settings.top_k,
        max_tokens=settings.max_tokens,
        key_impl=str(jax.random.key_impl(keys)),
    )
    return jax.device_get(completion)


@dataclass(frozen=True)
class Replies:
    """What the model would answer to several continuations of prefixes; host arrays.

    Attributes:
        log_masses: log of the probability that each option of the row's kind is the next token.
        generated: greedy answers, one per generated row, in their order; None if there are none.
    """

    log_masses: Float[np.ndarray, "continuations options"]
    generated: Completion | None


def ask(
    vlm: VLM,
    prefixes: Prefixes,
    rows: Sequence[int],
    continuations: Sequence[Int[np.ndarray, "_"]],
    num_rows: int,
    spellings: Int[np.ndarray, "continuations options spellings"],
    generated_rows: Sequence[int],
    max_tokens: int,
) -> Replies:
    """Reads each continuation behind a fork of its prefix, all in one pass, and notes the answer.

    Args:
        rows: the prefix of each continuation.
        continuations: token ids, none empty.
        num_rows: rows of the bucket, at least the number of continuations.
        spellings: ids that count as each option of a continuation's answer, -1 for none.
        generated_rows: continuations that are answered, not only read off at the next token.
        max_tokens: cap of a generated answer.

    Raises:
        ValueError: more continuations than rows, or an empty one.
    """
    if len(continuations) > num_rows:
        raise ValueError(f"{len(continuations)} continuations do not fit a bucket of {num_rows}")
    if not all(len(continuation) for continuation in continuations):
        raise ValueError("a continuation is empty")
    count = len(continuations)
    tokens, mask = _packed(continuations, num_rows, vlm.config.pad_token_id)
    sources = np.zeros(num_rows, np.int32)
    sources[:count] = rows
    options = np.full((num_rows, *spellings.shape[1:]), -1, np.int32)
    options[:count] = spellings
    needed = max(
        prefixes.lengths[row] + len(ids) for row, ids in zip(rows, continuations, strict=True)
    )
    padded_rows = np.full(bucket(len(generated_rows)), -1, np.int32)
    padded_rows[: len(generated_rows)] = generated_rows
    log_masses, generated = ask_rows(
        vlm.config,
        vlm.params,
        prefixes.cache,
        sources,
        tokens,
        mask,
        options,
        vlm.masks,
        padded_rows if generated_rows else None,
        slots=bucket(needed + (max_tokens if generated_rows else 0)),
        max_tokens=max_tokens,
    )
    return Replies(np.asarray(log_masses)[:count], jax.device_get(generated))


def _packed(
    steps: Sequence[Int[np.ndarray, "_"]], num_rows: int, pad_id: int
) -> tuple[Int[np.ndarray, "rows time"], Bool[np.ndarray, "rows time"]]:
    width = bucket(max(len(step) for step in steps), MIN_STEP_TOKENS)
    tokens = np.full((num_rows, width), pad_id, np.int32)
    mask = np.zeros((num_rows, width), bool)
    for row, step in enumerate(steps):
        tokens[row, : len(step)] = step
        mask[row, : len(step)] = True
    return tokens, mask


prefill_rows = jax.jit(prefill, static_argnames=("config", "slots"))


@partial(jax.jit, static_argnames=("config", "slots"))
def extend_rows(
    config: Config,
    params: Params,
    cache: KVCache,
    logits: Float[Array, "rows vocab"],
    tokens: Int[Array, "rows time"],
    mask: Bool[Array, "rows time"],
    slots: int,
) -> tuple[Float[jax.Array, "rows vocab"], KVCache]:
    """`model.extend` in a cache of `slots` slots; rows without new tokens keep their logits.

    Args:
        config: the model (static).
        params: its parameters.
        cache: what the rows hold, in the parameters' dtype.
        logits: after each row, float32.
        tokens: new ids, int32.
        mask: True for real tokens.
        slots: room of the new cache (static).

    Returns:
        Logits after each row (float32), and the longer cache.
    """
    new_logits, longer = extend(config, params, resize(cache, slots), tokens, mask)
    touched = jnp.any(mask, axis=1)[:, None]
    return jnp.where(touched, new_logits, logits), longer


@jax.jit
def take_rows(
    cache: KVCache, logits: Float[Array, "rows vocab"], rows: Int[Array, "new_rows"]
) -> tuple[KVCache, Float[jax.Array, "new_rows vocab"]]:
    """Cache and logits of these rows."""
    return gather(cache, rows), jnp.take(logits, rows, axis=0)


@partial(jax.jit, static_argnames=("config", "ways", "slots", "top_k", "max_tokens", "key_impl"))
def sample_rows(
    config: Config,
    params: Params,
    cache: KVCache,
    logits: Float[Array, "rows vocab"],
    key_bits: UInt32[Array, "samples words"],
    masks: TokenMasks,
    active: Bool[Array, "samples"],
    stop_at_delimiter: Bool[Array, ""],
    temperature: Float[Array, ""],
    top_p: Float[Array, ""] | None,
    ways: int,
    slots: int,
    top_k: int,
    max_tokens: int,
    key_impl: str,
) -> Completion:
    """Continuations of each row, forked `ways` times, in a cache of `slots` slots.

    Args:
        config: the model (static).
        params: its parameters.
        cache: the prompts, in the parameters' dtype.
        logits: after each prompt, float32.
        key_bits: uint32 data of one key per sample: an array may be padded where a key may not.
        masks: of the vocabulary.
        active: samples to draw; the others stay empty.
        stop_at_delimiter: end at a blank line.
        temperature: float32; 0 is greedy.
        top_p: float32; None skips its sort.
        ways: samples of each row (static); row b's begin at b * ways.
        slots: room of the cache (static).
        top_k: static; 0 keeps all.
        max_tokens: cap of a sample (static).
        key_impl: of the keys (static).
    """
    return decode(
        config,
        params,
        resize(fork(cache, ways), slots),
        jnp.repeat(logits, ways, axis=0),
        jax.random.wrap_key_data(jnp.asarray(key_bits), impl=key_impl),
        masks,
        active,
        stop_at_delimiter,
        temperature,
        top_p,
        top_k,
        max_tokens,
    )


@partial(jax.jit, static_argnames=("config", "slots", "max_tokens"))
def ask_rows(
    config: Config,
    params: Params,
    cache: KVCache,
    sources: Int[Array, "asked"],
    tokens: Int[Array, "asked time"],
    mask: Bool[Array, "asked time"],
    spellings: Int[Array, "asked options spellings"],
    masks: TokenMasks,
    generated_rows: Int[Array, "generated"] | None,
    slots: int,
    max_tokens: int,
) -> tuple[Float[jax.Array, "asked options"], Completion | None]:
    """One pass over all continuations: how likely each option is next, and generated answers.

    Args:
        config: the model (static).
        params: its parameters.
        cache: the prefixes, in the parameters' dtype.
        sources: the prefix of each continuation, int32.
        tokens: the continuations, int32.
        mask: True for real tokens.
        spellings: int32 ids of each option of a continuation, -1 for none.
        masks: of the vocabulary.
        generated_rows: int32 continuations whose greedy answer is wanted, -1 for padding; None for
            no decoding at all.
        slots: room of the cache (static).
        max_tokens: cap of an answer (static).

    Returns:
        Log-mass of each option (float32, -inf for an option without ids), and the answers.
    """
    forked = resize(gather(cache, sources), slots)
    logits, longer = extend(config, params, forked, tokens, mask)
    logprobs = suppressed_logprobs(logits, masks.suppressed)
    spellings = jnp.asarray(spellings)
    flat = jnp.maximum(spellings, 0).reshape(spellings.shape[0], -1)
    of_spelling = jnp.take_along_axis(logprobs, flat, axis=1).reshape(spellings.shape)
    of_spelling = jnp.where(spellings < 0, -jnp.inf, of_spelling)
    log_masses = jax.nn.logsumexp(of_spelling, axis=-1)
    if generated_rows is None:
        return log_masses, None
    generated_rows = jnp.asarray(generated_rows)
    sources = jnp.maximum(generated_rows, 0)
    generated = decode(
        config,
        params,
        gather(longer, sources),
        jnp.take(logits, sources, axis=0),
        jax.random.split(jax.random.key(0), sources.shape[0]),
        masks,
        generated_rows >= 0,
        jnp.bool_(True),
        jnp.float32(0),
        None,
        0,
        max_tokens,
    )
    return log_masses, generated
