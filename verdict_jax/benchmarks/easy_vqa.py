"""Questions of the PyPI package easy-vqa 1.0 (MIT): 64x64 pictures of one coloured shape."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import easy_vqa
import numpy as np

from verdict_jax.benchmarks.benchmark import Benchmark
from verdict_jax.protocols import Question

Split = Literal["train", "test"]

ANSWERS = tuple(sorted(easy_vqa.get_answers()))
"""The 13 answers: yes, no, 8 colours, 3 shapes."""


def load(split: Split) -> tuple[Question, ...]:
    """All questions of a split, in the order of the published file.

    The id is `easy-vqa/<split>/<row of the file>`; the picture's number is its file's stem.
    """
    if split == "train":
        texts, answers, pictures = easy_vqa.get_train_questions()
        paths = easy_vqa.get_train_image_paths()
    else:
        texts, answers, pictures = easy_vqa.get_test_questions()
        paths = easy_vqa.get_test_image_paths()
    rows = zip(texts, answers, pictures, strict=True)
    return tuple(
        Question(
            id=f"easy-vqa/{split}/{row}",
            text=text,
            images=(Path(paths[picture]),),
            answer=answer,
        )
        for row, (text, answer, picture) in enumerate(rows)
    )


def benchmark(limit: int | None) -> Benchmark:
    """The test questions in a random order that is always the same, `limit` at most.

    Category is the kind of answer.
    """
    questions = load("test")
    order = np.random.default_rng(0).permutation(len(questions))[:limit]
    chosen = tuple(questions[i] for i in order)
    kinds = {
        **dict.fromkeys(("yes", "no"), "presence"),
        **dict.fromkeys(("circle", "rectangle", "triangle"), "shape"),
    }
    return Benchmark(
        "easy-vqa",
        chosen,
        {question.id: kinds.get(str(question.answer), "color") for question in chosen},
    )
