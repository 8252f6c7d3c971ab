"""Training rows: a shared prefix followed by as many continuations as fit."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Float, Float32, Int, Int32
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
        pictures: the scenes'; None where there are none.
        inputs: token rows.
        segments: which continuation of its row a token belongs to; 0 is the prefix.
        predictors: flat places (row * time + column) whose next token is supervised.
        targets: the token that each predictor is to predict.
        weights: of each target in the loss; 0 for padding.
    """

    pictures: PictureBatch | None
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
class Continuation:
    """Text behind a prefix.

    Attributes:
        ids: its tokens.
        weights: of each token in the loss; 0 for what is only read, the first token always.
    """

    ids: Int32[np.ndarray, "time"]
    weights: Float32[np.ndarray, "time"]

    @staticmethod
    def of(parts: Sequence[tuple[Int32[np.ndarray, "_"], float]]) -> Continuation:
        """Of stretches of tokens, each with the weight of its tokens.

        Raises:
            ValueError: no stretch, or the first token has a weight: what precedes it is not known.
        """
        ids = np.concatenate([part for part, _ in parts])
        weights = [np.full(len(part), weight, np.float32) for part, weight in parts]
        if parts[0][1]:
            raise ValueError("a continuation begins with tokens that are only read")
        return Continuation(ids, np.concatenate(weights))


@dataclass(frozen=True)
class PackedRow:
    """A prefix with continuations that do not see each other.

    Attributes:
        tokens: of all.
        segments: which continuation a token belongs to; 0 is the prefix.
        weights: of each token in the loss.
    """

    tokens: TokenRow
    segments: Int32[np.ndarray, "time"]
    weights: Float32[np.ndarray, "time"]


def pack_row(prefix: TokenRow, continuations: Iterable[Continuation], width: int) -> PackedRow:
    """The prefix with the continuations that fit; the positions of each restart behind it."""
    ids, positions = [prefix.tokens], [prefix.positions]
    segments = [np.zeros(len(prefix.tokens), np.int32)]
    weights = [np.zeros(len(prefix.tokens), np.float32)]
    length = len(prefix.tokens)
    for number, continuation in enumerate(continuations, start=1):
        size = len(continuation.ids)
        if length + size > width:
            break
        ids.append(continuation.ids)
        steps = prefix.next_position + np.arange(size, dtype=np.int32)
        positions.append(np.broadcast_to(steps, (3, size)))
        segments.append(np.full(size, number, np.int32))
        weights.append(continuation.weights)
        length += size
    tokens = np.concatenate(ids)
    feature_ids = np.full(len(tokens), -1, np.int32)
    feature_ids[: len(prefix.feature_ids)] = prefix.feature_ids
    row = TokenRow(tokens, np.concatenate(positions, axis=1), feature_ids, 0)
    return PackedRow(row, np.concatenate(segments), np.concatenate(weights))


def pack_batch(
    pictures: PictureBatch | None, rows: Sequence[PackedRow], width: int, pad_id: int
) -> PackedBatch:
    """One batch of rows.

    Args:
        pictures: that the rows' feature ids point into.
        rows: at least one.
        width: tokens of a row.
        pad_id: what padding holds.

    Raises:
        ValueError: a row is wider than `width`.
    """
    inputs = pack_tokens([row.tokens for row in rows], len(rows), width, pad_id)
    segments = np.zeros((len(rows), width), np.int32)
    weights = np.zeros((len(rows), width), np.float32)
    for number, row in enumerate(rows):
        segments[number, : len(row.segments)] = row.segments
        weights[number, : len(row.weights)] = row.weights
    (places,) = np.nonzero(weights.reshape(-1))
    size = bucket(len(places), minimum=width * len(rows) // 3)
    targets = np.ones(size, np.int32)
    targets[: len(places)] = places
    padded = np.zeros(size, np.float32)
    padded[: len(places)] = weights.reshape(-1)[places]
    ids = np.asarray(inputs.tokens).reshape(-1)[targets]
    return PackedBatch(pictures, inputs, segments, targets - 1, ids, padded)


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
        judge_weight: loss weight of a token of a judge's reply.
        answer_weight: of a token of a chain's last step.
        step_weight: of a token of the steps before.
    """

    config: Config
    tokenizer: PreTrainedTokenizerFast
    width: int
    judge_weight: float
    answer_weight: float
    step_weight: float = 1.0

    def chain_row(self, chains: Sequence[ReasonerExample], picture: Picture | None) -> PackedRow:
        """Chains behind the picture that they are about, if there is one.

        Raises:
            ValueError: the chat template does not place the picture, a question has more choices
                than there are letters, or some questions have choices and others have none.
        """
        systems = {prompts.reasoner_system(example.question.choices) for example in chains}
        if len(systems) != 1:
            raise ValueError(f"chains of one row share their system prompt, got {len(systems)}")
        pictures = () if picture is None else (picture,)
        around = frame(self.tokenizer, self.config, *systems, len(pictures))
        end = np.array([self.config.eos_token_ids[0]], np.int32)

        def continuation(example: ReasonerExample) -> Continuation:
            question = prompts.question_text(example.question.text, example.question.choices)
            chain = np.concatenate([_plain(self.tokenizer, prompts.chain_text(example.steps)), end])
            last = 1 + len(_plain(self.tokenizer, example.steps[-1]))
            read = np.concatenate([_plain(self.tokenizer, question), around.closing])
            return Continuation.of(
                [
                    (read, 0.0),
                    (chain[:-last], self.step_weight),
                    (chain[-last:], self.answer_weight),
                ]
            )

        row = token_row(around.opening, self.config, pictures)
        return pack_row(row, map(continuation, chains), self.width)

    def judge_row(
        self,
        judge: prompts.JudgeName,
        read_out: prompts.ReadOut,
        examples: Sequence[JudgeExample],
        picture: Picture | None,
    ) -> PackedRow:
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

        def continuation(example: JudgeExample) -> Continuation:
            question = prompts.question_text(example.question.text, example.question.choices)
            steps = [*example.accepted, example.candidate]
            parts = [_plain(self.tokenizer, prompts.judge_opening(question))]
            parts += [_plain(self.tokenizer, prompts.judge_step(step)) for step in steps]
            reply = _plain(self.tokenizer, REPLIES[read_out][example.verdict.good(judge)])
            read = np.concatenate([*parts, around.closing])
            return Continuation.of([(read, 0.0), (reply, self.judge_weight)])

        row = token_row(around.opening, self.config, pictures)
        return pack_row(row, map(continuation, examples), self.width)

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
        return pack_batch(batch, rows, self.width, self.config.pad_token_id)

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
        return pack_batch(batch, rows, self.width, self.config.pad_token_id)

    def _pictures(self, lessons: Sequence[Lesson]) -> tuple[PictureBatch, tuple[Picture, ...]]:
        return pack_pictures(
            self.config,
            [lesson.picture for lesson in lessons],
            [lesson.attributes for lesson in lessons],
        )
