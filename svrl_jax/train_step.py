"""One update by Dr. GRPO: forward with pictures, loss, gradient, optimizer, in one program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Bool, Float, Int

from svrl_jax.dr_grpo import Objective, policy_loss
from svrl_jax.token_logprobs import TokenLogprobs, token_logprobs
from svrl_jax.train_batch import TrainBatch
from verdict_jax.vlm import model
from verdict_jax.vlm.config import Config
from verdict_jax.vlm.inputs import Array, ModelInputs, PatchBatch
from verdict_jax.vlm.parameters import Params

Compose = Callable[[Params, Params], Params]
"""(trained, frozen) -> the policy's parameters: what is trained may be all of them, one tower, or
adapters."""


class TrainState(NamedTuple):
    """What an update changes. A plain tuple: orbax maps it to trees of shapes while it restores.

    Attributes:
        trained: parameters that are optimised.
        optimizer_state: of the optimizer.
        step: updates done.
    """

    trained: Params
    optimizer_state: optax.OptState
    step: Int[jax.Array, ""]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Metrics:
    """Of one update; means over the tokens that were trained, unless said otherwise.

    Attributes:
        loss, policy, kl: as of `dr_grpo.LossParts`.
        ratio: to the policy that sampled.
        clip_share: share of tokens whose ratio the clipping binds.
        entropy: of the policy, in nats.
        gradient_norm: before clipping.
        advantage_spread: standard deviation of the advantages over the rows.
        length: trained tokens per row.
    """

    loss: Float[Array, ""]
    policy: Float[Array, ""]
    kl: Float[Array, ""]
    ratio: Float[Array, ""]
    clip_share: Float[Array, ""]
    entropy: Float[Array, ""]
    gradient_norm: Float[Array, ""]
    advantage_spread: Float[Array, ""]
    length: Float[Array, ""]


@dataclass(frozen=True)
class Layout:
    """How an update is computed; the result is the same but for rounding.

    Attributes:
        micro_batches: parts of the batch that are computed one after the other; divides the rows.
        remat: recompute each layer in the backward pass instead of storing it.
    """

    micro_batches: int = 1
    remat: bool = False


def completion_places(
    completion_mask: Bool[Array, "rows time"], count: int
) -> tuple[Int[jax.Array, "rows count"], Bool[jax.Array, "rows count"]]:
    """Where each row's trained tokens stand, in order, and which of the places are real.

    Args:
        completion_mask: True for trained tokens; never at time 0, which nothing predicts.
        count: places per row; trained tokens past it are lost, so the caller checks on the host.
    """
    order = jnp.argsort(~jnp.asarray(completion_mask), axis=1, stable=True)[:, :count]
    return order, jnp.take_along_axis(jnp.asarray(completion_mask), order, axis=1)


def completion_logprobs(
    config: Config,
    params: Params,
    inputs: ModelInputs,
    features: Float[Array, "images units width"] | None,
    suppressed: Bool[Array, "vocab"],
    places: Int[Array, "rows count"],
    remat: bool = False,
) -> TokenLogprobs:
    """Log-probability and entropy of the tokens at `places`, each given all before it.

    Args:
        config: the model.
        params: its parameters.
        inputs: rows of prompts and rollouts.
        features: of the vision tower, or None.
        suppressed: ids that the sampler never draws: the same mask as the sampler's.
        places: of `completion_places`.
        remat: recompute layers in the backward pass.
    """
    hidden = model.forward_hidden(config, params, inputs, features, remat=remat)
    before = jnp.maximum(places - 1, 0)
    predicting = jnp.take_along_axis(hidden, before[:, :, None], axis=1)
    tokens = jnp.take_along_axis(jnp.asarray(inputs.tokens), places, axis=1)
    return token_logprobs(predicting, model.output_embedding(config, params), tokens, suppressed)


def _rows(batch: TrainBatch, start: Int[Array, ""], count: int) -> TrainBatch:
    """Rows `start` to `start + count`; without pictures, whose features belong to all rows."""

    def of(values: Array) -> jax.Array:
        return jax.lax.dynamic_slice_in_dim(jnp.asarray(values), start, count)

    return TrainBatch(
        _part_of_inputs(batch.inputs, start, count),
        None,
        of(batch.completion_mask),
        of(batch.advantages),
        of(batch.scorable),
        of(batch.old_logprobs),
        of(batch.ref_logprobs),
    )


TrainStep = Callable[[TrainState, Params, TrainBatch, Array, int], tuple[TrainState, Metrics]]
"""(state, frozen, batch, suppressed, completion_tokens) -> (state, metrics).

The state's buffers are given away. completion_tokens is static: room for the trained tokens of a
row, as the head runs on these alone.
"""


@partial(jax.jit, static_argnames=("config", "completion_tokens", "parts"))
def row_logprobs(
    config: Config,
    params: Params,
    inputs: ModelInputs,
    features: Float[Array, "images units width"] | None,
    suppressed: Bool[Array, "vocab"],
    completion_mask: Bool[Array, "rows time"],
    completion_tokens: int,
    parts: int,
) -> Float[jax.Array, "rows time"]:
    """Log-probabilities of the trained tokens in their places, 0 elsewhere: a reference policy's.

    Args:
        config: the model (static).
        params: of the reference.
        inputs, features, suppressed: as of `completion_logprobs`.
        completion_mask: True for trained tokens.
        completion_tokens: room for those of a row (static).
        parts: groups of rows that are computed one after the other (static); divides the rows.
    """
    rows = completion_mask.shape[0]
    count = rows // parts

    def part(start: jax.Array) -> jax.Array:
        own = _part_of_inputs(inputs, start, count)
        mask = jax.lax.dynamic_slice_in_dim(jnp.asarray(completion_mask), start, count)
        places, real = completion_places(mask, completion_tokens)
        found = completion_logprobs(config, params, own, features, suppressed, places).logprobs
        empty = jnp.zeros(mask.shape, jnp.float32)
        return empty.at[jnp.arange(count)[:, None], places].add(jnp.where(real, found, 0.0))

    return jax.lax.map(part, jnp.arange(0, rows, count)).reshape(completion_mask.shape)


def _part_of_inputs(inputs: ModelInputs, start: Int[Array, ""], count: int) -> ModelInputs:
    def of(values: Array, axis: int = 0) -> jax.Array:
        return jax.lax.dynamic_slice_in_dim(jnp.asarray(values), start, count, axis)

    return ModelInputs(
        of(inputs.tokens), of(inputs.positions, 1), of(inputs.mask), of(inputs.feature_ids)
    )


class _Sums(NamedTuple):
    """Added up over micro-batches; the last three are sums over trained tokens."""

    loss: Array
    policy: Array
    kl: Array
    ratio: Array
    clipped: Array
    entropy: Array


def make_train_step(
    config: Config,
    compose: Compose,
    objective: Objective,
    optimizer: optax.GradientTransformation,
    layout: Layout,
) -> TrainStep:
    """The jitted update. The state's buffers are donated; each set of shapes is compiled once.

    Args:
        config: the model.
        compose: puts trained and frozen parameters together.
        objective: the loss.
        optimizer: of the trained parameters.
        layout: sizes.
    """

    def part_loss(
        trained: Params,
        features: jax.Array | None,
        frozen: Params,
        part: TrainBatch,
        suppressed: Array,
        rows: int,
        completion_tokens: int,
    ) -> tuple[Array, _Sums]:
        places, real = completion_places(part.completion_mask, completion_tokens)

        def at_places(values: Array) -> jax.Array:
            return jnp.take_along_axis(jnp.asarray(values), places, axis=1)

        found = completion_logprobs(
            config, compose(trained, frozen), part.inputs, features, suppressed, places,
            layout.remat,
        )  # fmt: skip
        parts = policy_loss(
            found.logprobs, at_places(part.old_logprobs), at_places(part.ref_logprobs),
            jnp.asarray(part.advantages), real, jnp.asarray(part.scorable), objective, rows,
        )  # fmt: skip
        counted = real & jnp.asarray(part.scorable)[:, None]
        tokens = jnp.sum(counted)
        entropy = jnp.sum(jnp.where(counted, found.entropy, 0.0))
        sums = _Sums(
            parts.loss, parts.policy, parts.kl, parts.mean_ratio * tokens,
            parts.clip_share * tokens, entropy,
        )  # fmt: skip
        return parts.loss, sums

    def train_step(
        state: TrainState,
        frozen: Params,
        batch: TrainBatch,
        suppressed: Array,
        completion_tokens: int,
    ) -> tuple[TrainState, Metrics]:
        rows = batch.advantages.shape[0]
        chex.assert_shape([batch.advantages, batch.scorable], (rows,))
        chex.assert_equal_shape(
            [batch.inputs.tokens, batch.completion_mask, batch.old_logprobs, batch.ref_logprobs]
        )
        chex.assert_is_divisible(rows, layout.micro_batches)
        pictures = batch.pictures
        encoded, pullback = pictures, None
        if isinstance(pictures, PatchBatch):
            # once for all micro-batches; their gradients by the features are added up first
            encoded, pullback = jax.vjp(
                lambda trained: model.encode_images(config, compose(trained, frozen), pictures),
                state.trained,
            )
        features = None if encoded is None else jnp.asarray(encoded)
        gradient_of = jax.grad(part_loss, argnums=(0, 1), has_aux=True)

        count = rows // layout.micro_batches

        def accumulate(
            carry: tuple[Params, _Sums], start: jax.Array
        ) -> tuple[tuple[Params, _Sums], None]:
            part = _rows(batch, start, count)
            gradients, sums = gradient_of(
                state.trained, features, frozen, part, suppressed, rows, completion_tokens
            )
            return jax.tree.map(jnp.add, carry, (gradients, sums)), None

        nothing = jax.tree.map(jnp.zeros_like, (state.trained, features))
        zeros = _Sums(*[jnp.zeros(())] * len(_Sums._fields))
        ((gradient, by_features), sums), _ = jax.lax.scan(
            accumulate, (nothing, zeros), jnp.arange(0, rows, count)
        )
        if pullback is not None:
            gradient = jax.tree.map(jnp.add, gradient, pullback(by_features)[0])
        updates, optimizer_state = optimizer.update(gradient, state.optimizer_state, state.trained)
        trained = optax.apply_updates(state.trained, updates)
        counted = jnp.asarray(batch.completion_mask) & jnp.asarray(batch.scorable)[:, None]
        tokens = jnp.maximum(jnp.sum(counted), 1)
        metrics = Metrics(
            loss=sums.loss,
            policy=sums.policy,
            kl=sums.kl,
            ratio=sums.ratio / tokens,
            clip_share=sums.clipped / tokens,
            entropy=sums.entropy / tokens,
            gradient_norm=optax.tree.norm(gradient),
            advantage_spread=jnp.std(jnp.asarray(batch.advantages)),
            length=jnp.sum(batch.completion_mask) / rows,
        )
        return TrainState(trained, optimizer_state, state.step + 1), metrics

    return jax.jit(train_step, donate_argnums=0, static_argnums=4)
