"""Training rows: a shared prefix followed by as many continuations as fit."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Float, Int, Int32
from transformers import PreTrainedTokenizerFast

from verdict_jax import prompts
from verdict_jax.benchmarks.examples import JudgeExample, ReasonerExample
from verdict_jax.vlm.buckets import bucket
from verdict_jax.vlm.config import Config
from verdict_jax.vlm.images import ProcessedImage
from verdict_jax.vlm.inputs import Array, ModelInputs, PatchBatch
from verdict_jax.vlm.prompting import frame
from verdict_jax.vlm.rows import TokenRow, pack_tokens, token_row
from verdict_jax.vlm.tokenizer import plain_ids
from verdict_jax.vlm.windows import Picture, num_windows, pack_patches


@dataclass(frozen=True)
class Lesson:
    """One picture with what is said about it.

    Attributes:
        picture: as the vision encoder reads it.
        chains: right chains about it, either all with choices or all without.
        judgements: labelled steps about it.
        attributes: class ids that each merged image token is to reveal through an auxiliary head,
            in raster order; -1 is no label.
    """

    picture: ProcessedImage
    chains: tuple[ReasonerExample, ...]
    judgements: tuple[JudgeExample, ...]
    attributes: Int[np.ndarray, "tokens attributes"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PictureBatch:
    """Pictures of one training step without text.

    Attributes:
        patches: the pictures.
        attributes: auxiliary labels of each row of the encoder's features, -1 for none.
    """

    patches: PatchBatch
    attributes: Int[Array, "features attributes"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PackedBatch:
    """Arrays of one training step.

    Attributes:
        pictures: the scenes'.
        inputs: token rows.
        segments: which continuation of its row a token belongs to; 0 is the prefix.
        predictors: flat places (row * time + column) whose next token is supervised.
        targets: the token that each predictor is to predict.
        weights: of each target in the loss; 0 for padding.
    """

    pictures: PictureBatch
    inputs: ModelInputs
    segments: Int[Array, "batch time"]
    predictors: Int[Array, "targets"]
    targets: Int[Array, "targets"]
    weights: Float[Array, "targets"]


def pack_pictures(
    config: Config,
    pictures: Sequence[ProcessedImage],
    attributes: Sequence[Int[np.ndarray, "tokens attributes"]],
) -> tuple[PictureBatch, tuple[Picture, ...]]:
    """Labelled pictures, with the place of each picture's tokens in the encoder's features.

    Args:
        config: the model.
        pictures: of one bucket; all are as wide as the largest.
        attributes: labels of each picture's merged tokens in raster order, -1 for none.

    Raises:
        ValueError: no pictures, not one array of labels per picture, or a picture that does not
            match `config`.
    """
    if not pictures:
        raise ValueError("no pictures to pack")
    windows = max(num_windows(picture.grid, config.vision) for picture in pictures)
    patches, packed = pack_patches(pictures, config.vision, len(pictures), windows)
    units = windows * config.vision.window_units**2
    labels = np.full((len(pictures) * units, attributes[0].shape[1]), -1, np.int32)
    for picture, own in zip(packed, attributes, strict=True):
        labels[picture.feature_index] = own
    return PictureBatch(patches, labels), packed


@dataclass(frozen=True)
class _Continuation:
    """Ids behind a prefix; the last ones are predicted, with these weights."""

    ids: Int32[np.ndarray, "time"]
    weights: list[float]


@dataclass(frozen=True)
class _Row:
    tokens: TokenRow
    segments: Int32[np.ndarray, "time"]
    predictors: list[int]
    weights: list[float]


REPLIES: dict[prompts.ReadOut, tuple[str, str]] = {
    "digits": (prompts.DIGITS[0], prompts.DIGITS[-1]),
    "yes_no": prompts.YES_NO,
    "verbal": ("0.1", "0.9"),
}
"""What a judge is trained to reply to a broken step and to a sound one."""


# A world's sentences are few and each is encoded thousands of times.
_plain = functools.lru_cache(maxsize=100_000)(plain_ids)


@dataclass(frozen=True)
class Packer:
    """Turns examples into rows of `width` tokens, in the layout that inference uses.

    Attributes:
        config: the model.
        tokenizer: of the model.
        width: tokens of a row.
        judge_weight: loss weight of a judge's reply, where a chain's token has 1.
        answer_weight: of the tokens of a chain's last step, which are few.
    """

    config: Config
    tokenizer: PreTrainedTokenizerFast
    width: int
    judge_weight: float
    answer_weight: float

    def _row(
        self,
        prefix: TokenRow,
        continuations: Iterable[_Continuation],
    ) -> _Row:
        """The prefix with the continuations that fit; positions restart behind the prefix."""
        ids, positions = [prefix.tokens], [prefix.positions]
        segments = [np.zeros(len(prefix.tokens), np.int32)]
        predictors: list[int] = []
        weights: list[float] = []
        length = len(prefix.tokens)
        for number, continuation in enumerate(continuations, start=1):
            size = len(continuation.ids)
            if length + size > self.width:
                break
            ids.append(continuation.ids)
            steps = prefix.next_position + np.arange(size, dtype=np.int32)
            positions.append(np.broadcast_to(steps, (3, size)))
            segments.append(np.full(size, number, np.int32))
            length += size
            predictors += range(length - len(continuation.weights) - 1, length - 1)
            weights += continuation.weights
        tokens = np.concatenate(ids)
        feature_ids = np.full(len(tokens), -1, np.int32)
        feature_ids[: len(prefix.feature_ids)] = prefix.feature_ids
        row = TokenRow(tokens, np.concatenate(positions, axis=1), feature_ids, 0)
        return _Row(row, np.concatenate(segments), predictors, weights)

    def chain_row(self, chains: Sequence[ReasonerExample], picture: Picture) -> _Row:
        """Chains behind the picture that they are about, every token of each supervised.

        Raises:
            ValueError: the chat template does not place the picture, a question has more choices
                than there are letters, or some questions have choices and others have none.
        """
        systems = {prompts.reasoner_system(example.question.choices) for example in chains}
        if len(systems) != 1:
            raise ValueError(f"chains of one row share their system prompt, got {len(systems)}")
        around = frame(self.tokenizer, self.config, *systems, 1)
        end = np.array([self.config.eos_token_ids[0]], np.int32)

        def continuation(example: ReasonerExample) -> _Continuation:
            question = prompts.question_text(example.question.text, example.question.choices)
            chain = np.concatenate([_plain(self.tokenizer, prompts.chain_text(example.steps)), end])
            ids = np.concatenate([_plain(self.tokenizer, question), around.closing, chain])
            last = 1 + len(_plain(self.tokenizer, example.steps[-1]))
            weights = [1.0] * (len(chain) - last) + [self.answer_weight] * last
            return _Continuation(ids, weights)

        row = token_row(around.opening, self.config, [picture])
        return self._row(row, map(continuation, chains))

    def judge_row(
        self,
        judge: prompts.JudgeName,
        read_out: prompts.ReadOut,
        examples: Sequence[JudgeExample],
        picture: Picture | None,
    ) -> _Row:
        """Steps under one rubric, the reply to each supervised.

        Args:
            judge: whose rubric.
            read_out: how it replies.
            examples: labelled steps, all about `picture` where the judge sees one.
            picture: None for a judge that sees none.

        Raises:
            ValueError: as `chain_row`.
        """
        system = prompts.judge_system(prompts.RUBRICS[judge], read_out)
        pictures = () if picture is None else (picture,)
        around = frame(self.tokenizer, self.config, system, len(pictures))

        def continuation(example: JudgeExample) -> _Continuation:
            question = prompts.question_text(example.question.text, example.question.choices)
            steps = [*example.accepted, example.candidate]
            parts = [_plain(self.tokenizer, prompts.judge_opening(question))]
            parts += [_plain(self.tokenizer, prompts.judge_step(step)) for step in steps]
            reply = _plain(self.tokenizer, REPLIES[read_out][example.verdict.good(judge)])
            ids = np.concatenate([*parts, around.closing, reply])
            return _Continuation(ids, [self.judge_weight] * len(reply))

        row = token_row(around.opening, self.config, pictures)
        return self._row(row, map(continuation, examples))

    def pack_chains(self, lessons: Sequence[Lesson]) -> PackedBatch:
        """One batch with a row of chains per lesson.

        Args:
            lessons: any number but none.

        Raises:
            ValueError: as `pack_pictures` and `chain_row`.
        """
        batch, pictures = self._pictures(lessons)
        rows = [
            self.chain_row(lesson.chains, picture)
            for lesson, picture in zip(lessons, pictures, strict=True)
        ]
        return self._batch(batch, rows)

    def pack(self, lessons: Sequence[Lesson], read_out: prompts.ReadOut) -> PackedBatch:
        """One batch: per lesson a row of chains and one of visual judgements; per two one
        row of logical and one of contextual judgements, which see no picture.

        Args:
            lessons: an even number.
            read_out: how the judges of this batch reply.

        Raises:
            ValueError: no lessons or an odd number of them, a row whose prefix alone is wider than
                `width`, or as `pack_pictures` and `chain_row`.
        """
        if len(lessons) % 2:
            raise ValueError(f"lessons come in pairs, got {len(lessons)}")
        batch, pictures = self._pictures(lessons)
        rows = []
        for lesson, picture in zip(lessons, pictures, strict=True):
            rows.append(self.chain_row(lesson.chains, picture))
            rows.append(self.judge_row("visual", read_out, lesson.judgements, picture))
        for first, second in zip(lessons[::2], lessons[1::2], strict=True):
            both = first.judgements + second.judgements
            rows.append(self.judge_row("logical", read_out, both, None))
            rows.append(self.judge_row("contextual", read_out, both[::-1], None))
        return self._batch(batch, rows)

    def _pictures(self, lessons: Sequence[Lesson]) -> tuple[PictureBatch, tuple[Picture, ...]]:
        return pack_pictures(
            self.config,
            [lesson.picture for lesson in lessons],
            [lesson.attributes for lesson in lessons],
        )

    def _batch(self, pictures: PictureBatch, rows: Sequence[_Row]) -> PackedBatch:
        inputs = pack_tokens(
            [row.tokens for row in rows], len(rows), self.width, self.config.pad_token_id
        )
        segments = np.zeros((len(rows), self.width), np.int32)
        places: list[int] = []
        weights: list[float] = []
        for number, row in enumerate(rows):
            segments[number, : len(row.segments)] = row.segments
            places += [number * self.width + column for column in row.predictors]
            weights += row.weights
        size = bucket(len(places), minimum=self.width * len(rows) // 3)
        predictors = np.zeros(size, np.int32)
        predictors[: len(places)] = places
        padded = np.zeros(size, np.float32)
        padded[: len(places)] = weights
        flat = np.asarray(inputs.tokens).reshape(-1)
        targets = flat[np.minimum(predictors + 1, flat.size - 1)]
        return PackedBatch(pictures, inputs, segments, predictors, targets, padded)
