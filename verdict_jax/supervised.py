"""Supervised training of a small VLM, resumable at any step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import optax
import orbax.checkpoint as ocp
from jaxtyping import Float, Int, PyTree
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from verdict_jax.packing import PackedBatch, PictureBatch
from verdict_jax.vlm import model
from verdict_jax.vlm.config import Config
from verdict_jax.vlm.inputs import Array
from verdict_jax.vlm.parameters import Params

Batch = TypeVar("Batch")


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

    Raises:
        ValueError: warm-up and decay overlap.
    """

    steps: int
    learning_rate: float = 2e-3
    warmup: int = 50
    decay: float = 0.3
    weight_decay: float = 0.02
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        if self.warmup + self._falling > self.steps:
            raise ValueError(
                f"{self.warmup} updates of warm-up and {self._falling} of decay do not fit "
                f"into {self.steps}"
            )

    @property
    def _falling(self) -> int:
        return max(1, int(self.steps * self.decay))

    def optimizer(self) -> optax.GradientTransformation:
        """The optax transformation of this schedule."""
        rate = optax.join_schedules(
            [
                optax.linear_schedule(0.0, self.learning_rate, self.warmup),
                optax.constant_schedule(self.learning_rate),
                optax.linear_schedule(self.learning_rate, 0.0, self._falling),
            ],
            [self.warmup, self.steps - self._falling],
        )

        def matrices(params: Params) -> PyTree[bool]:
            # by name: stacked over layers, scales and biases have two axes as well
            return jax.tree_util.tree_map_with_path(
                lambda path, _: path[-1].key in ("kernel", "embedding"), params
            )

        return optax.chain(
            optax.clip_by_global_norm(self.clip_norm),
            optax.adamw(rate, b2=0.98, weight_decay=self.weight_decay, mask=matrices),
        )


class TrainState(NamedTuple):
    """What a step changes. A plain tuple: orbax maps it to trees of shapes while it restores.

    Attributes:
        params: of the model and, under "auxiliary", of the linear heads on its image features,
            which are thrown away after training.
        optimizer_state: of `Schedule.optimizer`.
        step: updates done.
    """

    params: Params
    optimizer_state: optax.OptState
    step: Int[jax.Array, ""]


Losses = dict[str, Float[jax.Array, ""]]
"""The parts of a loss by name, in nats."""

Loss = Callable[[Params, Batch], tuple[Float[jax.Array, ""], Losses]]
"""(params, batch) -> the loss that is minimised, and its parts."""


def init_with_heads(config: Config, classes: Sequence[int], key: jax.Array) -> Params:
    """Random parameters, with an auxiliary head of classes[i] classes per attribute."""
    model_key, head_key = jax.random.split(key)
    heads = 0.02 * jax.random.normal(head_key, (config.text.hidden_size, sum(classes)))
    return {**model.init_params(config, model_key), "auxiliary": {"kernel": heads}}


def auxiliary_loss(
    params: Params,
    classes: Sequence[int],
    features: Float[jax.Array, "images units width"],
    attributes: Int[Array, "features attributes"],
) -> Float[jax.Array, ""]:
    """Cross-entropy of linear heads that read attributes off single image tokens, in float32.

    Args:
        params: of `init_with_heads`.
        classes: of each attribute.
        features: of the vision tower.
        attributes: class ids of each row of the flattened features, -1 for no label.
    """
    kernel = params["auxiliary"]["kernel"].astype(jnp.float32)
    scores = features.reshape(-1, features.shape[-1]).astype(jnp.float32) @ kernel
    total = jnp.zeros(())
    offset = 0
    for index, count in enumerate(classes):
        labels = jnp.asarray(attributes)[:, index]
        entropy = optax.softmax_cross_entropy_with_integer_labels(
            scores[:, offset : offset + count], jnp.maximum(labels, 0)
        )
        known = (labels >= 0).astype(jnp.float32)
        total += jnp.sum(entropy * known) / jnp.maximum(jnp.sum(known), 1)
        offset += count
    return total


def vision_loss(config: Config, classes: Sequence[int]) -> Loss[PictureBatch]:
    """The auxiliary loss alone: what the vision tower can learn before there is any language."""

    def loss(params: Params, batch: PictureBatch) -> tuple[jax.Array, Losses]:
        features = model.encode_images(config, params, batch.patches)
        auxiliary = auxiliary_loss(params, classes, features, batch.attributes)
        return auxiliary, {"auxiliary": auxiliary}

    return loss


def language_loss(
    config: Config, classes: Sequence[int], auxiliary_weight: float
) -> Loss[PackedBatch]:
    """Weighted next-token cross-entropy, plus the auxiliary loss times its weight.

    The auxiliary loss of a batch without pictures is 0.
    """

    def loss(params: Params, batch: PackedBatch) -> tuple[jax.Array, Losses]:
        features, auxiliary = None, jnp.zeros(())
        if batch.pictures is not None:
            features = model.encode_images(config, params, batch.pictures.patches)
            auxiliary = auxiliary_loss(params, classes, features, batch.pictures.attributes)
        hidden = model.forward_hidden(config, params, batch.inputs, features, batch.segments)
        flat = hidden.reshape(-1, hidden.shape[-1])
        logits = model.logits_of(config, params, jnp.take(flat, batch.predictors, axis=0))
        entropy = optax.softmax_cross_entropy_with_integer_labels(logits, batch.targets)
        tokens = jnp.sum(entropy * batch.weights) / jnp.sum(batch.weights)
        return tokens + auxiliary_weight * auxiliary, {"tokens": tokens, "auxiliary": auxiliary}

    return loss


def make_train_step(
    loss: Loss[Batch], schedule: Schedule
) -> Callable[[TrainState, Batch], tuple[TrainState, Losses]]:
    """The jitted update; the state's buffers are donated."""
    optimizer = schedule.optimizer()

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, Losses]:
        gradient, losses = jax.grad(loss, has_aux=True)(state.params, batch)
        updates, optimizer_state = optimizer.update(gradient, state.optimizer_state, state.params)
        params = optax.apply_updates(state.params, updates)
        return TrainState(params, optimizer_state, state.step + 1), losses

    return jax.jit(train_step, donate_argnums=0)


def fit(
    loss: Loss[Batch],
    params: Params,
    schedule: Schedule,
    batch_of: Callable[[int], Batch],
    folder: Path,
    save_every: int = 100,
    report_every: int = 50,
) -> Params:
    """Trains from the newest checkpoint in `folder`, or from `params`.

    Batch i is `batch_of(i)`, a pure function of i, so a killed run goes on to the same result.

    Args:
        loss: what is minimised.
        params: where a run without a checkpoint starts; their buffers are given away.
        schedule: optimiser and number of steps.
        batch_of: the data of each step.
        folder: checkpoints; the two newest are kept.
        save_every: steps between checkpoints.
        report_every: steps between printed lines.

    Returns:
        The trained parameters.

    Raises:
        ValueError: the newest checkpoint holds a state of other shapes.
    """
    train_step = make_train_step(loss, schedule)
    state = TrainState(params, schedule.optimizer().init(params), jnp.zeros((), jnp.int32))
    options = ocp.CheckpointManagerOptions(max_to_keep=2)
    columns = (TextColumn("{task.description}"), MofNCompleteColumn(), TimeRemainingColumn())
    with ocp.CheckpointManager(folder.resolve(), options=options) as manager:
        newest = manager.latest_step()
        if newest is not None:
            state = manager.restore(newest, args=ocp.args.StandardRestore(state))
            print(f"{folder}: resuming after step {newest}")
        start = int(state.step)
        if start >= schedule.steps:
            return state.params
        with Progress(*columns) as progress, ThreadPoolExecutor(1) as drawing:
            batch = drawing.submit(batch_of, start)
            task = progress.add_task(folder.name, total=schedule.steps, completed=start)
            for done in range(start + 1, schedule.steps + 1):
                current = batch.result()
                if done < schedule.steps:
                    batch = drawing.submit(batch_of, done)
                state, losses = train_step(state, current)
                progress.advance(task)
                last = done == schedule.steps
                if done % report_every == 0 or last:
                    parts = ", ".join(f"{name} {float(part):.4f}" for name, part in losses.items())
                    progress.console.print(f"{folder.name} step {done}: {parts}")
                if done % save_every == 0 or last:
                    manager.save(done, args=ocp.args.StandardSave(state))
        manager.wait_until_finished()
    return state.params
