"""Advantages and loss against hand-computed values, and what must not move them."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import TypeCheckError

from svrl_jax.dr_grpo import Algorithm, LossParts, Objective, advantages, k3, policy_loss


def flat(
    rewards: list[float], algorithm: Algorithm, scorable: list[bool] | None = None
) -> list[float]:
    mask = np.ones((1, len(rewards)), bool) if scorable is None else np.array([scorable])
    return np.asarray(advantages(np.array([rewards], np.float32), mask, algorithm))[0].tolist()


# ------------------------------------------------------------------------------------ advantages


def test_advantages_by_hand() -> None:
    assert flat([1, 0, 0, 0], "dr_grpo") == [0.75, -0.25, -0.25, -0.25]
    np.testing.assert_allclose(flat([1, 0, 0, 0], "grpo"), [1.5, -0.5, -0.5, -0.5], rtol=1e-6)


@pytest.mark.parametrize("algorithm", ["dr_grpo", "grpo"])
@pytest.mark.parametrize("reward", [0.91, 0.95, 0.0, 1 / 3])
def test_equal_rewards_give_exactly_nothing(reward: float, algorithm: Algorithm) -> None:
    """Float residue must not be amplified by a small standard deviation (R2)."""
    assert flat([reward] * 8, algorithm) == [0.0] * 8


@pytest.mark.parametrize("algorithm", ["dr_grpo", "grpo"])
def test_what_could_not_be_scored_is_not_there(algorithm: Algorithm) -> None:
    got = flat([1, 0, float("nan"), 0.5], algorithm, [True, True, False, True])
    expected = flat([1, 0, 0.5], algorithm)
    np.testing.assert_allclose(got, [*expected[:2], 0, expected[2]], atol=1e-6)
    assert flat([1, 0], algorithm, [False, False]) == [0, 0]
    assert flat([1, 0], algorithm, [True, False]) == [0, 0]


@given(st.lists(st.floats(0, 1, width=32), min_size=2, max_size=8))
@settings(deadline=None, max_examples=60)
def test_advantages_against_numpy(rewards: list[float]) -> None:
    values = np.array(rewards)
    np.testing.assert_allclose(flat(rewards, "dr_grpo"), values - values.mean(), atol=1e-6)
    if values.std() > 1e-3:
        np.testing.assert_allclose(
            flat(rewards, "grpo"), (values - values.mean()) / values.std(ddof=1), atol=1e-3
        )


def test_groups_do_not_mix() -> None:
    rewards = np.array([[1, 0], [0.25, 0.75]], np.float32)
    got = advantages(rewards, np.ones((2, 2), bool), "dr_grpo")
    np.testing.assert_allclose(got, [[0.5, -0.5], [-0.25, 0.25]])


# ------------------------------------------------------------------------------------ k3


def test_k3_by_hand() -> None:
    for d, value in ((np.log(2), 0.306853), (-np.log(2), 0.193147), (3.0, 16.0855)):
        assert float(k3(jnp.zeros(()), jnp.asarray(d))) == pytest.approx(value, abs=1e-4)
    # the gradient with respect to the policy's log-prob lives on (R12)
    gradient = jax.grad(lambda logprob: k3(logprob, jnp.asarray(3.0)))(jnp.zeros(()))
    assert float(gradient) == pytest.approx(1 - np.exp(3.0), abs=1e-3)


@given(st.floats(-5, 5))
@settings(deadline=None, max_examples=40)
def test_k3_is_never_negative(d: float) -> None:
    assert float(k3(jnp.zeros(()), jnp.asarray(d, jnp.float32))) >= -1e-6


# ------------------------------------------------------------------------------------ loss

MASK = np.array([[1, 1, 0, 0], [1, 1, 1, 1]], bool)
ADVANTAGES = np.array([0.75, -0.25], np.float32)
BOTH = np.ones(2, bool)
BARE = Objective(8, beta=0.0)


def loss(
    logprobs: object = 0.0,
    old: object = 0.0,
    ref: object = 0.0,
    advantage: np.ndarray = ADVANTAGES,
    mask: np.ndarray = MASK,
    scorable: np.ndarray = BOTH,
    objective: Objective = BARE,
    rows: int | None = None,
) -> LossParts:
    def filled(value: object) -> np.ndarray:
        return np.broadcast_to(np.asarray(value, np.float32), mask.shape)

    return policy_loss(
        filled(logprobs), filled(old), filled(ref), advantage, mask, scorable, objective,
        len(mask) if rows is None else rows,
    )  # fmt: skip


def test_losses_by_hand() -> None:
    """Advantages (.75, -.25), lengths 2 and 4, ratio 1, constant 8."""
    # (.75 * 2 - .25 * 4) / (2 * 8)
    assert float(loss().loss) == pytest.approx(-0.03125)
    # mean of token means
    assert float(loss(objective=Objective(8, "grpo", beta=0.0)).loss) == pytest.approx(-0.25)


@pytest.mark.parametrize("algorithm", ["dr_grpo", "grpo"])
def test_the_loss_is_the_same_in_micro_batches_any_padding_any_order(algorithm: Algorithm) -> None:
    rng = np.random.default_rng(0)
    objective = Objective(16, algorithm, beta=0.1)
    rows, time = 8, 7
    logprobs, old, ref = rng.normal(-1, 0.4, (3, rows, time)).astype(np.float32)
    mask = np.arange(time) < rng.integers(1, time + 1, rows)[:, None]
    advantage = rng.normal(size=rows).astype(np.float32)
    scorable = rng.random(rows) < 0.8

    def value(order: np.ndarray, parts: int, padding: int) -> float:
        def pad(x: np.ndarray) -> np.ndarray:
            # what padding holds must not matter, however wild
            return np.pad(x, ((0, 0), (0, padding)), constant_values=99 if x.dtype != bool else 0)

        return sum(
            float(
                policy_loss(
                    pad(logprobs[own]), pad(old[own]), pad(ref[own]), advantage[own],
                    pad(mask[own]), scorable[own], objective, rows,
                ).loss
            )
            for own in np.split(order, parts)
        )  # fmt: skip

    whole = value(np.arange(rows), 1, 0)
    for parts in (1, 2, 4):
        assert value(rng.permutation(rows), parts, parts) == pytest.approx(whole, abs=1e-6)


def test_clipping_binds_where_the_gain_is_already_made() -> None:
    objective = Objective(1, beta=0.0, clip=0.2)
    mask = np.ones((4, 1), bool)
    advantage = np.array([1, 1, -1, -1], np.float32)
    ratio = np.array([[1.5], [0.5], [1.5], [0.5]], np.float32)
    parts = loss(np.log(ratio), advantage=advantage, mask=mask, scorable=np.ones(4, bool),
                 objective=objective)  # fmt: skip
    # min(1.5, 1.2), min(.5, .8), min(-1.5, -1.2), min(-.5, -.8)
    assert float(parts.policy) == pytest.approx(-(1.2 + 0.5 - 1.5 - 0.8) / 4)
    assert float(parts.clip_share) == pytest.approx(0.5)
    assert float(parts.mean_ratio) == pytest.approx(1.0)


@pytest.mark.parametrize("algorithm", ["dr_grpo", "grpo"])
def test_gradients_raise_what_did_better(algorithm: Algorithm) -> None:
    objective = Objective(8, algorithm, beta=0.0)

    def value(logprobs: jax.Array) -> jax.Array:
        zeros = jnp.zeros(MASK.shape)
        return policy_loss(logprobs, zeros, zeros, ADVANTAGES, MASK, BOTH, objective, 2).loss

    gradient = np.asarray(jax.grad(value)(jnp.zeros(MASK.shape)))
    assert (gradient[0, :2] < 0).all() and (gradient[1] > 0).all()
    assert (gradient[0, 2:] == 0).all()
    if algorithm == "dr_grpo":
        np.testing.assert_allclose(gradient[0, :2], -0.75 / 16)


def test_no_spread_no_gradient_but_for_the_penalty() -> None:
    """R2 and R3: with beta = 0 exactly nothing; the KL penalty applies to such groups too."""

    def gradient(beta: float) -> np.ndarray:
        def value(logprobs: jax.Array) -> jax.Array:
            zeros = jnp.zeros(MASK.shape)
            none = jnp.zeros(2)
            return policy_loss(
                logprobs, zeros, zeros - 0.5, none, MASK, BOTH, Objective(8, beta=beta), 2
            ).loss

        return np.asarray(jax.grad(value)(jnp.zeros(MASK.shape)))

    assert (gradient(0.0) == 0).all()
    assert (gradient(0.1)[MASK] > 0).all() and (gradient(0.1)[~MASK] == 0).all()


def test_what_could_not_be_scored_counts_in_the_denominator_alone() -> None:
    one = loss(scorable=np.array([True, False]))
    assert float(one.loss) == pytest.approx(-0.75 * 2 / 16)
    none = loss(scorable=np.zeros(2, bool), logprobs=np.nan)
    assert float(none.loss) == 0 and np.isfinite(float(none.mean_ratio))


def test_a_second_pass_has_another_ratio() -> None:
    """R11: the old log-probs are stored, so the ratio moves with the policy."""
    assert float(loss(logprobs=0.1).mean_ratio) == pytest.approx(np.exp(0.1))


def test_the_penalty_is_weighted_by_beta_and_normalised_like_the_policy() -> None:
    parts = loss(ref=np.log(2), objective=Objective(8, beta=0.5), advantage=np.zeros(2, np.float32))
    assert float(parts.kl) == pytest.approx(0.306853 * 6 / 16, abs=1e-5)
    assert float(parts.loss) == pytest.approx(0.5 * 0.306853 * 6 / 16, abs=1e-5)


@pytest.mark.parametrize("fields", [{"length_constant": 0}, {"clip": 0.0}, {"beta": -1.0}])
def test_objectives_are_checked(fields: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        replace(Objective(8), **fields)  # pyright: ignore


def test_shapes_are_checked() -> None:
    with pytest.raises((AssertionError, TypeCheckError)):
        advantages(np.zeros((2, 2), np.float32), np.ones((2, 3), bool), "dr_grpo")
