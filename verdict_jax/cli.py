"""The `verdict` command."""

from __future__ import annotations

import difflib
import inspect
import io
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import tyro

from verdict_jax.cli_eval import Eval
from verdict_jax.cli_reason import Demo, Run
from verdict_jax.cli_tabletop import Tabletop
from verdict_jax.command import Command, UserError
from verdict_jax.defaults import EPSILON, TAU

PATIENCE_SECONDS = 5.0
"""A file that takes longer gets a progress bar."""

HELP = """\
usage: verdict COMMAND [OPTIONS]

Several judges score something and disagree. VERDICT settles their scores by the equilibrium of a
coordination game, then accepts what they endorse and agree on. So a vision-language model reasons
about a picture step by step, each step sampled several times and verified before it counts.

commands:
{commands}

examples:
  verdict demo
      answers two pictures with the bundled model and shows every step
  verdict run --image shape.png --question "what color is the shape?"
      the same for a picture of yours; --model takes any Qwen2.5-VL folder
  verdict eval --benchmark tabletop --limit 100 --out runs/first
      answers 100 questions by several rules and prints a table
  verdict solve scores.csv
      settles a table with a column per judge and prints it with the figures added
  verdict solve scores.csv --judges V L C --group question --out settled.jsonl
      picks one row per question; columns that are no judges go along as they are
  verdict solve --help
      all about one command
"""


@dataclass(frozen=True)
class Solve(Command):
    """Settle a table of anybody's scores: reward models, reviewers, audits of agents.

    FILE holds a column per judge with scores in [0, 1], an empty cell (or null) where a judge
    is missing, and any other columns: CSV with commas or semicolons, or JSON Lines (an object
    a line), in UTF-8. Every row comes out as it is, plus

      consensus_<judge>  the score that the judge settles at, for each judge
      mean, dispersion   of these: their plain mean, their mean absolute deviation
      accepted           true if mean is above tau and dispersion below epsilon
      chosen             true for the one row taken of each group: the accepted row with the
                         highest mean; with none accepted, the highest mean - dispersion.
                         Without --group each row is a group of its own.

    A row with fewer than two scores is neither accepted nor chosen. The file is read as a
    stream, so its size does not matter. Semicolon files that write 0,8 for 0.8 are read so, and
    their figures written so. A mistake in the file is named by row, line and column; the exit
    status is then 2.

    examples:
      verdict solve scores.csv
      verdict solve reviews.csv --judges alice bob carol --stubbornness 2 1 1
      verdict solve runs.jsonl --group question --judges V L C --out settled.csv
    """

    file: Annotated[
        Path,
        tyro.conf.Positional,
        tyro.conf.arg(
            metavar="FILE",
            help="A .csv, .jsonl or .ndjson file; in any other, { at the start means JSON Lines.",
        ),
    ]
    judges: Annotated[
        tuple[str, ...],
        tyro.conf.arg(
            metavar="NAME...",
            help="The columns that hold scores.",
            help_behavior_hint="(default: every column but the group)",
        ),
    ] = ()
    stubbornness: Annotated[
        tuple[float, ...],
        tyro.conf.arg(
            metavar="LAMBDA...",
            help="How much each judge weighs its own score against its peers', > 0.",
            help_behavior_hint="(default: 1 each; 1.5, 1.0, 0.8 by name if all judges are named "
            "visual, logical, contextual or V, L, C)",
        ),
    ] = ()
    group: Annotated[
        str | None,
        tyro.conf.arg(
            metavar="COLUMN",
            help="The column that says which decision a row is a candidate of. Rows of a group "
            "stand together in the file.",
            help_behavior_hint="(default: each row is a decision)",
        ),
    ] = None
    tau: Annotated[float, tyro.conf.arg(help="Accepted rows have a settled mean above it.")] = TAU
    epsilon: Annotated[float, tyro.conf.arg(help="Accepted rows have a dispersion below it.")] = (
        EPSILON
    )
    out: Annotated[
        Path | None,
        tyro.conf.arg(
            metavar="FILE",
            help="Where to write: CSV to .csv, JSON Lines to .jsonl or .ndjson. The file appears "
            "whole or not at all.",
            help_behavior_hint="(default: CSV to standard output)",
        ),
    ] = None

    def run(self) -> None:
        from verdict_jax.score_records import ScoreTableError
        from verdict_jax.score_table import TableSettings, settle_file
        from verdict_jax.whole_file import TargetError

        settings = TableSettings(
            judges=self.judges,
            stubbornness=self.stubbornness,
            group=self.group,
            tau=self.tau,
            epsilon=self.epsilon,
        )
        try:
            quiet = self.out is None and sys.stdout.isatty()
            with _progress_bar(self.file, quiet) as tell, _interrupt_held() as safe_point:

                def after_block(position: int) -> None:
                    safe_point()
                    tell(position)

                settle_file(self.file, self.out or _utf8(sys.stdout), settings, after_block)
        except (ScoreTableError, TargetError) as error:
            raise UserError(str(error)) from error


COMMANDS: Mapping[str, type[Command]] = {
    "demo": Demo,
    "run": Run,
    "eval": Eval,
    "solve": Solve,
    "tabletop": Tabletop,
}
"""What `verdict NAME` runs. A new command is an entry here."""


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command line `argv` (None: the process's own).

    A UserError or OSError becomes one line on stderr and exit status 2.
    """
    name, *options = [*(sys.argv[1:] if argv is None else argv)] or ["--help"]
    if name in ("-h", "--help"):
        print(_help())
        return
    if name not in COMMANDS:
        close = difflib.get_close_matches(name, COMMANDS, n=1)
        guess = f"did you mean {close[0]}? " if close else ""
        _fail(f"there is no command {name!r}; {guess}`verdict --help` lists them", 2)
    kind = COMMANDS[name]
    command = tyro.cli(
        kind,
        prog=f"verdict {name}",
        description=_description(kind),
        args=options,
        config=(tyro.conf.DisallowNone,),
    )
    try:
        with _terminable():
            command.run()
            sys.stdout.flush()
    except UserError as error:
        _fail(str(error), 2)
    except BrokenPipeError:
        # The reader of our output has gone (`verdict ... | head`): there is nobody to tell, and
        # the interpreter must not complain when it flushes stdout at its own end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        _fail(f"{what}; check the path, its permissions and the space left", 2)
    except KeyboardInterrupt:
        _fail("interrupted; no file was written", 130)


def _help() -> str:
    width = max(map(len, COMMANDS))
    summaries = [
        f"  {name:{width}}  {_description(COMMANDS[name]).splitlines()[0]}" for name in COMMANDS
    ]
    return HELP.format(commands="\n".join(summaries))


def _description(command: type[Command]) -> str:
    """The command's docstring with its lines as they stand: tyro would join unindented ones."""
    summary, *rest = (inspect.getdoc(command) or "").splitlines()
    return "\n".join([summary, *(f" {line}" if line else line for line in rest)])


def _fail(message: str, status: int) -> NoReturn:
    print(f"verdict: {message}", file=sys.stderr)
    raise SystemExit(status)


def _utf8(stream: object) -> io.TextIOWrapper:
    if not isinstance(stream, io.TextIOWrapper):
        raise UserError("standard output is not a text stream; use --out")
    stream.reconfigure(encoding="utf-8", errors="backslashreplace", newline="")
    return stream


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM ends the process like an interrupt does: unfinished files are removed."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    previous = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


@contextmanager
def _interrupt_held() -> Iterator[Callable[[], None]]:
    """A first SIGINT waits until the function given is called; a second one interrupts at once.

    Raised in one of jax's own callbacks the interrupt would be lost, or crash the exit.
    """
    held = False

    def hold(number: int, frame: FrameType | None) -> None:
        nonlocal held
        if held:
            raise KeyboardInterrupt
        held = True

    def safe_point() -> None:
        if held:
            raise KeyboardInterrupt

    previous = signal.signal(signal.SIGINT, hold)
    try:
        yield safe_point
    finally:
        signal.signal(signal.SIGINT, previous)


@contextmanager
def _progress_bar(file: Path, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Shows on a terminal how much of `file` is read, once that has taken a while."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    console = Console(stderr=True)
    size = file.stat().st_size if file.is_file() else None
    bar = Progress(
        "{task.description}", BarColumn(), DownloadColumn(), TimeRemainingColumn(),
        console=console, transient=True,
    )  # fmt: skip
    task = bar.add_task(file.name, total=size)
    due = time.monotonic() + PATIENCE_SECONDS

    def tell(position: int) -> None:
        if quiet or not console.is_terminal or time.monotonic() < due:
            return
        bar.start()
        bar.update(task, completed=position)

    try:
        yield tell
    finally:
        if bar.live.is_started:
            bar.stop()


if __name__ == "__main__":
    main()
