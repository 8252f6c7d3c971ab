"""Sampled tokens, where they end, and the log-probs of what was done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from verdict_jax.vlm.cache import KVCache, gather
from verdict_jax.vlm.rows import TokenRow, pack_tokens
from verdict_jax.vlm.sampling import (
    DELIMITER,
    LENGTH,
    STOPPED,
    Completion,
    SamplingSettings,
    TokenMasks,
    draw,
    suppressed_logprobs,
)
from vlm.builders import (
    EOS,
    IMAGE,
    OTHER_EOS,
    PAD,
    SLOTS,
    VIDEO,
    VISION_END,
    VISION_START,
    WIDTH,
    Batch,
    Pair,
    decode,
    extend,
    forward,
    mixed_prompts,
    our_features,
    pack,
    prefill,
    prompt,
    reference_inputs,
)

SETTINGS = settings(derandomize=True, deadline=None, max_examples=60)
VOCAB = 320
MAX_TOKENS = 7
NEVER = (PAD, IMAGE, VIDEO, VISION_START, VISION_END, *range(314, VOCAB))
"""Placeholders, control tokens, and the padded end of the vocabulary (V10)."""


def mask_of(ids: Sequence[int]) -> np.ndarray:
    mask = np.zeros(VOCAB, bool)
    mask[list(ids)] = True
    return mask


def masks(
    suppressed: Sequence[int] = NEVER,
    stop: Sequence[int] = (EOS, OTHER_EOS),
    contains: Sequence[int] = (),
    ends: Sequence[int] = (),
    starts: Sequence[int] = (),
) -> TokenMasks:
    return TokenMasks(*map(mask_of, (suppressed, stop, contains, ends, starts)))


def prefilled(pair: Pair, batch: Batch) -> tuple[jax.Array, KVCache]:
    features = our_features(pair, batch)
    return prefill(pair.config, pair.params, batch.inputs, batch.next_position, features, SLOTS)


def continued(
    pair: Pair,
    state: tuple[jax.Array, KVCache],
    token_masks: TokenMasks,
    temperature: float = 0.0,
    top_p: float | None = None,
    top_k: int = 0,
    seeds: Sequence[int] = (0, 1, 2, 3),
    active: Sequence[bool] = (True, True, True, False),
    stop_at_delimiter: bool = True,
) -> Completion:
    logits, cache = state
    return decode(
        pair.config,
        pair.params,
        cache,
        logits,
        jax.vmap(jax.random.key)(jnp.asarray(seeds)),
        token_masks,
        np.asarray(active),
        np.asarray(stop_at_delimiter),
        np.float32(temperature),
        None if top_p is None else np.float32(top_p),
        top_k=top_k,
        max_tokens=MAX_TOKENS,
    )


def after_reading(
    pair: Pair, state: tuple[jax.Array, KVCache], completion: Completion
) -> tuple[jax.Array, KVCache]:
    """The state once every sampled token is read."""
    _, cache = state
    return extend(pair.config, pair.params, cache, completion.tokens, completion.mask)


def texts(completion: Completion) -> list[list[int]]:
    tokens, mask = np.asarray(completion.tokens), np.asarray(completion.mask)
    return [row[real].tolist() for row, real in zip(tokens, mask, strict=True)]


# --------------------------------------------------------------------- greedy, against torch


@pytest.mark.parametrize("name", ["untied", "tied"])
def test_greedy_generation_equals_transformers(name: str, request: pytest.FixtureRequest) -> None:
    """20 prompts of text and pictures, four at a time here and one by one in transformers."""
    pair: Pair = request.getfixturevalue(name)
    rng = np.random.default_rng(20)
    prompts = []
    for index in range(20):
        before, after = rng.integers(1, 9, 2)
        height, width = 8 * rng.integers(1, 5, 2)
        parts: list[int | tuple[int, int]] = [int(before)]
        if index % 2:
            parts += [(int(height), int(width)), int(after)]
        if index % 4 == 3:
            parts += [(16, 8), 2]
        prompts.append(prompt(rng, *parts))
    assert sum(len(item.pictures) for item in prompts) == 15
    ours = []
    for start in range(0, 20, 4):
        state = prefilled(pair, pack(pair, prompts[start : start + 4]))
        # the second call goes on where the first stopped
        rows, active = [[]] * 4, (True,) * 4
        for _ in range(2):
            completion = continued(pair, state, masks(), active=active)
            state = after_reading(pair, state, completion)
            rows = [row + new for row, new in zip(rows, texts(completion), strict=True)]
            active = tuple(np.asarray(completion.finish) == LENGTH)
        ours += rows
    theirs = []
    for item in prompts:
        given = reference_inputs(pair.reference, [item])
        with torch.no_grad():
            ids = pair.reference.generate(
                **{name: value for name, value in given.items() if value is not None},
                do_sample=False,
                max_new_tokens=2 * MAX_TOKENS,
                suppress_tokens=list(NEVER),
                eos_token_id=[EOS, OTHER_EOS],
                pad_token_id=PAD,
            )
        prompt_ids = given["input_ids"]
        assert prompt_ids is not None
        theirs.append(ids[0, prompt_ids.shape[1] :].tolist())
    assert ours == theirs
    assert len({tuple(row) for row in theirs}) > 15


# ------------------------------------------------------------------ the distribution, by numpy


def reference_distribution(
    logits: np.ndarray, suppressed: np.ndarray, temperature: float, top_k: int, top_p: float
) -> np.ndarray:
    """Probabilities of one row in float64."""
    values = np.where(suppressed, -np.inf, logits.astype(np.float64)) / temperature
    weights = np.exp(values - values.max())
    if top_k and top_k < len(weights):
        weights[weights < np.sort(weights)[-top_k]] = 0
    probabilities = weights / weights.sum()
    kept = np.zeros(len(weights), bool)
    mass = 0.0
    for index in np.argsort(-probabilities, kind="stable"):
        if mass >= top_p:
            break
        kept[index] = True
        mass += probabilities[index]
    kept |= probabilities >= probabilities[kept].min()
    weights = np.where(kept, probabilities, 0)
    return weights / weights.sum()


def near_a_boundary(probabilities: np.ndarray, top_p: float) -> bool:
    mass = np.cumsum(np.sort(probabilities)[::-1])
    return bool(np.abs(mass - top_p).min() < 1e-5)


DRAWS = 4096
IDS = 12

jitted_draw = jax.jit(draw, static_argnums=4)


def drawn(
    row: np.ndarray,
    suppressed: np.ndarray,
    temperature: float,
    top_k: int = 0,
    top_p: float | None = None,
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Many draws from the same logits, each with its own key."""
    tokens, logprobs, model_logprobs = jitted_draw(
        np.broadcast_to(row.astype(np.float32), (DRAWS, IDS)),
        jax.random.split(jax.random.key(seed), DRAWS),
        suppressed,
        np.float32(temperature),
        top_k,
        None if top_p is None else np.float32(top_p),
    )
    return np.asarray(tokens), np.asarray(logprobs), np.asarray(model_logprobs)


@SETTINGS
@given(
    st.integers(0, 2**32 - 1),
    st.floats(0.1, 3),
    st.sampled_from([0, 1, 4, 40]),
    st.floats(0.05, 0.99) | st.none(),
)
@example(0, 1.0, 4, 0.5)
def test_draws_from_the_reference_distribution(
    seed: int, temperature: float, top_k: int, top_p: float | None
) -> None:
    rng = np.random.default_rng(seed)
    row = rng.normal(size=IDS).astype(np.float32) * 2
    suppressed = rng.random(IDS) < 0.2
    assume(not suppressed.all())
    untruncated = reference_distribution(row, suppressed, temperature, top_k, 1.0)
    assume(top_p is None or not near_a_boundary(untruncated, top_p))
    expected = reference_distribution(row, suppressed, temperature, top_k, top_p or 1.0)
    model = reference_distribution(row, suppressed, 1.0, 0, 1.0)
    tokens, logprobs, model_logprobs = drawn(row, suppressed, temperature, top_k, top_p)
    assert (expected[tokens] > 0).all()
    np.testing.assert_allclose(logprobs, np.log(expected[tokens]), rtol=0, atol=1e-4)
    np.testing.assert_allclose(model_logprobs, np.log(model[tokens]), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [(1.0, 0, None), (0.5, 0, None), (2.0, 4, None), (1.0, 0, 0.8), (1.5, 4, 0.7)],
)
def test_frequencies(temperature: float, top_k: int, top_p: float | None) -> None:
    """Pearson's statistic stays within 5 standard deviations of its mean."""
    row = np.random.default_rng(5).normal(size=IDS).astype(np.float32)
    suppressed = np.arange(IDS) == 3
    expected = reference_distribution(row, suppressed, temperature, top_k, top_p or 1.0)
    tokens, _, _ = drawn(row, suppressed, temperature, top_k, top_p, seed=1)
    observed = np.bincount(tokens, minlength=IDS)
    possible = expected > 0
    assert observed[~possible].sum() == 0
    if top_k or top_p:
        assert possible.sum() < IDS - 1
    means = DRAWS * expected[possible]
    statistic = ((observed[possible] - means) ** 2 / means).sum()
    freedom = possible.sum() - 1
    assert statistic <= freedom + 5 * np.sqrt(2 * freedom)


def test_equally_likely_ids_survive_together() -> None:
    row = np.array([0, 2, 1, 1, 1, -1, -2, -2, -2, -2, -2, -2])
    none = np.zeros(IDS, bool)
    for top_k, top_p in ((4, None), (0, 0.6)):
        tokens, _, _ = drawn(np.where(row == 0, 1, row), none, 1.0, top_k, top_p)
        assert set(tokens.tolist()) == {0, 1, 2, 3, 4}


def test_greedy_takes_the_likeliest_allowed_id() -> None:
    row = np.array([5.0, 3.0, 4.0, 1.0] + [-np.inf] * 8)
    tokens, logprobs, model = drawn(row, np.arange(IDS) == 0, 0.0)
    assert (set(tokens.tolist()), set(logprobs.tolist())) == ({2}, {0.0})
    np.testing.assert_allclose(model, 4 - np.log(np.exp([3.0, 4.0, 1.0]).sum()), atol=1e-6)


def test_suppressed_ids_leave_every_logprob() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(2, 3, VOCAB)).astype(np.float32)
    logits[..., IMAGE] = 50
    logprobs = np.asarray(suppressed_logprobs(logits, mask_of(NEVER)))
    assert (logprobs[..., list(NEVER)] == -np.inf).all()
    np.testing.assert_allclose(np.exp(logprobs).sum(axis=-1), 1, atol=1e-5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": -0.1}, "temperature must be >= 0"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_k": -1}, "top_k must be >= 0"),
        ({"top_p": 0.0}, "top_p must be in"),
        ({"top_p": 1.1}, "top_p must be in"),
        ({"max_tokens": 0}, "max_tokens must be >= 1"),
    ],
)
def test_impossible_settings_are_refused(fields: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SamplingSettings(), **fields)


def test_default_settings_are_explicit() -> None:
    """Known-fault V9: search-and-learn's, whatever a checkpoint's generation_config says."""
    assert SamplingSettings() == SamplingSettings(0.8, 0, 1.0, 512)


# -------------------------------------------------------------------------- decode, log-probs


def recomputed(pair: Pair, batch: Batch, completion: Completion) -> list[np.ndarray]:
    """Logits of each sampled token by one forward pass over prompt and completion."""
    rows = []
    for row, new in zip(batch.rows, texts(completion), strict=False):
        steps = row.next_position + np.arange(len(new), dtype=np.int32)
        rows.append(
            TokenRow(
                np.concatenate([row.tokens, np.array(new, np.int32)]),
                np.concatenate([row.positions, np.broadcast_to(steps, (3, len(new)))], axis=1),
                np.concatenate([row.feature_ids, np.full(len(new), -1, np.int32)]),
                0,
            )
        )
    inputs = pack_tokens(rows, 4, WIDTH, PAD)
    logits = np.asarray(forward(pair.config, pair.params, inputs, our_features(pair, batch)))
    return [
        logits[index, len(before.tokens) - 1 : len(after.tokens) - 1]
        for index, (before, after) in enumerate(zip(batch.rows, rows, strict=True))
    ]


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(1.3, 0, None), (0.7, 20, 0.9), (0.0, 0, None)]
)
def test_logprobs_are_those_of_the_forward_pass(
    temperature: float, top_k: int, top_p: float | None, untied: Pair
) -> None:
    """Known-faults V8, V10: the same suppression, and temperature or truncation only where said."""
    batch = pack(untied, mixed_prompts())
    # many suppressed ids, so that forgetting the mask moves every log-prob
    never = [*NEVER, *range(100, 220)]
    completion = continued(
        untied, prefilled(untied, batch), masks(never, stop=()), temperature, top_p, top_k
    )
    lengths = [len(row) for row in texts(completion)]
    assert lengths == [MAX_TOKENS] * 3 + [0]
    suppressed = mask_of(never)
    logprobs = np.asarray(completion.logprobs)
    model_logprobs = np.asarray(completion.model_logprobs)
    for row, logits in enumerate(recomputed(untied, batch, completion)):
        tokens = np.asarray(completion.tokens)[row]
        assert not suppressed[tokens].any()
        model = np.asarray(suppressed_logprobs(logits, suppressed))
        expected = model[np.arange(MAX_TOKENS), tokens]
        np.testing.assert_allclose(model_logprobs[row], expected, rtol=0, atol=1e-4)
        for step, token in enumerate(tokens):
            if temperature == 0:
                assert logprobs[row, step] == 0
                assert token == model[step].argmax()
                continue
            drawn_from = reference_distribution(
                logits[step], suppressed, temperature, top_k, top_p or 1.0
            )
            assert abs(logprobs[row, step] - np.log(drawn_from[token])) <= 1e-4


# ------------------------------------------------------------------------- where a row ends


def test_several_stop_ids(untied: Pair) -> None:
    state = prefilled(untied, pack(untied, mixed_prompts()))
    free = texts(continued(untied, state, masks(stop=())))
    stops = {free[0][3], free[1][5]}
    completion = continued(untied, state, masks(stop=tuple(stops)))
    for row in range(3):
        ends = [at for at, token in enumerate(free[row]) if token in stops]
        expected = free[row][: ends[0] + 1] if ends else free[row]
        assert texts(completion)[row] == expected
        assert completion.finish[row] == (STOPPED if ends else LENGTH)
    assert completion.finish[0] == completion.finish[1] == STOPPED
    # nothing is left behind a row's end
    for leaf in (completion.tokens, completion.logprobs, completion.model_logprobs):
        assert (np.asarray(leaf)[~np.asarray(completion.mask)] == 0).all()


def test_step_delimiters(untied: Pair) -> None:
    """A token that holds a blank line, or two that make one; nothing else ends a step."""
    state = prefilled(untied, pack(untied, mixed_prompts()))
    row = texts(continued(untied, state, masks(stop=()), temperature=2.0))[0]
    assert len(set(row)) == MAX_TOKENS, "the cases below need distinct tokens"

    def length(token_masks: TokenMasks, stop_at_delimiter: bool = True) -> tuple[int, int]:
        completion = continued(
            untied, state, token_masks, temperature=2.0, stop_at_delimiter=stop_at_delimiter
        )
        return len(texts(completion)[0]), int(completion.finish[0])

    one_token = masks(stop=(), contains=(row[4],))
    assert length(one_token) == (5, DELIMITER)
    assert length(one_token, stop_at_delimiter=False) == (MAX_TOKENS, LENGTH)
    # "\n" then "\n"
    assert length(masks(stop=(), ends=(row[2],), starts=(row[3],))) == (4, DELIMITER)
    # a newline alone, or one that another token follows
    assert length(masks(stop=(), ends=(row[2],)))[1] == LENGTH
    assert length(masks(stop=(), starts=(row[3],)))[1] == LENGTH
    assert length(masks(stop=(), ends=(row[2],), starts=(row[4],)))[1] == LENGTH
    assert length(masks(stop=(), ends=(row[3],), starts=(row[2],)))[1] == LENGTH
    # what starts the continuation has no newline before it
    assert length(masks(stop=(), starts=(row[0],)))[1] == LENGTH
    # a stop id is a stop, even where it holds a blank line
    assert length(masks(stop=(row[4],), contains=(row[4],))) == (5, STOPPED)


# ----------------------------------------------------------------------------- per-row keys


def test_a_row_is_sampled_alike_wherever_it_stands(untied: Pair) -> None:
    """Neighbours, place in the batch and size of the batch do not enter a row's draws."""
    logits, cache = prefilled(untied, pack(untied, mixed_prompts()))
    completion = continued(untied, (logits, cache), masks(), 1.0, seeds=(7, 8, 9, 10))
    expected = texts(completion)
    assert len({tuple(row) for row in expected[:3]}) == 3
    # another order, another neighbour, a neighbour with another key
    order = np.array([2, 2, 0, 1])
    state = (logits[order], gather(cache, order))
    moved = continued(
        untied, state, masks(), 1.0, seeds=(9, 3, 7, 8), active=(True, True, True, True)
    )
    rows = texts(moved)
    assert [rows[2], rows[3], rows[0]] == expected[:3]
    assert rows[1] != rows[0]
    np.testing.assert_allclose(
        moved.model_logprobs[2], completion.model_logprobs[0], rtol=0, atol=1e-4
    )
    # alone
    first = np.array([0])
    state = (logits[first], gather(cache, first))
    alone = continued(untied, state, masks(), 1.0, seeds=(7,), active=(True,))
    assert texts(alone) == expected[:1]


def test_inactive_rows_stay_empty(untied: Pair) -> None:
    state = prefilled(untied, pack(untied, mixed_prompts()))
    active = (False, True, False, False)
    completion = continued(untied, state, masks(), 1.0, active=active)
    every = continued(untied, state, masks(), 1.0)
    assert texts(completion) == [[], texts(every)[1], [], []]
