"""Dr. GRPO, and GRPO beside it: advantages, clipped ratio, k3 penalty, length normaliser.

Dr. GRPO is Liu et al., "Understanding R1-Zero-Like Training" (arXiv:2503.20783); GRPO is
DeepSeekMath (arXiv:2402.03300). Pure functions of arrays; masks are given, never inferred.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from verdict_jax.vlm.inputs import Array

Algorithm = Literal["dr_grpo", "grpo"]
"""dr_grpo: r - mean, and a constant in place of a row's length. grpo: also divided by the group's
standard deviation, and the mean over a row's tokens."""


@dataclass(frozen=True)
class Objective:
    """What the loss is made of.

    Attributes:
        length_constant: what Dr. GRPO divides a row's sum by: the response token budget (a
            constant of the run, not the padded width; arXiv:2503.20783). Unused by GRPO.
        algorithm: which normalisers.
        clip: half-width of the ratio's interval around 1 (MMSearch-R1: .2).
        beta: weight of the KL penalty to the reference policy (MMSearch-R1: .001).

    Raises:
        ValueError: length_constant or clip not positive, beta negative.
    """

    length_constant: int
    algorithm: Algorithm = "dr_grpo"
    clip: float = 0.2
    beta: float = 0.001

    def __post_init__(self) -> None:
        if self.length_constant < 1 or self.clip <= 0 or self.beta < 0:
            raise ValueError(
                f"length_constant and clip must be positive and beta not negative, got {self}"
            )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LossParts:
    """The loss with what it is made of.

    Attributes:
        loss: what is minimised: policy + beta * kl.
        policy: the clipped objective, negated.
        kl: k3 to the reference policy, normalised like the policy loss.
        clip_share: share of the trained tokens whose ratio the clipping binds.
        mean_ratio: of the trained tokens; 1 on the first pass over a rollout.
    """

    loss: Float[Array, ""]
    policy: Float[Array, ""]
    kl: Float[Array, ""]
    clip_share: Float[Array, ""]
    mean_ratio: Float[Array, ""]


def advantages(
    rewards: Float[Array, "prompts group"],
    scorable: Bool[Array, "prompts group"],
    algorithm: Algorithm,
) -> Float[Array, "prompts group"]:
    """How much better than its group each rollout did.

    Dr. GRPO: r - mean. GRPO: that divided by the group's sample standard deviation (ddof 1). Equal
    rewards give exactly 0, whatever their float residue. Rollouts that could not be scored take no
    part in the mean and get 0.

    Args:
        rewards: of the rollouts of each prompt; anything where not scorable.
        scorable: False where the oracle failed.
        algorithm: which.
    """
    chex.assert_equal_shape([rewards, scorable])
    chex.assert_rank(rewards, 2)
    rewards = jnp.where(scorable, jnp.asarray(rewards, jnp.float32), 0.0)
    count = jnp.sum(scorable, axis=1, keepdims=True)
    # relative to the group's smallest, so that equal rewards leave no residue behind
    smallest = jnp.min(jnp.where(scorable, rewards, jnp.inf), axis=1, keepdims=True)
    above = jnp.where(scorable, rewards - smallest, 0.0)
    mean = jnp.sum(above, axis=1, keepdims=True) / jnp.maximum(count, 1)
    centred = jnp.where(scorable, above - mean, 0.0)
    if algorithm == "dr_grpo":
        return centred
    variance = jnp.sum(centred**2, axis=1, keepdims=True) / jnp.maximum(count - 1, 1)
    spread = jnp.any(above > 0, axis=1, keepdims=True)
    return jnp.where(spread, centred / jnp.sqrt(jnp.where(spread, variance, 1.0)), 0.0)


def k3(
    logprobs: Float[Array, "*batch"], ref_logprobs: Float[Array, "*batch"]
) -> Float[Array, "*batch"]:
    """exp(d) - d - 1 with d = ref - policy: Schulman's estimator of KL(policy || reference).

    Neither value nor gradient is clamped.
    """
    d = ref_logprobs - logprobs
    return jnp.exp(d) - d - 1.0


def policy_loss(
    logprobs: Float[Array, "rows time"],
    old_logprobs: Float[Array, "rows time"],
    ref_logprobs: Float[Array, "rows time"],
    advantages: Float[Array, "rows"],
    completion_mask: Bool[Array, "rows time"],
    scorable: Bool[Array, "rows"],
    objective: Objective,
    rows: int,
) -> LossParts:
    """The clipped objective with the KL penalty, over the tokens that the policy wrote.

    Per token -min(rho A, clip(rho, 1 - c, 1 + c) A) + beta k3, rho = exp(logprob - old). Dr. GRPO
    divides the sum over all rows by rows * length_constant; GRPO averages over each row's tokens,
    then over the rows. Rows that could not be scored take part in neither term, but in `rows`.
    Micro-batches add up: each one's loss is its share of the whole batch's.

    Args:
        logprobs: of each token under the policy that is trained.
        old_logprobs: under the policy that sampled, from the same distribution.
        ref_logprobs: under the reference policy.
        advantages: of each row.
        completion_mask: True for tokens that the policy wrote.
        scorable: False for rows that could not be scored.
        objective: normalisers and weights.
        rows: of the whole batch, also where these are a micro-batch of it.
    """
    chex.assert_equal_shape([logprobs, old_logprobs, ref_logprobs, completion_mask])
    chex.assert_equal_shape([advantages, scorable])
    mask = completion_mask & scorable[:, None]
    # masked before exp: what padding holds must give neither inf nor a gradient
    logprobs = jnp.where(mask, logprobs, 0.0)
    ratio = jnp.exp(logprobs - jnp.where(mask, old_logprobs, 0.0))
    advantage = jnp.broadcast_to(advantages[:, None], ratio.shape)
    bounded = jnp.clip(ratio, 1.0 - objective.clip, 1.0 + objective.clip)
    gain = jnp.where(mask, jnp.minimum(ratio * advantage, bounded * advantage), 0.0)
    penalty = jnp.where(mask, k3(logprobs, jnp.where(mask, ref_logprobs, 0.0)), 0.0)
    tokens = jnp.sum(mask, axis=1)
    if objective.algorithm == "dr_grpo":
        weight = jnp.full(tokens.shape, 1.0 / (rows * objective.length_constant))
    else:
        weight = 1.0 / (rows * jnp.maximum(tokens, 1))
    policy = -jnp.sum(jnp.sum(gain, axis=1) * weight)
    kl = jnp.sum(jnp.sum(penalty, axis=1) * weight)
    trained = jnp.maximum(jnp.sum(tokens), 1)
    binds = mask & (bounded * advantage < ratio * advantage)
    return LossParts(
        loss=policy + objective.beta * kl,
        policy=policy,
        kl=kl,
        clip_share=jnp.sum(binds) / trained,
        mean_ratio=jnp.sum(jnp.where(mask, ratio, 0.0)) / trained,
    )
