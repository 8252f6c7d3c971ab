"""Rollouts as the arrays of one update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Bool, Float

from svrl_jax.rollout import Rollout
from verdict_jax.vlm.buckets import bucket
from verdict_jax.vlm.inputs import Array, ModelInputs, PatchBatch
from verdict_jax.vlm.rows import TokenRow, pack_tokens


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


@dataclass(frozen=True)
class PackedRollouts:
    """Rollouts as host arrays of one bucket.

    Attributes:
        inputs: prompts with what followed, padded on the right.
        completion_mask: True for the tokens of model spans.
        old_logprobs: of those, as they were sampled.
        completion_tokens: a bucket that holds the trained tokens of every row.
    """

    inputs: ModelInputs
    completion_mask: Bool[np.ndarray, "rows time"]
    old_logprobs: Float[np.ndarray, "rows time"]
    completion_tokens: int


def pack_rollouts(rollouts: Sequence[Rollout], pad_id: int) -> PackedRollouts:
    """The rollouts as they were sampled, token for token; masks come from the spans' kinds.

    Args:
        rollouts: of one batch, at least one.
        pad_id: what padding holds.
    """
    rows = [_whole(rollout) for rollout in rollouts]
    width = bucket(max(len(row.tokens) for row in rows))
    inputs = pack_tokens(rows, len(rows), width, pad_id)
    mask = np.zeros((len(rows), width), bool)
    logprobs = np.zeros((len(rows), width), np.float32)
    for index, rollout in enumerate(rollouts):
        at = len(rollout.prompt.tokens)
        for span in rollout.spans:
            end = at + len(span.ids)
            mask[index, at:end] = span.kind == "model"
            logprobs[index, at:end] = span.logprobs
            at = end
    return PackedRollouts(inputs, mask, logprobs, bucket(int(mask.sum(axis=1).max())))


def _whole(rollout: Rollout) -> TokenRow:
    prompt = rollout.prompt
    ids = np.concatenate([prompt.tokens, *(span.ids for span in rollout.spans)])
    count = len(ids) - len(prompt.tokens)
    positions = prompt.next_position + np.arange(count, dtype=np.int32)
    return TokenRow(
        ids,
        np.concatenate([prompt.positions, np.broadcast_to(positions, (3, count))], axis=1),
        np.concatenate([prompt.feature_ids, np.full(count, -1, np.int32)]),
        prompt.next_position + count,
    )
