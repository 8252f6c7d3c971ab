"""Held-out figures of the bundled easy-vqa model: `python scripts/evaluate_bundled.py`.

On the test split: the share of questions that one greedy chain answers (Base), with how often a
chain gives no answer; and for each judge the AUC between sound steps and steps broken in exactly
one way, its own kind and the others'. An AUC of 0.5 is what a blind judge gets, and what a judge
should get on the other judges' kinds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import jax.numpy as jnp
import numpy as np
import tyro
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy.stats import mannwhitneyu

from verdict_jax.answers import is_correct
from verdict_jax.benchmarks.easy_vqa import load
from verdict_jax.benchmarks.easy_vqa_steps import draw_judgement, items
from verdict_jax.benchmarks.examples import Break, JudgeExample
from verdict_jax.bundled import bundled_checkpoint
from verdict_jax.judges import VLMPanel
from verdict_jax.protocols import Candidate
from verdict_jax.reasoner import VLMReasoner, base_reasoner
from verdict_jax.reasoning import reason
from verdict_jax.vlm.checkpoint import VLM, load_vlm
from verdict_jax.vlm.sampling import SamplingSettings

T = TypeVar("T")

KINDS: dict[str, Break] = {
    "visual": "ungrounded",
    "logical": "illogical",
    "contextual": "off_topic",
}
"""The kind of broken step that each judge is there for."""


@dataclass(frozen=True)
class Args:
    """Options of the evaluation."""

    questions: int = 2048
    """Test questions to answer, drawn at random."""
    judgements: int = 4096
    """Labelled test steps to judge."""
    batch: int = 64
    """Rows of a batch."""
    seed: int = 0
    """Of the draws."""
    model: Path | None = None
    """Checkpoint folder; the bundled one if not given."""
    out: Path | None = None
    """Where to write the figures as JSON."""


def batches(rows: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def answer_figures(vlm: VLM, args: Args) -> dict[str, float]:
    """Accuracy of one greedy chain, with its 95% half-width, and the share without an answer."""
    questions = load("test")
    rng = np.random.default_rng(args.seed)
    chosen = [questions[i] for i in rng.permutation(len(questions))[: args.questions]]
    greedy = base_reasoner(VLMReasoner(vlm, SamplingSettings(max_tokens=64)))
    right, unanswered = 0, 0
    for batch in track([*batches(chosen, args.batch)], "answering"):
        traces = reason(batch, greedy, rule="first", n=1, max_steps=6).traces
        right += sum(
            trace.gold is not None and is_correct(trace.answer, trace.gold, trace.choices)
            for trace in traces
        )
        unanswered += sum(trace.answer is None for trace in traces)
    share = right / len(chosen)
    return {
        "questions": len(chosen),
        "accuracy": share,
        "half_width": 1.96 * float(np.sqrt(share * (1 - share) / len(chosen))),
        "no_answer": unanswered / len(chosen),
    }


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


def auc(sound: np.ndarray, broken: np.ndarray) -> float:
    """Probability that a sound step scores above a broken one, ties counting half."""
    return float(mannwhitneyu(sound, broken).statistic / (len(sound) * len(broken)))


def judge_figures(vlm: VLM, args: Args) -> dict[str, dict[str, float]]:
    """AUC of each judge on each kind of broken step."""
    rng = np.random.default_rng(args.seed)
    pool = items("test")
    drawn = [pool[i] for i in rng.choice(len(pool), args.judgements)]
    examples = [draw_judgement(item, rng) for item in drawn]
    panel = VLMPanel(vlm)
    scores = judge_scores(panel, examples, args.batch)
    kinds = np.array([example.verdict.broken for example in examples])
    return {
        judge: {
            kind: auc(scores[kinds == "none", column], scores[kinds == kind, column])
            for kind in KINDS.values()
        }
        for column, judge in enumerate(panel.judges)
    }


def main(args: Args) -> None:
    vlm = load_vlm(args.model or bundled_checkpoint("easy_vqa"), jnp.float32)
    answers, judges = answer_figures(vlm, args), judge_figures(vlm, args)
    console = Console()
    console.print(
        f"easy-vqa test, {answers['questions']} questions, one greedy chain: accuracy "
        f"{answers['accuracy']:.3f} +- {answers['half_width']:.3f} (95%), "
        f"no answer {answers['no_answer']:.3f}"
    )
    table = Table("judge", *KINDS.values(), title="AUC, sound against broken steps")
    for judge, figures in judges.items():
        table.add_row(judge, *(f"{figures[kind]:.3f}" for kind in KINDS.values()))
    console.print(table)
    if args.out is not None:
        args.out.write_text(json.dumps({"answers": answers, "judges": judges}, indent=2) + "\n")


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
