"""A VLM as a panel of judges: one batched pass scores all candidates."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float, Int, Int32

from verdict_jax import prompts
from verdict_jax.protocols import Candidate, Question, QuestionErrors, Setting
from verdict_jax.replies import (
    OPTIONS,
    expected_score,
    option_spellings,
    padded_spellings,
    parse_score,
)
from verdict_jax.vlm import prefixes
from verdict_jax.vlm.buckets import bucket
from verdict_jax.vlm.checkpoint import VLM
from verdict_jax.vlm.prefixes import Prefixes, Replies
from verdict_jax.vlm.prompting import Frame, frame, prompt_row
from verdict_jax.vlm.rows import TokenRow
from verdict_jax.vlm.sampling import LENGTH
from verdict_jax.vlm.tokenizer import plain_ids
from verdict_jax.vlm.windows import Picture

logger = logging.getLogger(__name__)

VERBAL_TOKENS = 5
"""Most tokens of a verbal reply; the paper's judges give 1 to 5."""


@dataclass(frozen=True)
class Judge:
    """One judge of a panel.

    Attributes:
        name: unique in its panel.
        rubric: what it is asked about a step, without how to reply.
        sees_image: whether its prompt holds the question's pictures.
        read_out: how its reply becomes a score.
    """

    name: str
    rubric: str
    sees_image: bool = False
    read_out: prompts.ReadOut = "digits"


DEFAULT_JUDGES = tuple(
    Judge(name, prompts.RUBRICS[name], sees_image=name == "visual") for name in prompts.JUDGES
)
"""The paper's V, L and C; only V sees the image."""


@dataclass(frozen=True)
class Judgement:
    """All that a panel says of a batch of candidates.

    Attributes:
        scores: in [0, 1]; 0 where `mask` is False.
        mask: False for a blank candidate and for a reply that states no score.
        off_support: the probability that the next token is none of the read-out's options: how
            little a judge keeps to its scale. NaN for blank candidates and verbal replies.
    """

    scores: Float[np.ndarray, "batch n judges"]
    mask: Bool[np.ndarray, "batch n judges"]
    off_support: Float[np.ndarray, "batch n judges"]


@dataclass(frozen=True)
class VLMPanel:
    """Judges of one model. Each has a prefix of its own and sees no other judge.

    Prefix: [rubric, image if it sees it, question, accepted steps], read once per question and then
    extended by each accepted step; a candidate costs its own tokens and those that close the turn.
    A state holds these prefixes, a question's judges in succession.

    Attributes:
        vlm: the model.
        specs: its judges, at least one. Judges of another model are another panel.

    Raises:
        ValueError: no judge, two of one name, or a tokenizer that cannot tell the replies of a
            read-out apart.
    """

    vlm: VLM
    specs: tuple[Judge, ...] = DEFAULT_JUDGES

    def __post_init__(self) -> None:
        if not self.specs or len(set(self.judges)) < len(self.specs):
            raise ValueError(f"a panel needs judges of distinct names, got {self.judges}")
        self._spellings  # noqa: B018 - raises here rather than in the first step

    @cached_property
    def _spellings(self) -> Int[np.ndarray, "judges options spellings"]:
        tokenizer = self.vlm.tokenizer
        return padded_spellings(
            tuple(option_spellings(tokenizer, spec.read_out) for spec in self.specs)
        )

    @cached_property
    def _closings(self) -> tuple[Int32[np.ndarray, "closing"], ...]:
        """Of each judge, the ids that end the user's turn."""
        return tuple(self._frame(spec, 0).closing for spec in self.specs)

    @property
    def judges(self) -> tuple[str, ...]:
        return tuple(spec.name for spec in self.specs)

    @property
    def model_id(self) -> str:
        return self.vlm.name

    @property
    def settings(self) -> Mapping[str, Setting]:
        settings: dict[str, Setting] = {"dtype": self.vlm.dtype}
        for spec in self.specs:
            settings[f"{spec.name}.system"] = prompts.judge_system(spec.rubric, spec.read_out)
            settings[f"{spec.name}.sees_image"] = spec.sees_image
            settings[f"{spec.name}.read_out"] = spec.read_out
        return settings

    def start(self, questions: Sequence[Question]) -> Prefixes:
        """Prefills every judge's prefix of every question, in one pass.

        Raises:
            QuestionErrors: rows with a picture that cannot be read or processed (if any judge sees
                it), more choices than letters, or a prompt longer than the model takes.
        """
        vlm = self.vlm
        sees = any(spec.sees_image for spec in self.specs)
        encoded = vlm.encode([question.images if sees else () for question in questions])
        rows: list[TokenRow] = []
        reasons = dict(encoded.reasons)
        for index, (question, pictures) in enumerate(zip(questions, encoded.rows, strict=True)):
            if index in reasons:
                continue
            try:
                rows += self._prompts(question, pictures)
            except ValueError as error:
                reasons[index] = str(error)
        if reasons:
            raise QuestionErrors(reasons)
        num_rows = bucket(len(questions)) * len(self.specs)
        return prefixes.read_prompts(vlm, rows, num_rows, encoded.features)

    def score(
        self, state: Prefixes, candidates: Sequence[Sequence[Candidate]]
    ) -> tuple[Float[np.ndarray, "batch n judges"], Bool[np.ndarray, "batch n judges"]]:
        """Scores and mask; see `judge`."""
        judgement = self.judge(state, candidates)
        return judgement.scores, judgement.mask

    def judge(self, state: Prefixes, candidates: Sequence[Sequence[Candidate]]) -> Judgement:
        """What every judge says of every candidate, in one pass.

        Blank candidates are not judged. The loop blanks repeats of a text, so here each is judged.
        """
        judges = len(self.specs)
        batch = len(state.lengths) // judges
        shape = (batch, max((len(row) for row in candidates), default=0), judges)
        judgement = Judgement(np.zeros(shape), np.zeros(shape, bool), np.full(shape, np.nan))
        places = [
            (row, place)
            for row, proposed in enumerate(candidates)
            for place, candidate in enumerate(proposed)
            if candidate.text.strip()
        ]
        if not places:
            return judgement
        texts = [(row, candidates[row][place].text) for row, place in places]
        scores, off_support = self._score_candidates(state, texts, bucket(batch))
        judged = tuple(np.array(places).T)
        usable = np.isfinite(scores)
        judgement.mask[judged] = usable
        judgement.scores[judged] = np.where(usable, scores, 0.0)
        judgement.off_support[judged] = off_support
        for spec, off in zip(self.specs, off_support.T, strict=True):
            if OPTIONS[spec.read_out]:
                logger.debug("%s: mean mass off its options %.3g", spec.name, off.mean())
        return judgement

    def commit(self, state: Prefixes, steps: Sequence[Candidate | None]) -> Prefixes:
        """Extends each judge's prefix by the row's step, read as plain text."""
        nothing = np.empty(0, np.int32)
        ids = [
            nothing
            if step is None
            else plain_ids(self.vlm.tokenizer, prompts.judge_step(step.text))
            for step in steps
            for _ in self.specs
        ]
        return prefixes.append(self.vlm, state, ids)

    def take(self, state: Prefixes, rows: Sequence[int]) -> Prefixes:
        """The state of these rows, in this order."""
        judges = len(self.specs)
        places = [row * judges + judge for row in rows for judge in range(judges)]
        return prefixes.take(state, places, bucket(len(rows)) * judges)

    def _frame(self, spec: Judge, num_images: int) -> Frame:
        system = prompts.judge_system(spec.rubric, spec.read_out)
        return frame(self.vlm.tokenizer, self.vlm.config, system, num_images)

    def _prompts(self, question: Question, pictures: tuple[Picture, ...]) -> list[TokenRow]:
        """Every judge's prompt for one question."""
        text = prompts.question_text(question.text, question.choices)
        asked = plain_ids(self.vlm.tokenizer, prompts.judge_opening(text))
        rows = []
        for spec in self.specs:
            seen = pictures if spec.sees_image else ()
            opening = self._frame(spec, len(seen)).opening
            rows.append(prompt_row(self.vlm.config, (opening, asked), seen))
        return rows

    def _score_candidates(
        self, state: Prefixes, pairs: Sequence[tuple[int, str]], least: int
    ) -> tuple[Float[np.ndarray, "pairs judges"], Float[np.ndarray, "pairs judges"]]:
        """Scores (NaN for none) and off-support mass of (row, text) pairs."""
        vlm, judges = self.vlm, len(self.specs)
        continuations = []
        for _, text in pairs:
            ids = plain_ids(vlm.tokenizer, prompts.judge_step(text))
            continuations += [np.concatenate([ids, closing]) for closing in self._closings]
        verbal = [j for j, spec in enumerate(self.specs) if spec.read_out == "verbal"]
        replies = prefixes.ask(
            vlm,
            state,
            [row * judges + judge for row, _ in pairs for judge in range(judges)],
            continuations,
            bucket(len(pairs), least) * judges,
            np.tile(self._spellings, (len(pairs), 1, 1)),
            [pair * judges + judge for pair in range(len(pairs)) for judge in verbal],
            VERBAL_TOKENS,
        )
        log_masses = replies.log_masses.reshape(len(pairs), judges, -1)
        scores = np.full((len(pairs), judges), np.nan)
        off_support = np.full((len(pairs), judges), np.nan)
        for judge, spec in enumerate(self.specs):
            options = len(OPTIONS[spec.read_out])
            if options:
                masses = log_masses[:, judge, :options]
                scores[:, judge], off_support[:, judge] = expected_score(masses)
        scores[:, verbal] = self._generated_scores(replies, len(pairs), len(verbal))
        return np.clip(scores, 0, 1), off_support

    def _generated_scores(
        self, replies: Replies, pairs: int, judges: int
    ) -> Float[np.ndarray, "{pairs} {judges}"]:
        """Scores of the verbal replies, NaN where one states none."""
        scores = np.full(pairs * judges, np.nan)
        generated = replies.generated
        if generated is None:
            return scores.reshape(pairs, judges)
        for index in range(len(scores)):
            ids = np.asarray(generated.tokens[index])[np.asarray(generated.mask[index])]
            text = str(self.vlm.tokenizer.decode(ids.tolist(), skip_special_tokens=True))
            score = parse_score(text, truncated=bool(generated.finish[index] == LENGTH))
            if score is not None:
                scores[index] = score
        return scores.reshape(pairs, judges)
