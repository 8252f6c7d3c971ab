"""Rollouts as the arrays of one update."""

from __future__ import annotations

from dataclasses import dataclass

import jax
from jaxtyping import Bool, Float

from verdict_jax.vlm.inputs import Array, ModelInputs, PatchBatch


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainBatch:
    """What an update is computed from; row p * G + g is rollout g of prompt p.

    Attention, training and scoring have a mask each: `inputs.mask`, `completion_mask`, `scorable`.
    None is inferred from token ids.

    Attributes:
        inputs: prompts with their rollouts, padded.
        pictures: patches where the vision tower is trained, else its features, computed once
            outside the update; None where no prompt has a picture.
        completion_mask: True for tokens that the policy wrote (its end-of-turn tokens too), False
            for prompts, tool results and padding.
        advantages: of each rollout, float32.
        scorable: False for rollouts that the oracle failed to judge.
        old_logprobs: of each token under the policy that sampled, in nats; read only where
            completion_mask is True.
        ref_logprobs: the same under the reference policy.
    """

    inputs: ModelInputs
    pictures: PatchBatch | Float[Array, "images units width"] | None
    completion_mask: Bool[Array, "rows time"]
    advantages: Float[Array, "rows"]
    scorable: Bool[Array, "rows"]
    old_logprobs: Float[Array, "rows time"]
    ref_logprobs: Float[Array, "rows time"]
