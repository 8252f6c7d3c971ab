"""Traces as tables for a terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from verdict_jax.answers import is_correct
from verdict_jax.prompts import LETTERS
from verdict_jax.trace import Step, Trace

ABBREVIATIONS = {"visual": "V", "logical": "L", "contextual": "C"}
"""The paper's names of its judges."""

FINISHES = {
    "eos": "the model ended the chain without declaring an answer",
    "length": "the last step ran into the token cap: the chain is cut off",
    "cap": "the last step allowed declares no answer",
    "empty": "no candidate had any text",
}
"""Why a chain has no answer."""


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _outcome(step: Step, index: int) -> Text:
    """What became of a candidate, in a word or two."""
    failure = step.failures[index]
    style = "green" if step.accepted[index] else "red"
    if step.chosen == index:
        how = " (unjudged)" if step.unjudged else " (fallback)" if step.fallback else ""
        return Text(f"taken{how}", style=f"bold {style}")
    return Text(failure or ("accepted" if step.accepted[index] else "rejected"), style=style)


def step_table(step: Step, number: int, judges: tuple[str, ...]) -> Table:
    """One step: a line per candidate with raw scores, settled scores and what became of it.

    A candidate that is taken was accepted, unless the outcome says otherwise.

    Args:
        step: of a trace.
        number: counted from 1.
        judges: names of the score columns.
    """
    # few columns: sentences are to be read on a terminal of 80
    table = Table(
        title=f"step {number}", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD
    )
    table.add_column("candidate", overflow="fold", ratio=1)
    names = " ".join(ABBREVIATIONS.get(judge, judge) for judge in judges)
    if names:
        table.add_column(names, justify="right")
        table.add_column(f"consensus {names}", justify="right")
        table.add_column("mean", justify="right")
        table.add_column("dispersion", justify="right")
    table.add_column("outcome")
    for index, candidate in enumerate(step.candidates):
        cells: list[RenderableType] = [escape(" ".join(candidate.text.split()))]
        if names:
            cells.append(" ".join(_number(score) for score in step.raw[index]))
            cells.append(" ".join(_number(score) for score in step.consensus[index]))
            cells.append(_number(step.mean[index], 3))
            cells.append(_number(step.dispersion[index], 3))
        cells.append(_outcome(step, index))
        table.add_row(*cells, style="" if step.chosen == index else "dim")
    return table


def verdict_line(trace: Trace) -> Text:
    """The answer, or why there is none, beside the gold one where it is known."""
    if trace.finish == "error":
        return Text(f"error: {trace.error}", style="bold red")
    if trace.answer is None:
        reason = FINISHES.get(trace.finish, "its answer could not be read")
        line = Text(f"no answer: {reason}", style="bold yellow")
    else:
        line = Text(f"answer: {trace.answer}", style="bold")
    if trace.gold is not None:
        right = is_correct(trace.answer, trace.gold, trace.choices)
        line.append(f"   gold: {trace.gold}   ", style="not bold")
        line.append("right" if right else "wrong", style="green" if right else "red")
    return line


def render(trace: Trace) -> Group:
    """A whole trace: pictures, question, every step, the answer."""
    judges = tuple(judge for panel in trace.panels for judge in panel.judges)
    head = [Text(f"picture: {name}", no_wrap=True, overflow="ignore") for name in trace.images]
    head.append(Text(f"question: {trace.question}", style="bold"))
    lettered = zip(LETTERS, trace.choices, strict=False)
    head += [Text(f"  {letter}. {choice}") for letter, choice in lettered]
    steps = [step_table(step, number, judges) for number, step in enumerate(trace.steps, start=1)]
    return Group(*head, *steps, verdict_line(trace))


def show(trace: Trace, console: Console) -> None:
    """Prints `render(trace)`; a path too long for a line is left to the terminal to wrap."""
    console.print(render(trace), crop=False)
