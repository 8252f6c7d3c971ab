"""The subcommand that measures rules on a benchmark: `verdict eval`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from verdict_jax.cli_models import Method, load, use_compilation_cache, waiting
from verdict_jax.command import Command, UserError

if TYPE_CHECKING:
    from rich.console import Console

    from verdict_jax.benchmarks.benchmark import Benchmark
    from verdict_jax.evaluation import Done, Participants, Plan, Result

BenchmarkName = Literal["easy-vqa", "tabletop"]
"""The keys of `benchmarks.catalogue.BENCHMARKS`, spelled out so that --help lists them."""

DEFAULT_RULES = ("base", "random", "mean", "weighted_mean", "verdict", "oracle")

ALL = "all"


@dataclass(frozen=True)
class Eval(Command):
    """Answer a benchmark's questions by several rules and compare them, with intervals.

    All rules walk one stored tree of candidates per question and seed, so they differ by their
    choices alone. Results are appended to the folder --out as they come: killed at any point, the
    same command goes on and ends with the same tables. Rules are those of `verdict run`, and

      base    one greedy chain, not judged
      oracle  takes a candidate in which nothing is wrong if there is one (tabletop only)
      all     every rule

    examples:
      verdict eval --benchmark tabletop --limit 100 --seeds 1 --out runs/first
      verdict eval --benchmark tabletop --rules base mean verdict --out runs/three
    """

    benchmark: Annotated[BenchmarkName, tyro.conf.arg(help="Whose test questions.")]
    out: Annotated[Path, tyro.conf.arg(metavar="DIR", help="Folder of the run, new or resumed.")]
    rules: Annotated[
        tuple[str, ...], tyro.conf.arg(metavar="RULE...", help="In the order of the table.")
    ] = DEFAULT_RULES
    seeds: Annotated[int, tyro.conf.arg(help="How many: 0, 1, ...")] = 3
    limit: Annotated[
        int | None,
        tyro.conf.arg(help="The most questions.", help_behavior_hint="(default: all)"),
    ] = None
    batch: Annotated[int, tyro.conf.arg(help="Questions that are reasoned about together.")] = 64
    method: Annotated[Method, tyro.conf.OmitArgPrefixes] = Method()

    def run(self) -> None:
        use_compilation_cache()
        from rich.console import Console

        from verdict_jax.benchmarks.catalogue import BENCHMARKS
        from verdict_jax.evaluation import BASE, ORACLE, Participants, Plan, evaluate
        from verdict_jax.reasoner import VLMReasoner, base_reasoner
        from verdict_jax.reasoning import ArgumentError
        from verdict_jax.rules import RULES
        from verdict_jax.run_folder import RunFolderError

        rules = self.rules if self.rules != (ALL,) else (BASE, *RULES, ORACLE)
        if self.seeds < 1 or (self.limit is not None and self.limit < 1):
            raise UserError("--seeds and --limit must be at least 1")
        sampling = self.method.sampling
        try:
            plan = Plan(
                rules=rules,
                seeds=tuple(range(self.seeds)),
                parameters=self.method.parameters,
                n=self.method.n,
                max_steps=self.method.max_steps,
                batch=self.batch,
            )
        except ValueError as error:
            raise UserError(str(error)) from error
        with waiting("reading the model and the questions"):
            vlm = load(self.method.model)
            reasoner = VLMReasoner(vlm, sampling)
            who = Participants(base_reasoner(reasoner), reasoner, self.method.panels(vlm))
            benchmark = BENCHMARKS[self.benchmark](self.limit)
        try:
            with _progress_bar() as tell:
                results = evaluate(benchmark, who, plan, self.out, tell)
        except (ArgumentError, RunFolderError) as error:
            raise UserError(str(error)) from error
        _report(self.out, benchmark, who, plan, results, Console())


def _report(
    out: Path,
    benchmark: Benchmark,
    who: Participants,
    plan: Plan,
    results: Sequence[Result],
    console: Console,
) -> None:
    """Prints the tables and writes them into the folder."""
    from verdict_jax.evaluation import read_trees
    from verdict_jax.summary import rows, rule_table, step_figures, step_table

    tables = [rule_table(rows(results, plan.rules))]
    judges = tuple(judge for panel in who.panels for judge in panel.judges)
    if benchmark.check is not None:
        tables.append(step_table(step_figures(benchmark, read_trees(out), judges, plan.parameters)))
    text = "\n".join(tables)
    (out / "tables.md").write_text(text, encoding="utf-8")
    console.print(text, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _progress_bar() -> Iterator[Callable[[Done], None]]:
    """Questions done, how fast, accuracy so far, time left."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    console = Console(stderr=True)
    with Progress(
        "{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        console=console, transient=True,
    ) as bar:  # fmt: skip
        task = bar.add_task("answering (the first batch compiles)", total=None)

        def tell(done: Done) -> None:
            shares = "  ".join(f"{rule} {100 * share:.1f}" for rule, share in done.correct.items())
            rate = done.fresh / done.seconds
            bar.update(
                task,
                total=done.total,
                completed=done.questions,
                description=f"{rate:.1f} questions/s  {shares}",
            )

        yield tell
