"""Models as the subcommands start them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from verdict_jax.command import UserError

if TYPE_CHECKING:
    from verdict_jax.protocols import Panel
    from verdict_jax.vlm.checkpoint import VLM
    from verdict_jax.vlm.prefixes import Prefixes


ReadOutName = Literal["digits", "yes_no", "verbal"]
"""`prompts.ReadOut`, spelled out so that --help lists it without loading jax."""


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
