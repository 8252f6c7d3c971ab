"""Demonstrations as rows of supervised training, token for token what a rollout holds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from transformers import PreTrainedTokenizerFast

from svrl_jax import prompts
from svrl_jax.arms import Arm
from svrl_jax.grammar import Malformed, render
from svrl_jax.messages import message_ids, tool_message
from svrl_jax.trajectory import Trajectory
from verdict_jax.packing import Continuation, PackedRow, pack_row
from verdict_jax.vlm.config import Config
from verdict_jax.vlm.prompting import frame
from verdict_jax.vlm.rows import token_row
from verdict_jax.vlm.tokenizer import plain_ids
from verdict_jax.vlm.windows import Picture


def demonstration(
    tokenizer: PreTrainedTokenizerFast,
    config: Config,
    arm: Arm,
    question: str,
    trajectory: Trajectory,
) -> Continuation:
    """What follows system prompt and picture; the turns of the policy are learnt.

    Args:
        tokenizer, config: of the policy.
        arm: whose prompt stands before it.
        question: as it is put.
        trajectory: well-formed turns with what their searches brought.

    Raises:
        ValueError: a malformed turn, or one that does not begin as the arm forces it to.
    """
    closing = frame(tokenizer, config, prompts.system(arm.prompt, arm.queries), 1).closing
    end = np.array([config.eos_token_ids[0]], np.int32)
    parts = [(np.concatenate([plain_ids(tokenizer, question), closing]), 0.0)]
    forced = prompts.FORCED_SEARCH if arm.forced_search else ""
    for exchange in trajectory.exchanges:
        if isinstance(exchange.turn, Malformed):
            raise ValueError(f"{trajectory.item}: a turn is malformed ({exchange.turn.fault})")
        text = render(exchange.turn)
        if not text.startswith(forced):
            raise ValueError(f"{trajectory.item}: the arm begins a trajectory with {forced!r}")
        # what is forced is encoded apart, as in a rollout
        parts += [(plain_ids(tokenizer, forced), 0.0)] if forced else []
        own = plain_ids(tokenizer, text.removeprefix(forced))
        parts.append((np.concatenate([own, end]), 1.0))
        forced = ""
        if exchange.result is not None:
            message = tool_message(exchange.result)
            parts.append((message_ids(tokenizer, config, message), 0.0))
    return Continuation.of(parts)


def demonstration_row(
    tokenizer: PreTrainedTokenizerFast,
    config: Config,
    arm: Arm,
    picture: Picture,
    demonstrations: Sequence[tuple[str, Trajectory]],
    width: int,
) -> PackedRow:
    """Demonstrations about one picture under one prompt, as many as fit.

    Args:
        tokenizer, config, arm: as of `demonstration`.
        picture: that all are about.
        demonstrations: questions with their trajectories.
        width: tokens of the row.
    """
    system = prompts.system(arm.prompt, arm.queries)
    prefix = token_row(frame(tokenizer, config, system, 1).opening, config, [picture])
    continuations = (
        demonstration(tokenizer, config, arm, question, trajectory)
        for question, trajectory in demonstrations
    )
    return pack_row(prefix, continuations, width)
