"""Held-out figures of the bundled model: `python scripts/evaluate_bundled.py [--world tabletop]`.

On the test split: the share of questions that one greedy chain answers (Base), by kind of
question, with how often a chain gives no answer; and for each judge the AUC between sound steps
and steps broken in exactly one way, its own kind and the others'. An AUC of 0.5 is what a blind
judge gets, and what a judge should get on the other judges' kinds. On tabletop also: the same
chains with the picture replaced by a grey one, and the first wrong step of each chain.
"""

from __future__ import annotations

import collections
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar

import jax.numpy as jnp
import numpy as np
import tyro
from PIL import Image
from rich.console import Console
from rich.progress import track
from rich.table import Table

from verdict_jax.answers import is_correct
from verdict_jax.benchmarks import easy_vqa_steps, tabletop
from verdict_jax.benchmarks.benchmark import Benchmark
from verdict_jax.benchmarks.catalogue import BENCHMARKS
from verdict_jax.benchmarks.examples import Break, JudgeExample
from verdict_jax.benchmarks.tabletop.checker import first_fault
from verdict_jax.benchmarks.tabletop.lessons import judgement
from verdict_jax.benchmarks.tabletop.picture import PIXELS
from verdict_jax.bundled import bundled_checkpoint
from verdict_jax.judges import VLMPanel
from verdict_jax.prompts import STEP_DELIMITER
from verdict_jax.protocols import Candidate, Question
from verdict_jax.reasoner import VLMReasoner, base_reasoner
from verdict_jax.reasoning import reason
from verdict_jax.summary import auc
from verdict_jax.trace import Trace
from verdict_jax.vlm.checkpoint import VLM, load_vlm
from verdict_jax.vlm.sampling import SamplingSettings

T = TypeVar("T")

World = Literal["easy-vqa", "tabletop"]

KINDS: dict[str, Break] = {
    "visual": "ungrounded",
    "logical": "illogical",
    "contextual": "off_topic",
}
"""The kind of broken step that each judge is there for."""

BLIND_SHARE = 3
"""One in so many questions is asked again without its picture."""


@dataclass(frozen=True)
class Args:
    """Options of the evaluation."""

    world: World = "easy-vqa"
    """Whose test split."""
    questions: int = 2048
    """Test questions to answer."""
    judgements: int = 4096
    """Labelled test steps to judge."""
    batch: int = 64
    """Rows of a batch."""
    seed: int = 0
    """Of the draws of steps."""
    model: Path | None = None
    """Checkpoint folder; the bundled one if not given."""
    out: Path | None = None
    """Where to write the figures as JSON."""


def batches(rows: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def greedy_traces(vlm: VLM, questions: Sequence[Question], batch_size: int) -> list[Trace]:
    """One greedy chain per question."""
    greedy = base_reasoner(VLMReasoner(vlm, SamplingSettings(max_tokens=64)))
    traces: list[Trace] = []
    for batch in track([*batches(questions, batch_size)], "answering"):
        traces += reason(batch, greedy, rule="first", n=1, max_steps=14).traces
    return traces


def accuracy(traces: Sequence[Trace]) -> dict[str, float]:
    """Accuracy with its 95% half-width, and the share without an answer."""
    right = [
        trace.gold is not None and is_correct(trace.answer, trace.gold, trace.choices)
        for trace in traces
    ]
    share = sum(right) / len(traces)
    return {
        "questions": len(traces),
        "accuracy": share,
        "half_width": 1.96 * float(np.sqrt(share * (1 - share) / len(traces))),
        "no_answer": sum(trace.answer is None for trace in traces) / len(traces),
    }


def by_category(benchmark: Benchmark, traces: Sequence[Trace]) -> dict[str, dict[str, float]]:
    """`accuracy` of all questions and of each category."""
    groups: dict[str, list[Trace]] = {"all": list(traces)}
    for trace in traces:
        groups.setdefault(benchmark.categories[trace.item], []).append(trace)
    return {name: accuracy(group) for name, group in groups.items()}


def without_pictures(questions: Sequence[Question]) -> list[Question]:
    """The same questions about an even grey."""
    grey = Image.new("RGB", (PIXELS, PIXELS), (128, 128, 128))
    return [replace(question, images=(grey,)) for question in questions]


def faults(items: Mapping[str, tabletop.Item], traces: Sequence[Trace]) -> dict[str, float]:
    """Of all chains, the share whose first wrong step is of each kind; "none" for right chains."""
    kinds: collections.Counter[str] = collections.Counter()
    for trace in traces:
        item = items[trace.item]
        fault = first_fault(trace.chain.split(STEP_DELIMITER), item.asked, item.scene)
        kinds["none" if fault is None else fault.kind] += 1
    return {kind: count / len(traces) for kind, count in kinds.most_common()}


def judge_scores(panel: VLMPanel, examples: Sequence[JudgeExample], batch_size: int) -> np.ndarray:
    """Scores [examples, judges] of each example's candidate behind its accepted steps."""
    scores = []
    for batch in track([*batches(examples, batch_size)], "judging"):
        state = panel.start([example.question for example in batch])
        for step in range(max(len(example.accepted) for example in batch)):
            state = panel.commit(
                state,
                [
                    Candidate(example.accepted[step]) if step < len(example.accepted) else None
                    for example in batch
                ],
            )
        values, mask = panel.score(state, [[Candidate(e.candidate)] for e in batch])
        scores.append(np.where(mask, values, np.nan)[:, 0])
    return np.concatenate(scores)


def easy_vqa_examples(count: int, rng: np.random.Generator) -> list[JudgeExample]:
    """Labelled steps about easy-vqa's test pictures."""
    pool = easy_vqa_steps.items("test")
    drawn = [pool[i] for i in rng.choice(len(pool), count)]
    return [easy_vqa_steps.draw_judgement(item, rng) for item in drawn]


def tabletop_examples(count: int, rng: np.random.Generator) -> list[JudgeExample]:
    """Labelled steps about tabletop's test pictures, two about each."""
    items = tabletop.load("test", tabletop.TEST_SEED, (count + 1) // 2)
    return [judgement(item, rng) for item in items for _ in range(2)][:count]


EXAMPLES: Mapping[World, Callable[[int, np.random.Generator], list[JudgeExample]]] = {
    "easy-vqa": easy_vqa_examples,
    "tabletop": tabletop_examples,
}


def judge_figures(
    vlm: VLM, examples: Sequence[JudgeExample], batch_size: int
) -> dict[str, dict[str, float]]:
    """AUC of each judge on each kind of broken step."""
    panel = VLMPanel(vlm)
    scores = judge_scores(panel, examples, batch_size)
    kinds = np.array([example.verdict.broken for example in examples])
    return {
        judge: {
            kind: auc(scores[kinds == "none", column], scores[kinds == kind, column])
            for kind in KINDS.values()
        }
        for column, judge in enumerate(panel.judges)
    }


def show_accuracy(console: Console, title: str, figures: Mapping[str, dict[str, float]]) -> None:
    table = Table("questions", "number", "accuracy", "no answer", title=title)
    for name, own in figures.items():
        share = f"{own['accuracy']:.3f} +- {own['half_width']:.3f}"
        table.add_row(name, f"{own['questions']:.0f}", share, f"{own['no_answer']:.3f}")
    console.print(table)


def main(args: Args) -> None:
    vlm = load_vlm(args.model or bundled_checkpoint("easy_vqa"), jnp.float32)
    console = Console()
    benchmark = BENCHMARKS[args.world](args.questions)
    traces = greedy_traces(vlm, benchmark.questions, args.batch)
    answers = by_category(benchmark, traces)
    show_accuracy(console, f"{args.world} test, one greedy chain", answers)
    figures: dict[str, object] = {"answers": answers}
    if args.world == "tabletop":
        count = len(benchmark.questions)
        items = {i.question.id: i for i in tabletop.load("test", tabletop.TEST_SEED, count)}
        figures["first_faults"] = shares = faults(items, traces)
        table = Table("first wrong step", "share of chains")
        for kind, share in shares.items():
            table.add_row(kind, f"{share:.3f}")
        console.print(table)
        asked = without_pictures(benchmark.questions[: count // BLIND_SHARE])
        figures["blind"] = blind = by_category(benchmark, greedy_traces(vlm, asked, args.batch))
        show_accuracy(console, "the same without pictures", blind)
    examples = EXAMPLES[args.world](args.judgements, np.random.default_rng(args.seed))
    figures["judges"] = judges = judge_figures(vlm, examples, args.batch)
    table = Table("judge", *KINDS.values(), title="AUC, sound against broken steps")
    for judge, own in judges.items():
        table.add_row(judge, *(f"{own[kind]:.3f}" for kind in KINDS.values()))
    console.print(table)
    if args.out is not None:
        args.out.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
