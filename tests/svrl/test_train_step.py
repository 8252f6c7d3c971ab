"""The update: micro-batches, pictures, masks, adapters, and what may move the log-probs."""

from __future__ import annotations

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny_vlm

from svrl_jax import adapters
from svrl_jax.dr_grpo import Objective
from svrl_jax.train_batch import TrainBatch
from svrl_jax.train_step import (
    Compose,
    Layout,
    Metrics,
    TrainState,
    TrainStep,
    completion_logprobs,
    completion_places,
    make_train_step,
    row_logprobs,
)
from verdict_jax.vlm import model
from verdict_jax.vlm.inputs import ModelInputs, PatchBatch
from verdict_jax.vlm.parameters import Params
from verdict_jax.vlm.rows import pack_tokens, token_row
from verdict_jax.vlm.sampling import suppressed_logprobs
from verdict_jax.vlm.windows import pack_patches

CONFIG = tiny_vlm.tiny_config()
ROWS, TIME, TOKENS = 4, 40, 12
OBJECTIVE = Objective(length_constant=16, beta=0.04)


def whole(trained: Params, frozen: Params) -> Params:
    return trained


def text_only(trained: Params, frozen: Params) -> Params:
    return {**frozen, **trained}


@functools.cache
def pictures() -> tuple[PatchBatch, ModelInputs]:
    """Two prompts with a picture each, two rollouts of each; prompts of different lengths."""
    vlm = tiny_vlm.tiny_vlm()
    processed = [vlm.image_processor.process(tiny_vlm.picture(seed, (32, 32))) for seed in (0, 1)]
    patches, packed = pack_patches(processed, CONFIG.vision, 2, 1)
    rng = np.random.default_rng(0)
    rows = []
    for row in range(ROWS):
        ids = rng.integers(260, 500, 6 + row + TOKENS)
        ids[2] = CONFIG.image_token_id
        rows.append(token_row(ids, CONFIG, [packed[row // 2]]))
    return patches, pack_tokens(rows, ROWS, TIME, CONFIG.pad_token_id)


@functools.cache
def batch() -> TrainBatch:
    """Behind each prompt two stretches that the policy wrote, with a tool's words between."""
    patches, inputs = pictures()
    mask = np.zeros((ROWS, TIME), bool)
    for row in range(ROWS):
        end = int(np.asarray(inputs.mask)[row].sum())
        mask[row, end - 11 : end - 6] = mask[row, end - 3 : end] = True
    rng = np.random.default_rng(1)
    old = plain_logprobs(tiny_vlm.tiny_params(), inputs, patches)
    noise = 0.3 * rng.normal(size=(2, ROWS, TIME)).astype(np.float32)
    return TrainBatch(
        inputs,
        patches,
        mask,
        np.array([0.75, -0.25, 0.5, -0.5], np.float32),
        np.array([True, True, True, True]),
        np.where(mask, old + noise[0], -7.0).astype(np.float32),
        np.where(mask, old + noise[1], -9.0).astype(np.float32),
    )


def plain_logprobs(params: Params, inputs: ModelInputs, patches: PatchBatch) -> np.ndarray:
    """Of each token from one whole forward pass; 0 at the first, which nothing predicts."""
    features = encode(CONFIG, params, patches)
    logits = forward(CONFIG, params, inputs, features)
    found = suppressed_logprobs(logits, tiny_vlm.tiny_vlm().masks.suppressed)
    own = jnp.take_along_axis(found[:, :-1], jnp.asarray(inputs.tokens)[:, 1:, None], axis=2)
    return np.concatenate([np.zeros((ROWS, 1), np.float32), own[..., 0]], axis=1)


encode = jax.jit(model.encode_images, static_argnums=0)
forward = jax.jit(model.forward, static_argnums=0)


@functools.cache
def step_of(
    compose: Compose = whole, micro_batches: int = 1, objective: Objective = OBJECTIVE
) -> TrainStep:
    layout = Layout(micro_batches)
    return make_train_step(CONFIG, compose, objective, optax.sgd(1.0), layout)


def update(
    given: TrainBatch,
    compose: Compose = whole,
    micro_batches: int = 1,
    trained: Params | None = None,
    frozen: Params | None = None,
    objective: Objective = OBJECTIVE,
) -> tuple[Params, Metrics]:
    """The change of the trained parameters, which is the negative gradient, and the metrics."""
    trained = tiny_vlm.tiny_params() if trained is None else trained
    # donated, so a copy
    mine = jax.tree.map(jnp.array, trained)
    state = TrainState(mine, optax.sgd(1.0).init(mine), jnp.zeros((), jnp.int32))
    suppressed = np.asarray(tiny_vlm.tiny_vlm().masks.suppressed)
    step = step_of(compose, micro_batches, objective)
    after, metrics = step(state, frozen if frozen is not None else {}, given, suppressed, TOKENS)
    assert int(after.step) == 1
    return jax.tree.map(lambda a, b: np.asarray(a - b), after.trained, trained), metrics


def largest(change: Params) -> float:
    return max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(change))


def assert_same(one: Params, two: Params, tolerance: float = 1e-5) -> None:
    assert largest(one) > 1e-3
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=tolerance), one, two)


# ------------------------------------------------------------------------------------ log-probs


def test_trained_tokens_are_found_in_order() -> None:
    """R9: prompt, prompt, prompt, reply, reply: the places before 3 and 4 predict."""
    mask = np.array([[0, 0, 0, 1, 1], [0, 1, 0, 0, 1], [0, 0, 0, 0, 1]], bool)
    places, real = completion_places(mask, 2)
    assert np.asarray(places)[:2].tolist() == [[3, 4], [1, 4]] and int(places[2, 0]) == 4
    assert np.asarray(real).tolist() == [[True, True], [True, True], [True, False]]


def test_log_probs_are_those_of_a_whole_forward_pass() -> None:
    patches, inputs = pictures()
    params, masks = tiny_vlm.tiny_params(), tiny_vlm.tiny_vlm().masks
    places, real = completion_places(batch().completion_mask, TOKENS)
    features = encode(CONFIG, params, patches)
    found = completion_logprobs(CONFIG, params, inputs, features, masks.suppressed, places)
    expected = np.take_along_axis(plain_logprobs(params, inputs, patches), np.asarray(places), 1)
    assert np.std(expected[np.asarray(real)]) > 1
    np.testing.assert_allclose(
        np.asarray(found.logprobs)[np.asarray(real)], expected[np.asarray(real)], atol=1e-4
    )


@pytest.mark.parametrize("parts", [1, 2])
def test_the_references_log_probs_stand_in_their_places(parts: int) -> None:
    patches, inputs = pictures()
    params, masks = tiny_vlm.tiny_params(), tiny_vlm.tiny_vlm().masks
    mask = np.asarray(batch().completion_mask)
    features = encode(CONFIG, params, patches)
    found = row_logprobs(CONFIG, params, inputs, features, masks.suppressed, mask, TOKENS, parts)
    expected = np.where(mask, plain_logprobs(params, inputs, patches), 0)
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_the_picture_moves_the_log_probs() -> None:
    """R8: an update that lost the pictures would be trained blind."""
    swapped = replace(
        batch(), pictures=jax.tree.map(lambda leaf: np.asarray(leaf)[::-1], batch().pictures)
    )
    assert abs(float(update(batch())[1].ratio) - float(update(swapped)[1].ratio)) > 1e-3


# -------------------------------------------------------------------------------------- gradient


def test_the_gradient_is_that_of_the_loss() -> None:
    """A finite difference along the change itself, through the whole model."""
    change, metrics = update(batch())
    norm = float(metrics.gradient_norm)
    squares = sum(
        float((np.asarray(leaf, np.float64) ** 2).sum()) for leaf in jax.tree.leaves(change)
    )
    np.testing.assert_allclose(squares**0.5, norm, rtol=1e-4)
    losses = []
    for sign in (1, -1):
        moved = jax.tree.map(
            lambda p, c, sign=sign: p + sign * 1e-3 / norm * c, tiny_vlm.tiny_params(), change
        )
        losses.append(float(update(batch(), trained=moved)[1].loss))
    np.testing.assert_allclose((losses[1] - losses[0]) / 2e-3, norm, rtol=2e-2)


@pytest.mark.parametrize("parts", [2, 4])
def test_micro_batches_change_nothing(parts: int) -> None:
    given = replace(batch(), scorable=np.array([True, True, False, True]))
    one, two = update(given), update(given, micro_batches=parts)
    assert_same(one[0], two[0])
    for name in ("loss", "policy", "kl", "ratio", "clip_share", "entropy", "gradient_norm"):
        np.testing.assert_allclose(getattr(one[1], name), getattr(two[1], name), atol=1e-5)


def test_features_in_place_of_patches_train_the_text_the_same() -> None:
    params = tiny_vlm.tiny_params()
    features = encode(CONFIG, params, pictures()[0])
    whole_change, _ = update(batch())
    frozen = {"vision": params["vision"]}
    given = replace(batch(), pictures=np.asarray(features))
    change, _ = update(given, text_only, trained={"text": params["text"]}, frozen=frozen)
    assert_same(change, {"text": whole_change["text"]})
    assert largest(whole_change["vision"]) > 1e-3


def test_a_tools_words_are_read_but_not_trained() -> None:
    """R6: editing them moves later log-probs; their own log-probs are in no loss."""
    inputs = batch().inputs
    tokens = np.array(inputs.tokens)
    end = int(np.asarray(inputs.mask)[0].sum())
    tokens[0, end - 5] = 300 if tokens[0, end - 5] != 300 else 301
    edited = replace(batch(), inputs=replace(inputs, tokens=tokens))
    assert abs(float(update(edited)[1].ratio) - float(update(batch())[1].ratio)) > 1e-5
    # what stands at untrained places of the stored log-probs is read by nobody
    outside = ~np.asarray(batch().completion_mask)
    wild = np.where(outside, np.nan, batch().old_logprobs)
    assert_same(
        update(
            replace(
                batch(),
                old_logprobs=wild,
                ref_logprobs=wild * 0 + np.where(outside, np.nan, batch().ref_logprobs),
            )
        )[0],
        update(batch())[0],
        0,
    )


def test_padding_may_hold_anything() -> None:
    inputs = batch().inputs
    tokens = np.where(inputs.mask, inputs.tokens, 17)
    positions = np.where(np.asarray(inputs.mask)[None], inputs.positions, 999)
    given = replace(batch(), inputs=replace(inputs, tokens=tokens, positions=positions))
    assert_same(update(given)[0], update(batch())[0])


def test_a_positive_advantage_raises_the_log_prob() -> None:
    """R10."""
    given = replace(
        batch(),
        advantages=np.array([1, 0, 0, 0], np.float32),
        old_logprobs=plain_logprobs(tiny_vlm.tiny_params(), *pictures()[::-1]),
    )
    free = replace(OBJECTIVE, beta=0.0)
    change, _ = update(given, objective=free)
    params = jax.tree.map(lambda p, c: p + 1e-2 * c, tiny_vlm.tiny_params(), change)
    before = plain_logprobs(tiny_vlm.tiny_params(), *pictures()[::-1])
    after = plain_logprobs(params, *pictures()[::-1])
    mask = np.asarray(batch().completion_mask)[0]
    assert after[0][mask].sum() > before[0][mask].sum()


def test_equal_rewards_and_no_penalty_move_nothing() -> None:
    """R2: exactly."""
    given = replace(batch(), advantages=np.zeros(ROWS, np.float32))
    change, metrics = update(given, objective=replace(OBJECTIVE, beta=0.0))
    assert largest(change) == 0 and float(metrics.gradient_norm) == 0


def test_a_batch_without_a_score_is_finite_and_moves_nothing() -> None:
    """R4."""
    given = replace(batch(), scorable=np.zeros(ROWS, bool))
    change, metrics = update(given)
    assert largest(change) == 0
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(metrics))


def test_metrics_by_hand() -> None:
    given, metrics = batch(), update(batch())[1]
    mask = np.asarray(given.completion_mask)
    own = plain_logprobs(tiny_vlm.tiny_params(), given.inputs, pictures()[0])
    ratio = np.exp(own - given.old_logprobs)[mask]
    np.testing.assert_allclose(metrics.ratio, ratio.mean(), rtol=1e-4)
    advantage = np.broadcast_to(np.asarray(given.advantages)[:, None], mask.shape)[mask]
    binds = np.where(advantage > 0, ratio > 1.2, ratio < 0.8)
    np.testing.assert_allclose(metrics.clip_share, binds.mean(), atol=1e-6)
    assert 0.05 < binds.mean() < 0.95
    np.testing.assert_allclose(metrics.length, mask.sum() / ROWS)
    np.testing.assert_allclose(metrics.advantage_spread, np.std(given.advantages), rtol=1e-6)


# -------------------------------------------------------------------------------------- adapters


def test_adapters_start_as_the_base_and_are_all_that_moves() -> None:
    params = tiny_vlm.tiny_params()
    low = adapters.init_adapters(params, 2, jax.random.key(0))
    assert len(low) == 7
    merged = adapters.merge(params, low, 2.0)
    jax.tree.map(np.testing.assert_array_equal, merged, params)

    def compose(trained: Params, frozen: Params) -> Params:
        return adapters.merge(frozen, trained, 2.0)

    change, _ = update(batch(), compose, trained=low, frozen=params)
    ups = [adapter["up"] for adapter in change.values()]
    downs = [adapter["down"] for adapter in change.values()]
    # with up at zero the difference has no gradient by down
    assert min(np.abs(up).max() for up in ups) > 0 and max(np.abs(d).max() for d in downs) == 0


def test_adapters_by_hand() -> None:
    params = tiny_vlm.tiny_params()
    low = adapters.init_adapters(params, 3, jax.random.key(1))
    name = "text.layers.q_proj.linear.kernel"
    up = np.random.default_rng(0).normal(size=low[name]["up"].shape).astype(np.float32)
    merged = adapters.merge(params, {name: {"down": low[name]["down"], "up": jnp.asarray(up)}}, 0.5)
    kernel = np.asarray(params["text"]["layers"]["q_proj"]["linear"]["kernel"])
    expected = kernel + 0.5 * np.einsum("lir,lro->lio", low[name]["down"], up)
    got = merged["text"]["layers"]["q_proj"]["linear"]["kernel"]
    np.testing.assert_allclose(got, expected, atol=1e-5)
    with pytest.raises(ValueError, match="at least 1"):
        adapters.init_adapters(params, 0, jax.random.key(0))


# ------------------------------------------------------------------------------------ compilation


def test_the_same_shapes_compile_once() -> None:
    step = step_of()
    before = step._cache_size()  # pyright: ignore[reportAttributeAccessIssue]
    update(batch())
    again = replace(batch(), advantages=np.zeros(ROWS, np.float32))
    update(again)
    assert step._cache_size() <= max(before, 1)  # pyright: ignore[reportAttributeAccessIssue]
