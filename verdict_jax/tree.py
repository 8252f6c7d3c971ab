"""The stored tree of candidates and raw scores that every rule walks.

A node holds the candidates that follow one accepted prefix. They are a pure function of (model,
sampling settings, item, seed, accepted prefix, whether the step is the last one allowed), so a
second rule, a second panel or a resumed run finds them again and asks the model only for nodes
that nobody has visited. The prefix is the path of chosen indices from the root.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Bool, Float

from verdict_jax.json_records import dumps, loads
from verdict_jax.protocols import Candidate, Setting

SCHEMA = "verdict-tree/1"

Table = tuple[tuple[float | None, ...], ...]
"""Values [n][judges] as they are stored: None where there is none."""


@dataclass(frozen=True)
class PanelIdentity:
    """What a panel's scores are a function of, besides question, prefix and candidate.

    Attributes:
        model_id: names the judges' weights.
        judges: the judges' names, one per column.
        settings: read-outs, rubrics, image visibility.
    """

    model_id: str
    judges: tuple[str, ...]
    settings: Mapping[str, Setting] = field(default_factory=dict)


@dataclass(frozen=True)
class PanelScores:
    """One panel's raw scores of a node's candidates.

    Attributes:
        panel: index into the tree's panels.
        scores: [n][judges] in [0, 1]; None where a judge gave no usable score and for blank
            candidates, which are not judged.
    """

    panel: int
    scores: Table


@dataclass(frozen=True)
class Node:
    """The candidates that follow one accepted prefix, with what judges said of them.

    Attributes:
        path: the chosen index of each accepted step; () at the root.
        final: sampled as the last step allowed, which runs to the end of the chain.
        candidates: n continuations; a blank one is kept here, and is no choice for any rule.
        scores: one entry per panel that has judged the node.
    """

    path: tuple[int, ...]
    final: bool
    candidates: tuple[Candidate, ...]
    scores: tuple[PanelScores, ...] = ()

    @property
    def firsts(self) -> tuple[int | None, ...]:
        """Per candidate the first one of the same text, which is judged for it; None if blank."""
        first: dict[str, int] = {}
        return tuple(
            first.setdefault(candidate.text, index) if candidate.text.strip() else None
            for index, candidate in enumerate(self.candidates)
        )

    @property
    def failures(self) -> tuple[str | None, ...]:
        """Per candidate why it is no choice; None if it is one."""
        return tuple(None if c.text.strip() else "empty candidate" for c in self.candidates)


@dataclass(frozen=True)
class Tree:
    """All nodes visited for one item under one model, sampling setting and seed.

    Attributes:
        schema: the version of this layout.
        item: the question's id.
        question, choices, images: of the question, its pictures by `protocols.image_name`; the
            same id with another text, choice or picture is another item.
        model_id: the reasoner's.
        settings: the reasoner's sampling settings.
        seed: the run's seed.
        n: candidates per node.
        panels: the panels that judged any node; `PanelScores.panel` points here.
        nodes: sorted by path.
    """

    schema: str
    item: str
    question: str
    choices: tuple[str, ...]
    images: tuple[str, ...]
    model_id: str
    settings: Mapping[str, Setting]
    seed: int
    n: int
    panels: tuple[PanelIdentity, ...] = ()
    nodes: tuple[Node, ...] = ()

    def find(self, path: tuple[int, ...], final: bool) -> Node | None:
        """The node that follows a prefix, None if it was never sampled."""
        for node in self.nodes:
            if node.path == path and node.final == final:
                return node
        return None

    def with_node(self, node: Node) -> Tree:
        """The tree with this node put in, in place of one of the same prefix.

        Raises:
            ValueError: the node has not n candidates.
        """
        if len(node.candidates) != self.n:
            raise ValueError(
                f"{self.item}: a node of {len(node.candidates)} candidates in a tree of {self.n}"
            )
        kept = [n for n in self.nodes if (n.path, n.final) != (node.path, node.final)]
        return replace(self, nodes=tuple(sorted([*kept, node], key=lambda n: (n.path, n.final))))

    def scores(self, node: Node, panel: PanelIdentity) -> Table | None:
        """A panel's stored scores [n][judges] of a node; None if it never judged the node."""
        for entry in node.scores:
            if self.panels[entry.panel] == panel:
                return entry.scores
        return None

    def with_scores(
        self,
        node: Node,
        panel: PanelIdentity,
        scores: Float[np.ndarray, "n judges"],
        mask: Bool[np.ndarray, "n judges"],
    ) -> Tree:
        """The tree with a panel's scores of a node put in.

        Repeated candidates take the scores of the first one of their text, whatever stands in
        their own rows; so do blank ones take None.

        Raises:
            ValueError: a usable score lies outside [0, 1] or is NaN.
        """
        rows: list[tuple[float | None, ...]] = []
        for first in node.firsts:
            if first is None:
                rows.append((None,) * len(panel.judges))
                continue
            for judge, score, usable in zip(panel.judges, scores[first], mask[first], strict=True):
                if usable and not 0 <= score <= 1:
                    raise ValueError(
                        f"{self.item}: judge {judge} of {panel.model_id} gave {score} to "
                        f"candidate {first}; a usable score lies in [0, 1]"
                    )
            rows.append(
                tuple(
                    float(score) if usable else None
                    for score, usable in zip(scores[first], mask[first], strict=True)
                )
            )
        panels = self.panels if panel in self.panels else (*self.panels, panel)
        index = panels.index(panel)
        entries = [e for e in node.scores if e.panel != index] + [PanelScores(index, tuple(rows))]
        judged = replace(node, scores=tuple(sorted(entries, key=lambda e: e.panel)))
        return replace(self, panels=panels).with_node(judged)

    def to_json(self) -> str:
        """One line of JSON; `json_records.json_schema(Tree)` describes it."""
        return dumps(self)

    @classmethod
    def from_json(cls, text: str) -> Tree:
        """The tree that `to_json` wrote.

        Raises:
            MalformedRecord: not JSON, not a tree, or another version; the message names the place.
        """
        return loads(cls, text, SCHEMA)


def columns(
    tables: Sequence[Table], n: int
) -> tuple[Float[np.ndarray, "n judges"], Bool[np.ndarray, "n judges"]]:
    """Several panels' stored scores side by side.

    Args:
        tables: one per panel, each with the same candidates.
        n: how many of the candidates to keep, from the first.

    Returns:
        scores (0 where there is none) and the mask of usable ones; float64 and bool.
    """
    joined = [sum((table[i] for table in tables), ()) for i in range(n)]
    width = len(joined[0]) if joined else 0
    scores = np.array(
        [[0.0 if value is None else value for value in row] for row in joined], np.float64
    ).reshape(n, width)
    mask = np.array([[value is not None for value in row] for row in joined], bool)
    return scores, mask.reshape(n, width)
