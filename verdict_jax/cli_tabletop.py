"""The subcommand that shows the tabletop world: `verdict tabletop`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from verdict_jax.command import Command


@dataclass(frozen=True)
class Tabletop(Command):
    """Write pictures and questions of the tabletop world into a folder, to look at.

    Each question has a picture (N.png), four choices, the right letter and the chain of steps that
    leads to it; questions.jsonl holds them, sheet.png shows the pictures side by side with the
    questions under them.

    examples:
      verdict tabletop --out tables
      verdict tabletop --seed 7 --count 28 --split train --out tables
    """

    out: Annotated[Path, tyro.conf.arg(metavar="DIR", help="Folder, made if need be.")]
    seed: Annotated[int, tyro.conf.arg(help="Another seed, other tables.")] = 0
    count: Annotated[int, tyro.conf.arg(help="How many; the seven kinds take turns.")] = 14
    split: Annotated[
        Literal["train", "validation", "test"],
        tyro.conf.arg(help="No two splits share a table."),
    ] = "validation"

    def run(self) -> None:
        from rich.progress import track

        from verdict_jax.benchmarks import tabletop
        from verdict_jax.benchmarks.tabletop.contact_sheet import contact_sheet
        from verdict_jax.benchmarks.tabletop.language import sentence
        from verdict_jax.benchmarks.tabletop.questions import chain

        self.out.mkdir(parents=True, exist_ok=True)
        items = list(
            track(
                tabletop.load(self.split, self.seed, self.count),
                "drawing",
                total=self.count,
                transient=True,
            )
        )
        lines = []
        for number, item in enumerate(items):
            item.picture.save(self.out / f"{number}.png")
            record = {
                "id": item.question.id,
                "picture": f"{number}.png",
                "family": item.asked.family,
                "question": item.question.text,
                "choices": item.question.choices,
                "answer": item.question.answer,
                "steps": [sentence(step) for step in chain(item.asked, item.scene) or ()],
            }
            lines.append(json.dumps(record))
        (self.out / "questions.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        contact_sheet(items).save(self.out / "sheet.png")
        print(f"{len(items)} questions: {self.out / 'sheet.png'}, {self.out / 'questions.jsonl'}")
