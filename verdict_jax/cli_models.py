"""Models as the subcommands start them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from verdict_jax.command import UserError
from verdict_jax.defaults import CANDIDATES, EPSILON, MAX_STEPS, STUBBORNNESS, TAU

if TYPE_CHECKING:
    from verdict_jax.protocols import Panel
    from verdict_jax.rules import RuleParameters
    from verdict_jax.vlm.checkpoint import VLM
    from verdict_jax.vlm.prefixes import Prefixes
    from verdict_jax.vlm.sampling import SamplingSettings


ReadOutName = Literal["digits", "yes_no", "verbal"]
"""`prompts.ReadOut`, spelled out so that --help lists it without loading jax."""


@dataclass(frozen=True)
class Method:
    """Models, thresholds, caps."""

    model: Annotated[
        Path | None,
        tyro.conf.arg(
            metavar="DIR",
            help="Folder of a Qwen2.5-VL checkpoint.",
            help_behavior_hint="(default: the bundled model)",
        ),
    ] = None
    judge_model: Annotated[
        tuple[Path, ...],
        tyro.conf.arg(
            metavar="DIR...",
            help="Folder of the judges' checkpoint, or three: of V, L and C.",
            help_behavior_hint="(default: the reasoner's own model)",
        ),
    ] = ()
    n: Annotated[int, tyro.conf.arg(help="Candidates per step.")] = CANDIDATES
    tau: Annotated[float, tyro.conf.arg(help="Accepted steps have a settled mean above it.")] = TAU
    epsilon: Annotated[float, tyro.conf.arg(help="Accepted steps have a dispersion below it.")] = (
        EPSILON
    )
    stubbornness: Annotated[
        tuple[float, float, float],
        tyro.conf.arg(
            metavar="V L C", help="How much each judge weighs its own score against its peers'."
        ),
    ] = STUBBORNNESS
    temperature: Annotated[float, tyro.conf.arg(help="Of the sampling; 0 is greedy.")] = 0.8
    top_p: Annotated[float, tyro.conf.arg(help="Nucleus of the sampling; 1 keeps all.")] = 1.0
    top_k: Annotated[int, tyro.conf.arg(help="Most likely tokens to keep; 0 keeps all.")] = 0
    max_steps: Annotated[int, tyro.conf.arg(help="The last step runs to the end.")] = MAX_STEPS
    max_tokens: Annotated[int, tyro.conf.arg(help="Cap of one step.")] = 512
    read_out: Annotated[
        ReadOutName,
        tyro.conf.arg(help="How judges reply: a digit 1-5, Yes or No, a number between 0 and 1."),
    ] = "digits"

    @property
    def parameters(self) -> RuleParameters:
        import numpy as np

        from verdict_jax.rules import RuleParameters

        return RuleParameters(np.array(self.stubbornness), tau=self.tau, epsilon=self.epsilon)

    @property
    def sampling(self) -> SamplingSettings:
        """Raises UserError for a value out of range."""
        from verdict_jax.vlm.sampling import SamplingSettings

        try:
            return SamplingSettings(self.temperature, self.top_k, self.top_p, self.max_tokens)
        except ValueError as error:
            raise UserError(str(error)) from error

    def panels(self, vlm: VLM) -> tuple[Panel[Prefixes], ...]:
        """`panels` of these options."""
        return panels(vlm, self.judge_model, self.read_out)


def panels(
    vlm: VLM, judge_models: Sequence[Path], read_out: ReadOutName
) -> tuple[Panel[Prefixes], ...]:
    """The three judges, in the order V, L, C.

    Args:
        vlm: the reasoner's model, which judges where no other is given.
        judge_models: none, one for all judges, or one for each.
        read_out: how they reply.

    Raises:
        UserError: another number of models; one that cannot be read or cannot reply so.
    """
    from dataclasses import replace

    from verdict_jax.judges import DEFAULT_JUDGES, VLMPanel

    judges = tuple(replace(judge, read_out=read_out) for judge in DEFAULT_JUDGES)
    if len(judge_models) not in (0, 1, len(judges)):
        raise UserError(
            f"--judge-model takes one folder, or one each for V, L and C; got {len(judge_models)}"
        )
    folders = [None] if not judge_models else list(judge_models)
    if len(folders) == 1:
        folders *= len(judges)
    found: list[Panel[Prefixes]] = []
    # judges of one model are one panel and one pass; columns stay in the order of the judges
    for folder, group in itertools.groupby(
        zip(folders, judges, strict=True), key=lambda pair: pair[0]
    ):
        judge_vlm = vlm if folder is None else load(folder)
        try:
            found.append(VLMPanel(judge_vlm, tuple(judge for _, judge in group)))
        except ValueError as error:
            raise UserError(
                f"{folder or judge_vlm.name}: {error}; try another --read-out"
            ) from error
    return tuple(found)


def load(folder: Path | None) -> VLM:
    """The model in a folder, the bundled one for None. Raises UserError if it cannot be used."""
    import jax.numpy as jnp

    from verdict_jax.bundled import bundled_checkpoint
    from verdict_jax.vlm.checkpoint import CheckpointError, load_vlm

    try:
        if folder is None:
            # bfloat16 is for the file's size; processors compute float32 faster
            return load_vlm(bundled_checkpoint(), jnp.float32)
        return load_vlm(folder)
    except CheckpointError as error:
        raise UserError(str(error)) from error


def use_compilation_cache() -> None:
    """Compiled programs are kept in the user's cache folder: a second start is fast."""
    # before jax is imported, so that importing it is the only place that reads these
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    defaults: Mapping[str, str] = {
        "JAX_COMPILATION_CACHE_DIR": str(Path(root) / "verdict_jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Says on a terminal what is being waited for."""
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield
