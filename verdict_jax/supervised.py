"""Supervised training of a small VLM on packed batches, resumable at any step."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import optax
import orbax.checkpoint as ocp
from jaxtyping import Float, Int
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from verdict_jax.packing import PackedBatch
from verdict_jax.vlm.config import Config
from verdict_jax.vlm.model import encode_images, forward_hidden, init_params, logits_of
from verdict_jax.vlm.parameters import Params


@dataclass(frozen=True)
class Schedule:
    """The optimiser: AdamW with clipping, a linear warm-up, and a linear decay at the end.

    Attributes:
        steps: updates in all.
        learning_rate: at the plateau.
        warmup: updates of the warm-up.
        decay: share of the updates, at the end, over which the rate falls to zero.
        weight_decay: of AdamW, on matrices only.
        clip_norm: largest global norm of a gradient.
        auxiliary_weight: of the auxiliary head's loss.
    """

    steps: int
    learning_rate: float = 2e-3
    warmup: int = 50
    decay: float = 0.3
    weight_decay: float = 0.02
    clip_norm: float = 1.0
    auxiliary_weight: float = 0.2

    def optimizer(self) -> optax.GradientTransformation:
        """The optax transformation of this schedule."""
        falling = max(1, int(self.steps * self.decay))
        rate = optax.join_schedules(
            [
                optax.linear_schedule(0.0, self.learning_rate, self.warmup),
                optax.constant_schedule(self.learning_rate),
                optax.linear_schedule(self.learning_rate, 0.0, falling),
            ],
            [self.warmup, self.steps - falling],
        )

        def matrices(params: Params) -> Params:
            return jax.tree.map(lambda leaf: leaf.ndim > 1, params)

        return optax.chain(
            optax.clip_by_global_norm(self.clip_norm),
            optax.adamw(rate, b2=0.98, weight_decay=self.weight_decay, mask=matrices),
        )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """What a step changes.

    Attributes:
        params: of the model and, under "auxiliary", of the linear heads on its image features,
            which are thrown away after training.
        optimizer_state: of `Schedule.optimizer`.
        step: updates done.
    """

    params: Params
    optimizer_state: optax.OptState
    step: Int[jax.Array, ""]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Metrics:
    """Means over a batch: cross-entropy (nats a token), weighted; auxiliary cross-entropy."""

    loss: Float[jax.Array, ""]
    auxiliary: Float[jax.Array, ""]
    gradient_norm: Float[jax.Array, ""]


def init_state(
    config: Config, schedule: Schedule, classes: tuple[int, ...], key: jax.Array
) -> TrainState:
    """Random parameters, with one auxiliary head per attribute of `classes[i]` classes."""
    model_key, head_key = jax.random.split(key)
    width, total = config.text.hidden_size, sum(classes)
    heads = 0.02 * jax.random.normal(head_key, (width, total))
    params = {**init_params(config, model_key), "auxiliary": {"kernel": heads}}
    state = schedule.optimizer().init(params)
    return TrainState(params, state, jnp.zeros((), jnp.int32))


def loss_fn(
    config: Config,
    classes: tuple[int, ...],
    auxiliary_weight: float,
    params: Params,
    batch: PackedBatch,
) -> tuple[Float[jax.Array, ""], tuple[Float[jax.Array, ""], Float[jax.Array, ""]]]:
    """Weighted next-token cross-entropy plus the auxiliary heads'; both also returned apart."""
    features = encode_images(config, params, batch.patches)
    hidden = forward_hidden(config, params, batch.inputs, features, batch.segments)
    flat = hidden.reshape(-1, hidden.shape[-1])
    logits = logits_of(config, params, jnp.take(flat, batch.predictors, axis=0))
    entropy = optax.softmax_cross_entropy_with_integer_labels(logits, batch.targets)
    loss = jnp.sum(entropy * batch.weights) / jnp.sum(batch.weights)
    scores = features.reshape(-1, features.shape[-1]) @ params["auxiliary"]["kernel"]
    auxiliary = jnp.zeros(())
    offset = 0
    for index, count in enumerate(classes):
        labels = jnp.asarray(batch.attributes)[:, index]
        part = optax.softmax_cross_entropy_with_integer_labels(
            scores[:, offset : offset + count], jnp.maximum(labels, 0)
        )
        known = labels >= 0
        auxiliary += jnp.sum(part * known) / jnp.maximum(jnp.sum(known), 1)
        offset += count
    return loss + auxiliary_weight * auxiliary, (loss, auxiliary)


def make_train_step(
    config: Config, schedule: Schedule, classes: tuple[int, ...]
) -> Callable[[TrainState, PackedBatch], tuple[TrainState, Metrics]]:
    """The jitted update; the state's buffers are donated."""
    optimizer = schedule.optimizer()

    def train_step(state: TrainState, batch: PackedBatch) -> tuple[TrainState, Metrics]:
        def loss(params: Params) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
            return loss_fn(config, classes, schedule.auxiliary_weight, params, batch)

        (_, (token_loss, auxiliary)), gradient = jax.value_and_grad(loss, has_aux=True)(
            state.params
        )
        updates, optimizer_state = optimizer.update(gradient, state.optimizer_state, state.params)
        params = optax.apply_updates(state.params, updates)
        metrics = Metrics(token_loss, auxiliary, optax.global_norm(gradient))
        return TrainState(params, optimizer_state, state.step + 1), metrics

    return jax.jit(train_step, donate_argnums=0)


def fit(
    config: Config,
    schedule: Schedule,
    classes: tuple[int, ...],
    batch_of: Callable[[int], PackedBatch],
    folder: Path,
    seed: int,
    save_every: int = 100,
    report_every: int = 50,
) -> Params:
    """Trains from the newest checkpoint in `folder`, or from random parameters.

    Batch i is `batch_of(i)`, a pure function of i, so a killed run goes on to the same result.

    Args:
        config: the model.
        schedule: optimiser and number of steps.
        classes: of the auxiliary attributes.
        batch_of: the data of each step.
        folder: checkpoints; the three newest are kept.
        seed: of the initial parameters.
        save_every: steps between checkpoints.
        report_every: steps between printed lines.

    Returns:
        The model's parameters, without the auxiliary heads.
    """
    train_step = make_train_step(config, schedule, classes)
    state = init_state(config, schedule, classes, jax.random.key(seed))
    options = ocp.CheckpointManagerOptions(max_to_keep=3, save_interval_steps=save_every)
    columns = (TextColumn("{task.description}"), MofNCompleteColumn(), TimeRemainingColumn())
    with ocp.CheckpointManager(folder.resolve(), options=options) as manager:
        newest = manager.latest_step()
        if newest is not None:
            state = manager.restore(newest, args=ocp.args.StandardRestore(state))
            print(f"resuming after step {newest}")
        start = int(state.step)
        with Progress(*columns) as progress, ThreadPoolExecutor(1) as drawing:
            batch = drawing.submit(batch_of, start)
            task = progress.add_task("training", total=schedule.steps, completed=start)
            for step in range(start, schedule.steps):
                current, batch = batch.result(), drawing.submit(batch_of, step + 1)
                state, metrics = train_step(state, current)
                done = step + 1
                progress.advance(task)
                if done % report_every == 0 or done == schedule.steps:
                    progress.console.print(
                        f"step {done}: loss {float(metrics.loss):.4f}, "
                        f"auxiliary {float(metrics.auxiliary):.4f}, "
                        f"gradient norm {float(metrics.gradient_norm):.3f}"
                    )
                manager.save(done, args=ocp.args.StandardSave(state), force=done == schedule.steps)
        manager.wait_until_finished()
    return {name: tree for name, tree in state.params.items() if name != "auxiliary"}
