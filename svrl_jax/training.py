"""Training a policy by Dr. GRPO: rollouts, rewards, updates, checkpoints.

A run is a function of its settings: step i asks the same questions, and the key of its draws is
part of the checkpoint. Killed at any point, the same command ends with the same bits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from jax.typing import ArrayLike
from jaxtyping import Int, UInt32

from svrl_jax.arms import ARMS, Arm, ArmName
from svrl_jax.behaviour import Behaviour, behaviour
from svrl_jax.dr_grpo import Objective, advantages
from svrl_jax.parameterization import Parameterization, Trained, parameterize
from svrl_jax.rewards import RewardSettings
from svrl_jax.rollout import Limits, Rollouts, Tools, roll_out
from svrl_jax.scoring import Judges, Outcome, score
from svrl_jax.task import Task
from svrl_jax.train_batch import TrainBatch, pack_rollouts
from svrl_jax.train_step import (
    Layout,
    Metrics,
    TrainState,
    TrainStep,
    make_train_step,
    row_logprobs,
)
from verdict_jax.json_records import dumps, loads
from verdict_jax.run_folder import RunFolder, Value, open_run
from verdict_jax.vlm.checkpoint import VLM
from verdict_jax.vlm.parameters import Params
from verdict_jax.vlm.sampling import SamplingSettings

STEPS = "steps.jsonl"

SCHEMA = "svrl-step/1"


@dataclass(frozen=True)
class TrainingSettings:
    """All numbers of a training. The defaults are those of the bundled world.

    Attributes:
        arm: what is rewarded, and how.
        steps: updates.
        prompts: questions of an update (the SVRL paper: 32).
        group: rollouts of a question (the SVRL paper: 4).
        learning_rate: at the start; it falls along a sigmoid to nothing (MMSearch-R1: 2e-6 with a
            model of 7 billion parameters; small ones take more).
        clip_norm: largest global norm of a gradient.
        clip, beta: of the objective (MMSearch-R1).
        temperature: of sampling (MMSearch-R1: 1).
        trained: which parameters.
        micro_batches: parts that an update is computed in.
        save_every: updates between checkpoints.
        validate_every: updates between validations.
        seed: of everything that is drawn.
        limits: caps of a trajectory.
        reward: numbers of the reward.
    """

    arm: ArmName = "full"
    steps: int = 150
    prompts: int = 32
    group: int = 4
    learning_rate: float = 1e-4
    clip_norm: float = 1.0
    clip: float = 0.2
    beta: float = 0.001
    temperature: float = 1.0
    trained: Trained = "decoder"
    micro_batches: int = 4
    save_every: int = 10
    validate_every: int = 25
    seed: int = 0
    limits: Limits = Limits()
    reward: RewardSettings = RewardSettings()

    def __post_init__(self) -> None:
        counts = (self.steps, self.prompts, self.group, self.micro_batches, self.save_every)
        if min(*counts, self.validate_every) < 1:
            raise ValueError("steps, prompts, group, micro_batches and intervals must be positive")
        if self.prompts * self.group % self.micro_batches:
            raise ValueError(
                f"{self.prompts} x {self.group} rows do not divide into {self.micro_batches} parts"
            )
        if ARMS[self.arm].algorithm is None:
            raise ValueError(f"the arm {self.arm!r} is not trained")

    @property
    def length_constant(self) -> int:
        """What Dr. GRPO divides a row's sum by: the response token budget."""
        return self.limits.turns * self.limits.turn_tokens

    def optimizer(self) -> optax.GradientTransformation:
        """AdamW with clipping and a rate that falls along a sigmoid."""

        def rate(step: ArrayLike) -> jax.Array:
            share = jnp.asarray(step, jnp.float32) / self.steps
            return self.learning_rate * jax.nn.sigmoid(10.0 * (0.5 - share))

        return optax.chain(
            optax.clip_by_global_norm(self.clip_norm), optax.adamw(rate, weight_decay=0.0)
        )


@dataclass(frozen=True)
class Setup:
    """What a training works with.

    Attributes:
        vlm: the policy at first, which is also the reference.
        tasks: (first, count) -> questions; a pure function.
        search_free: by question id, whether the base policy answers without tools.
        validation: questions for choosing the best checkpoint.
        tools: what the policy calls.
        judges: oracle and grader.
    """

    vlm: VLM
    tasks: Callable[[int, int], Sequence[Task]]
    search_free: Mapping[str, bool]
    validation: Sequence[Task]
    tools: Tools
    judges: Judges


@dataclass(frozen=True)
class StepRecord:
    """One update, as it is logged.

    Attributes:
        schema: the version of this layout.
        step: updates done, this one included.
        seconds: it took.
        rollout_seconds: of these, until the rewards were there.
        reward: mean over the rollouts that could be scored.
        accuracy, format: of their rewards.
        factors: mean of each factor of the arm.
        metrics: of the update.
        behaviour: of the rollouts.
        validation: of greedy trajectories about the validation questions, where that was due.
    """

    schema: str
    step: int
    seconds: float
    rollout_seconds: float
    reward: float
    accuracy: float
    format: float
    factors: Mapping[str, float]
    metrics: Mapping[str, float]
    behaviour: Behaviour
    validation: Behaviour | None


class Saved(NamedTuple):
    """What a checkpoint holds.

    Attributes:
        train: parameters, optimizer, step.
        key: bits of the key that the next step's draws come from.
        cursor: the next step's first question.
    """

    train: TrainState
    key: UInt32[jax.Array, "words"]
    cursor: Int[jax.Array, ""]


@dataclass(frozen=True)
class Trainer:
    """The pieces of a training that stay the same; `train` makes one.

    Attributes:
        setup: data, tools, judges.
        settings: numbers.
        parts: which parameters are trained.
        update: the jitted step.
    """

    setup: Setup
    settings: TrainingSettings
    parts: Parameterization
    update: TrainStep

    @staticmethod
    def of(setup: Setup, settings: TrainingSettings) -> Trainer:
        """Compiles nothing yet."""
        arm = ARMS[settings.arm]
        assert arm.algorithm is not None
        parts = parameterize(setup.vlm.params, settings.trained, jax.random.key(settings.seed))
        objective = Objective(settings.length_constant, arm.algorithm, settings.clip, settings.beta)
        layout = Layout(settings.micro_batches)
        update = make_train_step(
            setup.vlm.config, parts.compose, objective, settings.optimizer(), layout
        )
        return Trainer(setup, settings, parts, update)

    @property
    def arm(self) -> Arm:
        return ARMS[self.settings.arm]

    def start(self) -> Saved:
        """Before the first step; a copy, as its buffers will be given away."""
        trained = jax.tree.map(jnp.array, self.parts.trained)
        state = TrainState(
            trained, self.settings.optimizer().init(trained), jnp.zeros((), jnp.int32)
        )
        key = jax.random.key_data(jax.random.key(self.settings.seed))
        return Saved(state, key, jnp.zeros((), jnp.int32))

    def policy(self, trained: Params) -> VLM:
        """The policy with these trained parameters."""
        return replace(self.setup.vlm, params=self.parts.compose(trained, self.parts.frozen))

    def step(self, saved: Saved) -> tuple[Saved, StepRecord]:
        """Rollouts, rewards and one update."""
        started = time.perf_counter()
        settings, setup = self.settings, self.setup
        key, draw = jax.random.split(jax.random.wrap_key_data(saved.key))
        tasks = setup.tasks(int(saved.cursor), settings.prompts)
        rollouts = roll_out(
            self.policy(saved.train.trained),
            [task.question for task in tasks],
            self.arm,
            setup.tools,
            SamplingSettings(settings.temperature),
            settings.limits,
            settings.group,
            int(jax.random.bits(draw)),
        )
        outcomes = score(
            self.arm,
            [task for task in tasks for _ in range(settings.group)],
            [row.trajectory for row in rollouts.rows],
            setup.search_free,
            setup.judges,
            settings.reward,
        )
        ready = time.perf_counter()
        batch, completion_tokens = self._batch(rollouts, outcomes)
        train, metrics = self.update(
            saved.train, self.parts.frozen, batch, setup.vlm.masks.suppressed, completion_tokens
        )
        measured = jax.device_get(metrics)
        record = _record(
            int(train.step), outcomes, measured, self.arm, ready - started,
            time.perf_counter() - started,
        )  # fmt: skip
        cursor = saved.cursor + settings.prompts
        return Saved(train, jax.random.key_data(key), cursor), record

    def _batch(self, rollouts: Rollouts, outcomes: Sequence[Outcome]) -> tuple[TrainBatch, int]:
        vlm, settings = self.setup.vlm, self.settings
        packed = pack_rollouts(rollouts.rows, vlm.config.pad_token_id)
        scorable = np.array([outcome.reward is not None for outcome in outcomes])
        rewards = np.array(
            [outcome.reward.total if outcome.reward else 0.0 for outcome in outcomes], np.float32
        )
        groups = settings.prompts, settings.group
        algorithm = self.arm.algorithm
        assert algorithm is not None
        own = advantages(rewards.reshape(groups), scorable.reshape(groups), algorithm)
        reference = np.zeros(packed.old_logprobs.shape, np.float32)
        if settings.beta > 0:
            reference = row_logprobs(
                vlm.config, vlm.params, packed.inputs, rollouts.features, vlm.masks.suppressed,
                packed.completion_mask, packed.completion_tokens, settings.micro_batches,
            )  # fmt: skip
        pictures = rollouts.patches if self.parts.encodes_pictures else rollouts.features
        batch = TrainBatch(
            packed.inputs, pictures, packed.completion_mask, np.asarray(own).reshape(-1), scorable,
            packed.old_logprobs, np.asarray(reference),
        )  # fmt: skip
        return batch, packed.completion_tokens

    def validate(self, trained: Params) -> Behaviour:
        """Greedy trajectories about the validation questions; the oracle labels what was read."""
        setup, settings = self.setup, self.settings
        outcomes = explore(
            self.policy(trained), setup.validation, self.arm, setup.tools, setup.judges,
            setup.search_free, settings.limits, settings.reward, settings.prompts * settings.group,
        )  # fmt: skip
        return behaviour(outcomes, self.arm)


def explore(
    policy: VLM,
    tasks: Sequence[Task],
    arm: Arm,
    tools: Tools,
    judges: Judges,
    search_free: Mapping[str, bool],
    limits: Limits,
    reward: RewardSettings,
    at_once: int,
) -> tuple[Outcome, ...]:
    """One greedy trajectory about each task, scored; the oracle labels snippets for the figures.

    Args:
        policy: the agent.
        tasks: what it is asked.
        arm: prompt, grammar, searches.
        tools: what it calls.
        judges: who labels.
        search_free: tags of the questions.
        limits: caps.
        reward: numbers.
        at_once: tasks of a batch.
    """
    # whatever the arm's reward asks for, figures of snippets need labels
    labelled = replace(arm, oracle=arm.oracle | {"snippets"})
    outcomes: list[Outcome] = []
    for start in range(0, len(tasks), at_once):
        part = tasks[start : start + at_once]
        rollouts = roll_out(
            policy, [task.question for task in part], arm, tools, SamplingSettings(0.0), limits
        )
        trajectories = [row.trajectory for row in rollouts.rows]
        outcomes += score(labelled, part, trajectories, search_free, judges, reward)
    return tuple(outcomes)


def _record(
    step: int,
    outcomes: Sequence[Outcome],
    metrics: Metrics,
    arm: Arm,
    rollout_seconds: float,
    seconds: float,
) -> StepRecord:
    rewards = [outcome.reward for outcome in outcomes if outcome.reward is not None]

    def mean(values: Sequence[float]) -> float:
        return float(np.mean(values)) if values else float("nan")

    return StepRecord(
        schema=SCHEMA,
        step=step,
        seconds=seconds,
        rollout_seconds=rollout_seconds,
        reward=mean([reward.total for reward in rewards]),
        accuracy=mean([reward.accuracy for reward in rewards]),
        format=mean([reward.format for reward in rewards]),
        factors={name: mean([r.factors[name] for r in rewards]) for name in arm.factors},
        metrics={name: float(value) for name, value in asdict(metrics).items()},
        behaviour=behaviour(outcomes, arm),
        validation=None,
    )


def settings_of(setup: Setup, settings: TrainingSettings) -> dict[str, Value]:
    """All that a training is a function of, for `run_folder.open_run`."""
    flat: dict[str, Value] = {"policy": setup.vlm.name, "tool": setup.tools.text.name}
    flat["tool_version"] = setup.tools.text.version
    for name, value in asdict(settings).items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{key}": own for key, own in value.items()}
        else:
            flat[name] = value
    return flat


def read_records(folder: Path) -> tuple[StepRecord, ...]:
    """What a training logged, one record per step, in order."""
    found = [loads(StepRecord, line, SCHEMA) for line in RunFolder(folder).read(STEPS)]
    # a step that was done anew after a kill replaces its first record
    return tuple({record.step: record for record in found}.values())


def train(
    setup: Setup,
    settings: TrainingSettings,
    folder: Path,
    tell: Callable[[StepRecord], None] = lambda _: None,
) -> tuple[Params, Params]:
    """Trains, from the newest checkpoint in the folder if there is one.

    Args:
        setup: policy, data, tools, judges.
        settings: numbers.
        folder: journal `steps.jsonl`, checkpoints `last` (the two newest) and `best` (the highest
            validation accuracy).
        tell: called after every step.

    Returns:
        The policy's parameters after the last step, and those that did best in validation.

    Raises:
        RunFolderError: the folder belongs to another run, or another process.
    """
    trainer = Trainer.of(setup, settings)
    saved = trainer.start()
    last_options = ocp.CheckpointManagerOptions(max_to_keep=2)
    best_options = ocp.CheckpointManagerOptions(
        max_to_keep=1, best_fn=lambda metrics: metrics["accuracy"], best_mode="max"
    )
    with (
        open_run(folder, settings_of(setup, settings)) as run,
        ocp.CheckpointManager((folder / "last").resolve(), options=last_options) as last,
        ocp.CheckpointManager((folder / "best").resolve(), options=best_options) as best,
    ):
        newest = last.latest_step()
        if newest is not None:
            saved = last.restore(newest, args=ocp.args.StandardRestore(saved))
        while int(saved.train.step) < settings.steps:
            saved, record = trainer.step(saved)
            done = record.step
            ended = done == settings.steps
            if done % settings.validate_every == 0 or ended:
                record = replace(record, validation=trainer.validate(saved.train.trained))
                assert record.validation is not None
                if done not in best.all_steps():
                    best.save(
                        done,
                        args=ocp.args.StandardSave(saved.train.trained),
                        metrics={"accuracy": record.validation.accuracy},
                    )
            run.append(STEPS, [dumps(record)])
            if done % settings.save_every == 0 or ended:
                last.save(done, args=ocp.args.StandardSave(saved))
            tell(record)
        best.wait_until_finished()
        top = best.best_step()
        restored = best.restore(top, args=ocp.args.StandardRestore(saved.train.trained))
        last.wait_until_finished()
    compose, frozen = trainer.parts.compose, trainer.parts.frozen
    return compose(saved.train.trained, frozen), compose(restored, frozen)
