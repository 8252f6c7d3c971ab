"""The subcommands that reason about pictures: `verdict run`, `verdict demo`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from verdict_jax.cli_models import Method, load, use_compilation_cache, waiting
from verdict_jax.command import Command, UserError
from verdict_jax.whole_file import TargetError, check_target, whole_or_absent

if TYPE_CHECKING:
    from rich.console import Console

    from verdict_jax.protocols import Panel, Question
    from verdict_jax.reasoner import VLMReasoner
    from verdict_jax.rules import RuleParameters
    from verdict_jax.trace import Trace
    from verdict_jax.vlm.prefixes import Prefixes

RuleName = Literal[
    "verdict",
    "no_rejection",
    "no_selection",
    "raw_average",
    "raw_average_variance",
    "mean",
    "min",
    "max",
    "majority",
    "variance",
    "weighted_mean",
    "weighted_mean_filtered",
    "random",
    "first",
]
"""The keys of `rules.RULES`, spelled out so that --help lists them without loading jax."""

DEMO_ITEMS = ("easy-vqa/test/200", "easy-vqa/test/610")
"""Test items on which a person sees candidates that differ and one that is rejected."""


@dataclass(frozen=True)
class Run(Command):
    """Reason about a picture, step by step, and show every candidate with its judges' scores.

    Per step the model samples candidate continuations; three judges score each (V: is it in the
    picture, L: does it follow, C: is it about the question); the scores settle at the equilibrium
    of the judges' game; a candidate is accepted if the settled mean is above tau and the
    dispersion below epsilon; the best accepted one goes on, else the best mean - dispersion.

    Without --model the small bundled model answers: it knows the world of easy-vqa only (one
    coloured shape a picture). --model takes the folder of any Qwen2.5-VL checkpoint.

    examples:
      verdict run --image shape.png --question "what color is the shape?"
      verdict run --image a.jpg b.jpg --question "Which is closer?" --choices "the first" "the second"
        --model ~/models/Qwen2.5-VL-7B-Instruct --n 8 --out trace.json
    """  # noqa: E501 - an example is one line of the terminal

    image: Annotated[
        tuple[Path, ...],
        tyro.conf.arg(
            metavar="FILE...", help="The picture, or several in the order of the prompt."
        ),
    ]
    question: Annotated[str, tyro.conf.arg(metavar="TEXT", help="What to answer.")]
    choices: Annotated[
        tuple[str, ...],
        tyro.conf.arg(
            metavar="TEXT...",
            help="Options, lettered A, B, ... in this order; the answer is then a letter.",
            help_behavior_hint="(default: a free answer)",
        ),
    ] = ()
    rule: Annotated[RuleName, tyro.conf.arg(help="How a candidate is chosen.")] = "verdict"
    seed: Annotated[int, tyro.conf.arg(help="The same seed gives the same trace.")] = 0
    out: Annotated[
        Path | None,
        tyro.conf.arg(
            metavar="FILE",
            help="Where to write the trace as JSON.",
            help_behavior_hint="(default: it is only shown)",
        ),
    ] = None
    method: Annotated[Method, tyro.conf.OmitArgPrefixes] = Method()

    def run(self) -> None:
        if self.out is not None:
            _check_out(self.out)
        use_compilation_cache()
        from rich.console import Console

        from verdict_jax.protocols import Question
        from verdict_jax.reasoner import VLMReasoner
        from verdict_jax.rules import JUDGE_FREE_RULES

        sampling, parameters = self.method.sampling, self.method.parameters
        name = ",".join(path.name for path in self.image)
        question = Question(name, self.question, self.image, self.choices)
        self._check(question, parameters)
        console = Console()
        with waiting("reading the model"):
            vlm = load(self.method.model)
            judges: tuple[Panel[Prefixes], ...] = ()
            if self.rule not in JUDGE_FREE_RULES:
                judges = self.method.panels(vlm)
        with waiting("reasoning (the first run compiles)"):
            (trace,) = _traces(
                [question], VLMReasoner(vlm, sampling), judges, self.rule, parameters,
                self.method.n, self.seed, self.method.max_steps,
            )  # fmt: skip
        if trace.error is not None:
            raise UserError(trace.error)
        _show([trace], console)
        if self.out is not None:
            _write(self.out, trace)
            console.print(f"trace: {self.out}", highlight=False)

    def _check(self, question: Question, parameters: RuleParameters) -> None:
        """All that can be wrong apart from the model, which may take minutes to read."""
        from verdict_jax.prompts import JUDGES
        from verdict_jax.reasoning import ArgumentError, check_arguments
        from verdict_jax.tree import PanelIdentity
        from verdict_jax.vlm.images import ImageError, load_image

        if not self.question.strip():
            raise UserError("--question is empty; ask something")
        if len(self.choices) == 1:
            raise UserError("--choices takes two options or more; leave it out for a free answer")
        try:
            judges = PanelIdentity("judges", JUDGES)
            check_arguments(
                [question], [judges], self.rule, parameters, self.method.n, self.seed,
                self.method.max_steps,
            )  # fmt: skip
            for path in self.image:
                load_image(path)
        except (ArgumentError, ImageError) as error:
            raise UserError(str(error)) from error


@dataclass(frozen=True)
class Demo(Command):
    """Answer two pictures of easy-vqa's test split with the bundled model; write the traces.

    Shown are each picture's path and question; per step the candidates with the raw scores of the
    judges V, L and C, where the scores settle, mean and dispersion, and whether the step was
    accepted; then the answer beside the gold one.
    """

    out: Annotated[
        Path, tyro.conf.arg(metavar="DIR", help="Folder for the traces, made if need be.")
    ] = Path("runs/demo")
    seed: Annotated[int, tyro.conf.arg(help="The same seed gives the same traces.")] = 0

    def run(self) -> None:
        paths = {item: self.out / f"{item.replace('/', '-')}.json" for item in DEMO_ITEMS}
        self.out.mkdir(parents=True, exist_ok=True)
        for path in paths.values():
            _check_out(path)
        use_compilation_cache()
        from rich.console import Console

        from verdict_jax.benchmarks import easy_vqa
        from verdict_jax.reasoner import VLMReasoner
        from verdict_jax.rules import RuleParameters
        from verdict_jax.vlm.sampling import SamplingSettings

        questions = [question for question in easy_vqa.load("test") if question.id in DEMO_ITEMS]
        method, console = Method(), Console()
        with waiting("reading the model"):
            vlm = load(None)
            reasoner = VLMReasoner(vlm, SamplingSettings(max_tokens=64))
            judges = method.panels(vlm)
        with waiting("reasoning (the first run compiles)"):
            traces = _traces(
                questions, reasoner, judges, "verdict", RuleParameters(), method.n, self.seed,
                method.max_steps,
            )  # fmt: skip
        _show(traces, console)
        for trace in traces:
            _write(paths[trace.item], trace)
            console.print(f"trace: {paths[trace.item]}", highlight=False)


def _traces(
    questions: Sequence[Question],
    reasoner: VLMReasoner,
    panels: Sequence[Panel],
    rule: str,
    parameters: RuleParameters,
    n: int,
    seed: int,
    max_steps: int,
) -> tuple[Trace, ...]:
    from verdict_jax.reasoning import ArgumentError, reason

    try:
        reasoned = reason(
            questions, reasoner, panels, rule=rule, parameters=parameters,
            n=n, seed=seed, max_steps=max_steps,
        )  # fmt: skip
    except ArgumentError as error:
        raise UserError(str(error)) from error
    return reasoned.traces


def _show(traces: Sequence[Trace], console: Console) -> None:
    from verdict_jax.display import show

    for trace in traces:
        show(trace, console)
        console.print()


def _check_out(path: Path) -> None:
    """So that a trace that took long to make can be written."""
    try:
        check_target(path)
    except TargetError as error:
        raise UserError(str(error)) from error


def _write(path: Path, trace: Trace) -> None:
    try:
        with whole_or_absent(path) as stream:
            stream.write(trace.to_json() + "\n")
    except TargetError as error:
        raise UserError(str(error)) from error
