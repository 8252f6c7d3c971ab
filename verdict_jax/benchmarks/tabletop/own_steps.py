"""Judgements of steps that a model itself proposed, labelled by the checker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from verdict_jax.benchmarks.examples import JudgeExample, StepVerdict
from verdict_jax.benchmarks.tabletop import Item, Table, draw_table
from verdict_jax.benchmarks.tabletop.checker import check_step
from verdict_jax.benchmarks.tabletop.language import meaning_of
from verdict_jax.benchmarks.tabletop.questions import FAMILIES
from verdict_jax.protocols import Reasoner
from verdict_jax.reasoning import reason
from verdict_jax.tree import Tree

BROKEN_SHARE = 0.55
"""How often a broken step is drawn where there is one."""


@dataclass(frozen=True)
class Labelled:
    """A proposed step with what is true of it."""

    text: str
    verdict: StepVerdict


@dataclass(frozen=True)
class OwnSteps:
    """The different candidates of one node of a model's tree.

    Attributes:
        table: index of the table (`sampled_table`).
        accepted: the steps before.
        sound, broken: the candidates; those outside the language are left out.
    """

    table: int
    accepted: tuple[str, ...]
    sound: tuple[Labelled, ...]
    broken: tuple[Labelled, ...]


def sampled_table(seed: int, index: int) -> Table:
    """A train table of one question to sample about."""
    rng = np.random.default_rng((seed, 3, index))
    return draw_table(f"own/{index}", "train", rng, FAMILIES[index % len(FAMILIES)])


def label_tree(index: int, item: Item, tree: Tree) -> Iterator[OwnSteps]:
    """The candidates of every node, labelled."""
    texts = {node.path: [candidate.text for candidate in node.candidates] for node in tree.nodes}
    for path, proposed in texts.items():
        accepted = tuple(texts[path[:i]][place] for i, place in enumerate(path))
        labelled = [
            Labelled(text, check_step(text, item.asked, item.scene, accepted))
            for text in dict.fromkeys(proposed)
            if meaning_of(text) is not None
        ]
        yield OwnSteps(
            index,
            accepted,
            tuple(step for step in labelled if step.verdict.broken == "none"),
            tuple(step for step in labelled if step.verdict.broken != "none"),
        )


def sample_own_steps(
    reasoner: Reasoner, seed: int, first: int, count: int, max_steps: int = 14
) -> list[OwnSteps]:
    """What a reasoner proposes about some tables, four candidates a step, one taken at random.

    Args:
        reasoner: the model.
        seed: of tables and sampling.
        first, count: indices of the tables.
        max_steps: cap of a chain.
    """
    items = {}
    for index in range(first, first + count):
        (item,) = sampled_table(seed, index).items
        items[item.question.id] = index, item
    questions = [item.question for _, item in items.values()]
    trees = reason(questions, reasoner, rule="random", n=4, max_steps=max_steps, seed=seed).trees
    return [
        steps
        for name, (index, item) in items.items()
        for steps in label_tree(index, item, trees[name])
    ]


def draw_own(
    item: Item, nodes: Sequence[OwnSteps], count: int, rng: np.random.Generator
) -> list[JudgeExample]:
    """Judgements of a model's own steps about one question, half from nodes with a broken one.

    Args:
        item: the question.
        nodes: of the tree about it.
        count: how many.
        rng: advanced in place.
    """
    mixed = [node for node in nodes if node.broken]
    drawn: list[JudgeExample] = []
    for turn in range(count):
        pool = mixed if mixed and turn % 2 == 0 else nodes
        node = pool[int(rng.integers(len(pool)))]
        broken = bool(node.broken) and (not node.sound or rng.random() < BROKEN_SHARE)
        steps = node.broken if broken else node.sound
        if steps:
            step = steps[int(rng.integers(len(steps)))]
            drawn.append(JudgeExample(item.question, node.accepted, step.text, step.verdict))
    return drawn
