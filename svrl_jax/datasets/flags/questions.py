"""Questions about the country of a flag, with their pictures.

Item i of a (split, seed) is a pure function of the three.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from svrl_jax.datasets.flags.phrasings import Use, questions_about
from svrl_jax.datasets.flags.pictures import TRAINING, UNSEEN, draw
from svrl_jax.datasets.flags.splits import SPLITS, Kind, Split, asked, kind_of
from svrl_jax.datasets.flags.world import Fact, World

TEST_SEED = 2026
"""Of the questions that figures are reported on."""

TEST_QUESTIONS = 1000
"""Half about facts that pretraining taught, half about pairs that no training touched; no pair
twice."""


class Message(TypedDict):
    content: str
    role: str


class ImageBytes(TypedDict):
    bytes: bytes


class RewardModel(TypedDict):
    ground_truth: str
    candidate_answers: str


class FvqaRow(TypedDict):
    """A row in the schema of lmms-lab/FVQA.

    candidate_answers is a JSON list of strings, written out.
    """

    prompt: list[Message]
    images: list[ImageBytes]
    reward_model: RewardModel
    data_id: str
    category: str


@dataclass(frozen=True, eq=False)
class Item:
    """One question.

    Attributes:
        id: `flags/<split>/<seed>/<index>`.
        text: never names the country.
        picture: [64 64 3], of its flag.
        fact: what is asked, with the golds.
        kind: of the fact.
    """

    id: str
    text: str
    picture: UInt8[np.ndarray, "64 64 3"]
    fact: Fact
    kind: Kind

    def row(self) -> FvqaRow:
        """In FVQA's schema: the picture as PNG, the attribute as category."""
        file = io.BytesIO()
        Image.fromarray(self.picture).save(file, "png")
        answer, *others = self.fact.golds
        return {
            "prompt": [{"content": self.text, "role": "user"}],
            "images": [{"bytes": file.getvalue()}],
            "reward_model": {
                "ground_truth": answer,
                "candidate_answers": json.dumps(others, ensure_ascii=False),
            },
            "data_id": self.id,
            "category": self.fact.attribute,
        }


def questions(world: World, split: Split, seed: int, count: int, start: int = 0) -> Iterator[Item]:
    """Items `start` to `start + count` of a split and seed.

    The split's pools take turns (for test: seen, held out, seen, ...). Within a pool no fact comes
    twice before all have come; each time it has another picture and phrasing.

    Args:
        world: from `load`.
        split: pretrain and train use the training phrasings and pictures, validation and test
            those that no training uses.
        seed: another seed, other items.
        count: how many.
        start: the first one's index.
    """
    pools = asked(world, split)
    number = SPLITS.index(split)
    use: Use = "training" if split in ("pretrain", "train") else "unseen"
    ranges = TRAINING if use == "training" else UNSEEN
    order = np.random.default_rng((seed, number))
    orders = [order.permutation(len(pool)) for pool in pools]
    places = {country.name: place for place, country in enumerate(world.countries)}
    for index in range(start, start + count):
        rng = np.random.default_rng((seed, number, index))
        turn, chosen = divmod(index, len(pools))
        pool, permutation = pools[chosen], orders[chosen]
        fact = pool[permutation[turn % len(pool)]]
        texts = questions_about(fact.attribute, use)
        yield Item(
            id=f"flags/{split}/{seed}/{index}",
            text=texts[int(rng.integers(len(texts)))],
            picture=draw(world.flags[places[fact.country]], ranges, rng),
            fact=fact,
            kind=kind_of(world, fact),
        )


def test_questions(world: World) -> tuple[Item, ...]:
    """The questions that figures are reported on."""
    return tuple(questions(world, "test", TEST_SEED, TEST_QUESTIONS))
