"""Three judges about each snippet, settled by VERDICT's game."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from svrl_jax import prompts
from svrl_jax.task import Task
from svrl_jax.trajectory import Snippet
from verdict_jax.decisions import decide
from verdict_jax.judges import Judge, VLMPanel
from verdict_jax.protocols import Candidate, Question
from verdict_jax.rules import RuleParameters
from verdict_jax.vlm.checkpoint import VLM

SNIPPET_JUDGES = tuple(
    Judge(name, rubric, sees_image=name == "visual")
    for name, rubric in prompts.SNIPPET_RUBRICS.items()
)
"""V: is the snippet about what the picture shows; L: does it say the answer; C: is it about what is
asked."""


@dataclass(frozen=True)
class Consensus:
    """A `SnippetJudge`: a snippet is evidence where the settled judges accept it.

    Shown the gold it is an oracle of training; without it, an outside verifier at test time.

    Attributes:
        panel: of SNIPPET_JUDGES, or of others.
        gold_shown: whether the judges are told the answer.
        parameters: stubbornness, tau, epsilon of the game.
        at_once: tasks that are judged together.
    """

    panel: VLMPanel
    gold_shown: bool
    parameters: RuleParameters = RuleParameters()
    at_once: int = 64

    @staticmethod
    def of(vlm: VLM, gold_shown: bool) -> Consensus:
        """The default judges on a model of one's own."""
        return Consensus(VLMPanel(vlm, SNIPPET_JUDGES), gold_shown)

    def __call__(self, pairs: Sequence[tuple[Task, Snippet]]) -> list[bool]:
        """Whether each snippet is accepted; a picture that cannot be read raises QuestionErrors."""
        groups: dict[str, list[int]] = {}
        for place, (task, _) in enumerate(pairs):
            groups.setdefault(task.question.id, []).append(place)
        accepted = [False] * len(pairs)
        places = list(groups.values())
        for start in range(0, len(places), self.at_once):
            self._judge(pairs, places[start : start + self.at_once], accepted)
        return accepted

    def _judge(
        self,
        pairs: Sequence[tuple[Task, Snippet]],
        groups: Sequence[Sequence[int]],
        accepted: list[bool],
    ) -> None:
        questions = [self._question(pairs[group[0]][0]) for group in groups]
        candidates = [
            [
                Candidate(prompts.snippet_text(pairs[place][1].title, pairs[place][1].text))
                for place in group
            ]
            for group in groups
        ]
        scores, mask = self.panel.score(self.panel.start(questions), candidates)
        present = np.zeros(mask.shape[:2], bool)
        for row, group in enumerate(groups):
            present[row, : len(group)] = True
        verdicts, _ = decide(
            "verdict", scores, mask, present, self.parameters, 0, [q.id for q in questions], 0
        )
        for row, group in enumerate(groups):
            for column, place in enumerate(group):
                accepted[place] = bool(verdicts.accepted[row, column])

    def _question(self, task: Task) -> Question:
        gold = task.golds[0] if self.gold_shown else None
        text = prompts.snippet_question(task.question.text, gold)
        return replace(task.question, text=text, answer=None)
