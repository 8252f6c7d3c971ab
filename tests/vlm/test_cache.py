"""The cache equals the full forward pass, and no operation changes an older cache."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from verdict_jax.vlm.cache import KVCache, fork, gather, init_cache, resize
from verdict_jax.vlm.parameters import Params
from vlm.builders import (
    SLOTS,
    TOLERANCE,
    Batch,
    Pair,
    cached_logits,
    compare,
    extend,
    in_bfloat16,
    mixed_prompts,
    our_features,
    our_logits,
    pack,
    prefill,
)

ROUNDING = 2e-5
"""Between two orders of the same float32 sums."""


def prefilled(pair: Pair, batch: Batch, slots: int = SLOTS) -> tuple[np.ndarray, KVCache]:
    features = our_features(pair, batch)
    logits, cache = prefill(
        pair.config, pair.params, batch.inputs, batch.next_position, features, slots
    )
    return np.asarray(logits), cache


def tokens_of(rows: Sequence[Sequence[int]], side: str = "right") -> tuple[np.ndarray, np.ndarray]:
    """Up to four new tokens for each of four rows, padded with an ordinary id."""
    tokens, mask = np.full((4, 4), 77, np.int32), np.zeros((4, 4), bool)
    for row, new in enumerate(rows):
        span = slice(0, len(new)) if side == "right" else slice(4 - len(new), 4)
        tokens[row, span], mask[row, span] = new, True
    return tokens, mask


def contents(cache: KVCache) -> list[np.ndarray]:
    return [np.array(leaf) for leaf in jax.tree.leaves(cache)]


def rows_equal(one: KVCache, other: KVCache, pairs: Sequence[tuple[int, int]]) -> None:
    """Row i of the one holds what row j of the other does."""
    for i, j in pairs:
        length = int(one.length[i])
        assert length == other.length[j]
        assert one.next_position[i] == other.next_position[j]
        for x, y in ((one.k, other.k), (one.v, other.v)):
            np.testing.assert_allclose(x[:, i, :length], y[:, j, :length], rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("name", ["untied", "tied"])
def test_prefill_and_decode_equal_one_full_forward(
    name: str, request: pytest.FixtureRequest
) -> None:
    """Known-fault V8: no prompt token is fed twice."""
    pair: Pair = request.getfixturevalue(name)
    batch = pack(pair, mixed_prompts())
    full = [row[-5:] for row in our_logits(pair, batch)]
    parity = compare(cached_logits(pair, batch, decoded=4), full)
    assert parity.spread >= 1
    assert parity.difference <= ROUNDING


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("padding", [0, 7, 64])
def test_prompts_padded_on_either_side(padding: int, side: str, untied: Pair) -> None:
    batch = pack(untied, mixed_prompts())
    logits, cache = prefilled(untied, batch)
    longest = max(len(row.tokens) for row in batch.rows)
    padded = pack(untied, mixed_prompts(), width=longest + padding, side=side)
    again, other = prefilled(untied, padded)
    np.testing.assert_allclose(again[:3], logits[:3], rtol=0, atol=ROUNDING)
    rows_equal(other, cache, [(row, row) for row in range(3)])


@pytest.mark.parametrize("side", ["left", "right"])
def test_extend_by_several_tokens_equals_prefill(side: str, untied: Pair) -> None:
    """Rows take 4, 1 and 3 new tokens; the fourth is padding of the bucket and takes none."""
    prompts = mixed_prompts()
    news = [[20, 21, 22, 23], [30], [40, 41, 42], []]
    _, cache = prefilled(untied, pack(untied, prompts))
    before = contents(cache)
    tokens, mask = tokens_of(news, side)
    logits, longer = extend(untied.config, untied.params, cache, tokens, mask)
    longer_prompts = [
        type(prompt)(np.concatenate([prompt.tokens, np.array(new, np.int32)]), prompt.pictures)
        for prompt, new in zip(prompts, news, strict=False)
    ]
    expected, whole = prefilled(untied, pack(untied, longer_prompts))
    np.testing.assert_allclose(logits[:3], expected[:3], rtol=0, atol=ROUNDING)
    rows_equal(longer, whole, [(row, row) for row in range(3)])
    assert (longer.length[3], longer.next_position[3]) == (0, 0)
    for old, now in zip(before, contents(cache), strict=True):
        np.testing.assert_array_equal(old, now)


def test_a_row_without_new_tokens_stays_as_it_is(untied: Pair) -> None:
    _, cache = prefilled(untied, pack(untied, mixed_prompts()))
    tokens, mask = tokens_of([[20, 21], [], [40], []])
    _, longer = extend(untied.config, untied.params, cache, tokens, mask)
    for row in (1, 3):
        np.testing.assert_array_equal(longer.k[:, row], cache.k[:, row])
        np.testing.assert_array_equal(longer.v[:, row], cache.v[:, row])
    np.testing.assert_array_equal(longer.length - cache.length, [2, 0, 1, 0])
    np.testing.assert_array_equal(longer.next_position - cache.next_position, [2, 0, 1, 0])


def test_unrolled_equals_scanned(untied: Pair) -> None:
    _, cache = prefilled(untied, pack(untied, mixed_prompts()))
    given = tokens_of([[20, 21], [30], [40], []])
    scanned, one = extend(untied.config, untied.params, cache, *given)
    unrolled, other = extend(untied.config, untied.params, cache, *given, unroll=True)
    np.testing.assert_allclose(unrolled[:3], scanned[:3], rtol=0, atol=ROUNDING)
    rows_equal(one, other, [(row, row) for row in range(3)])


def test_the_next_position_is_not_the_length(untied: Pair) -> None:
    """Row 0 reads 4 + 1 + 12 + 1 + 6 tokens; its picture of 3 x 4 units takes 4 positions."""
    _, cache = prefilled(untied, pack(untied, mixed_prompts()))
    assert cache.length.tolist() == [24, 9, 39, 0]
    assert cache.next_position.tolist() == [16, 9, 25, 0]


def test_forked_rows_go_their_own_ways(untied: Pair) -> None:
    _, cache = prefilled(untied, pack(untied, mixed_prompts()))
    two = gather(cache, jnp.array([2, 0]))
    before = contents(two)
    forked = fork(two, 2)
    rows_equal(forked, cache, [(0, 2), (1, 2), (2, 0), (3, 0)])
    tokens, mask = tokens_of([[20], [30, 31], [40], [50]])
    logits, longer = extend(untied.config, untied.params, forked, tokens, mask)
    # each row as in a batch without its twin
    tokens, mask = tokens_of([[40], [], [20], []])
    alone, first = extend(untied.config, untied.params, cache, tokens, mask)
    np.testing.assert_allclose(
        logits[np.array([0, 2])], alone[np.array([2, 0])], rtol=0, atol=ROUNDING
    )
    rows_equal(longer, first, [(0, 2), (2, 0)])
    tokens, mask = tokens_of([[50], [], [30, 31], []])
    alone, second = extend(untied.config, untied.params, cache, tokens, mask)
    np.testing.assert_allclose(
        logits[np.array([1, 3])], alone[np.array([2, 0])], rtol=0, atol=ROUNDING
    )
    rows_equal(longer, second, [(1, 2), (3, 0)])
    for old, now in zip(before, contents(two), strict=True):
        np.testing.assert_array_equal(old, now)


def test_gather_takes_rows_in_order(untied: Pair) -> None:
    _, cache = prefilled(untied, pack(untied, mixed_prompts()))
    before = contents(cache)
    rows = np.array([1, 1, 0, 2, 0])
    taken = gather(cache, rows)
    np.testing.assert_array_equal(taken.k, np.asarray(cache.k)[:, rows])
    np.testing.assert_array_equal(taken.v, np.asarray(cache.v)[:, rows])
    np.testing.assert_array_equal(taken.length, np.asarray(cache.length)[rows])
    np.testing.assert_array_equal(taken.next_position, np.asarray(cache.next_position)[rows])
    for old, now in zip(before, contents(cache), strict=True):
        np.testing.assert_array_equal(old, now)


def test_resizing_keeps_the_rows(untied: Pair) -> None:
    _, cache = prefilled(untied, pack(untied, mixed_prompts()))
    for slots in (39, 96):
        resized = resize(cache, slots)
        assert (resized.slots, cache.slots) == (slots, SLOTS)
        rows_equal(resized, cache, [(row, row) for row in range(4)])
    given = tokens_of([[20, 21, 22, 23], [30], [40, 41, 42], []])
    logits, longer = extend(untied.config, untied.params, resized, *given)
    expected, other = extend(untied.config, untied.params, cache, *given)
    np.testing.assert_allclose(logits[:3], expected[:3], rtol=0, atol=ROUNDING)
    rows_equal(longer, other, [(row, row) for row in range(3)])


def test_an_empty_cache_is_extended_like_a_prompt(untied: Pair) -> None:
    empty = init_cache(untied.config.text, 4, SLOTS, jnp.float32)
    given = tokens_of([[20, 21, 22], [30], [40, 41], [50]])
    logits, cache = extend(untied.config, untied.params, empty, *given)
    prompts = [type(mixed_prompts()[0])(row[real]) for row, real in zip(*given, strict=True)]
    expected = our_logits(untied, pack(untied, prompts))
    assert cache.length.tolist() == [3, 1, 2, 1]
    last = [row[-1:] for row in expected]
    assert compare([row[None] for row in np.asarray(logits)], last).difference <= TOLERANCE


def test_the_cache_keeps_the_parameters_dtype(untied: Pair) -> None:
    half = in_bfloat16(untied).params
    inputs = pack(untied, mixed_prompts()).inputs

    def dtypes(params: Params) -> tuple[jax.Array, jax.Array, jax.Array]:
        start = np.zeros(4, np.int32)
        logits, cache = prefill(untied.config, params, inputs, start, None, SLOTS)
        return logits, jnp.asarray(cache.k), jnp.asarray(cache.v)

    shapes = jax.eval_shape(dtypes, half)
    assert [shape.dtype for shape in shapes] == [jnp.float32, jnp.bfloat16, jnp.bfloat16]
