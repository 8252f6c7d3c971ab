"""Prompts as token rows of one bucket."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Literal

import jax
import jinja2
import numpy as np
from jaxtyping import Bool, Int, Int32
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from verdict_jax.vlm.config import Config, ConfigError, read_json
from verdict_jax.vlm.inputs import Array, ModelInputs

_NEWLINE = "\u010a"  # how byte-level BPE spells the byte 0x0A


class TokenizerError(ValueError):
    """A tokenizer or chat template that cannot be used; the message says which, with the reason."""


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """The byte-level BPE tokenizer of a checkpoint folder, read from local files only.

    tokenizer.json is used as it stands. The chat template comes from chat_template.jinja, else
    chat_template.json, else tokenizer_config.json; a folder may have none.

    Raises:
        TokenizerError: a file is missing, no JSON or lacks a part, or the tokenizer is not
            byte-level BPE.
    """
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if not (folder / name).is_file():
            raise TokenizerError(f"{folder / name}: no such file")
    separate = folder / "chat_template.json"
    try:
        table = read_json(folder / "tokenizer.json")
        read_json(folder / "tokenizer_config.json")
        template = read_json(separate).get("chat_template") if separate.is_file() else None
    except ConfigError as error:
        raise TokenizerError(str(error)) from error
    for part, expected in (("model", "BPE"), ("decoder", "ByteLevel")):
        found = table.get(part)
        if not isinstance(found, dict) or found.get("type") != expected:
            raise TokenizerError(
                f"{folder / 'tokenizer.json'}: {part} must be {expected} (byte-level BPE)"
            )
    try:
        # of its constructors the one whose errors have a type
        Tokenizer.from_buffer(json.dumps(table).encode())
    except ValueError as error:
        raise TokenizerError(
            f"{folder / 'tokenizer.json'}: not a usable tokenizer ({error})"
        ) from error
    if not isinstance(table.get("added_tokens"), list):
        raise TokenizerError(f"{folder / 'tokenizer.json'}: holds no list of added_tokens")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    if separate.is_file() and not (folder / "chat_template.jinja").is_file():
        if not isinstance(template, str):
            raise TokenizerError(f"{separate}: holds no chat_template string")
        tokenizer.chat_template = template
    return tokenizer


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class StepMasks:
    """Where the blank line that ends a step can fall, by token id.

    A step ends at the first token that is in `contains_delimiter`, or is in `starts_newline` and
    follows a token in `ends_newline`.

    Attributes:
        contains_delimiter: the token's text holds "\\n\\n".
        ends_newline: the token's text ends with "\\n".
        starts_newline: the token's text starts with "\\n".
    """

    contains_delimiter: Bool[Array, "vocab"]
    ends_newline: Bool[Array, "vocab"]
    starts_newline: Bool[Array, "vocab"]


def step_masks(tokenizer: PreTrainedTokenizerFast, vocab_size: int) -> StepMasks:
    """Step delimiter masks over the model's vocabulary; ids without a token are False.

    Raises:
        TokenizerError: the tokenizer has ids that the model's vocabulary lacks.
    """
    texts = [text.replace(_NEWLINE, "\n") for text in _vocabulary(tokenizer, vocab_size)]
    return StepMasks(
        np.array(["\n\n" in text for text in texts], bool),
        np.array([text.endswith("\n") for text in texts], bool),
        np.array([text.startswith("\n") for text in texts], bool),
    )


def suppressed_ids(
    config: Config, tokenizer: PreTrainedTokenizerFast, vocab_size: int
) -> Bool[np.ndarray, "vocab"]:
    """True for ids that may never be sampled (known-fault V10).

    These are the image and video placeholders, the vision markers, every special token that is
    not a stop id of `config`, and ids without a token (a model's vocabulary is padded).

    Raises:
        TokenizerError: the tokenizer has ids that the model's vocabulary lacks.
    """
    suppressed = np.array([not text for text in _vocabulary(tokenizer, vocab_size)], bool)
    special = [id for id, token in tokenizer.added_tokens_decoder.items() if token.special]
    suppressed[special + list(tokenizer.all_special_ids)] = True
    suppressed[list(config.eos_token_ids)] = False
    for marker in (
        config.image_token_id,
        config.video_token_id,
        config.vision_start_token_id,
        config.vision_end_token_id,
    ):
        suppressed[marker] = True
    return suppressed


def _vocabulary(tokenizer: PreTrainedTokenizerFast, vocab_size: int) -> list[str]:
    """The spelling of each id, "" where there is none."""
    top = max(tokenizer.get_vocab().values())
    if top >= vocab_size:
        raise TokenizerError(
            f"the tokenizer has ids up to {top}, but the model's vocabulary has {vocab_size}"
        )
    return [token or "" for token in tokenizer.convert_ids_to_tokens(list(range(vocab_size)))]


class Marker(Enum):
    """What a message may hold besides text."""

    IMAGE = "image"
    """The next picture of the prompt."""
    SLOT = "slot"
    """Where a prefix ends, to be continued later; see `split_at_slot`."""


@dataclass(frozen=True)
class Message:
    """One turn of a chat; strings are plain text, whatever they hold."""

    role: Literal["system", "user", "assistant"]
    content: tuple[str | Marker, ...]


@dataclass(frozen=True)
class Text:
    """A stretch of a prompt that is plain text: no part of it becomes a control token."""

    text: str


@dataclass(frozen=True)
class Control:
    """A stretch of a prompt that the chat template wrote: special-token strings are tokens."""

    text: str


Piece = Text | Control | Marker


def render_prompt(
    tokenizer: PreTrainedTokenizerFast,
    config: Config,
    messages: Sequence[Message],
    add_generation_prompt: bool = False,
) -> tuple[Piece, ...]:
    """The chat template around the messages, with texts kept apart from what the template wrote.

    The template sees a private-use stand-in for each text, so a text can neither close its turn
    nor be changed by the template. A picture is a Control of vision start, placeholder and vision
    end: written by a template that knows pictures, placed by us where the template takes text
    only. Marker.SLOT stays in the result for `split_at_slot`.

    Raises:
        TokenizerError: no chat template, no vision tokens, the template fails on these messages,
            or it drops, repeats or reorders a text or a picture.
    """
    if tokenizer.chat_template is None:
        raise TokenizerError("the checkpoint has no chat template")
    image_ids = [
        config.vision_start_token_id,
        config.image_token_id,
        config.vision_end_token_id,
    ]
    image_tokens = [token or "" for token in tokenizer.convert_ids_to_tokens(image_ids)]
    if not all(image_tokens):
        raise TokenizerError(f"the tokenizer lacks one of the vision tokens {image_ids}")
    places_images = image_tokens[1] in tokenizer.get_chat_template()
    stand_ins: list[str | Marker] = []

    def stand_in(part: str | Marker) -> str:
        if part is Marker.IMAGE:
            return "".join(image_tokens)
        stand_ins.append(part)
        return f"\ue000{len(stand_ins) - 1}\ue001"

    conversation = []
    for message in messages:
        if places_images:
            content = [
                {"type": "image"}
                if part is Marker.IMAGE
                else {"type": "text", "text": stand_in(part)}
                for part in message.content
            ]
        else:
            content = "".join(stand_in(part) for part in message.content)
        conversation.append({"role": message.role, "content": content})
    try:
        rendering = tokenizer.apply_chat_template(
            conversation, tokenize=False, add_generation_prompt=add_generation_prompt
        )
    except (jinja2.TemplateError, TypeError) as error:
        raise TokenizerError(f"the chat template fails on this prompt ({error})") from error
    # odd places hold the stand-ins' numbers
    fragments = re.split("\ue000(\\d+)\ue001", str(rendering))
    if [int(number) for number in fragments[1::2]] != list(range(len(stand_ins))):
        raise TokenizerError("the chat template drops, repeats or reorders a part of a message")
    wanted = sum(message.content.count(Marker.IMAGE) for message in messages)
    if "".join(fragments[::2]).count(image_tokens[1]) != wanted:
        raise TokenizerError(f"the chat template does not place {wanted} picture(s) once each")
    pieces: list[Piece] = []
    for index, fragment in enumerate(fragments):
        if index % 2:
            part = stand_ins[int(fragment)]
            pieces.append(part if isinstance(part, Marker) else Text(part))
        elif fragment:
            pieces.append(Control(fragment))
    return tuple(pieces)


def split_at_slot(pieces: Sequence[Piece]) -> tuple[tuple[Piece, ...], tuple[Piece, ...]]:
    """(prefix, closing) around the one Marker.SLOT of a prompt.

    Raises:
        ValueError: there is not exactly one slot.
    """
    if list(pieces).count(Marker.SLOT) != 1:
        raise ValueError(f"expected one slot in the prompt, got {list(pieces).count(Marker.SLOT)}")
    at = list(pieces).index(Marker.SLOT)
    return tuple(pieces[:at]), tuple(pieces[at + 1 :])


def encode_prompt(
    tokenizer: PreTrainedTokenizerFast, pieces: Sequence[Piece]
) -> Int32[np.ndarray, "time"]:
    """Token ids of a prompt; each picture is still a single placeholder.

    Special-token strings become tokens inside Control pieces only; text between two of them is
    encoded as one run, so ordinary prompts get the ids of the template's whole rendering.

    Raises:
        ValueError: a slot is left in `pieces`.
    """
    added = {token.content: id for id, token in tokenizer.added_tokens_decoder.items()}
    longest_first = sorted(added, key=len, reverse=True)
    specials = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")
    ids: list[int] = []
    run = ""
    for piece in pieces:
        if isinstance(piece, Marker):
            raise ValueError("the prompt holds a slot; split it first")
        if isinstance(piece, Text) or not added:
            run += piece.text
            continue
        # odd places hold the special tokens
        for index, fragment in enumerate(specials.split(piece.text)):
            if index % 2:
                ids += [*_plain_ids(tokenizer, run), added[fragment]]
                run = ""
            else:
                run += fragment
    return np.array(ids + _plain_ids(tokenizer, run), np.int32)


def _plain_ids(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    # The stages below the added tokens: encode() would find those in plain text too.
    backend = tokenizer.backend_tokenizer
    if backend.normalizer is not None:
        text = backend.normalizer.normalize_str(text)
    words = [text] if text else []
    if backend.pre_tokenizer is not None:
        words = [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text)]
    model = backend.model
    return [token.id for word in words for token in model.tokenize(word)]


def expand_images(
    tokens: Int[np.ndarray, "time"], image_token_id: int, counts: Sequence[int]
) -> Int32[np.ndarray, "expanded"]:
    """Repeats the i-th placeholder counts[i] times.

    Raises:
        ValueError: the number of placeholders is not that of `counts`.
    """
    placeholders = tokens == image_token_id
    if placeholders.sum() != len(counts):
        raise ValueError(f"{placeholders.sum()} image placeholders for {len(counts)} pictures")
    repeats = np.ones(tokens.shape, np.int64)
    repeats[placeholders] = counts
    return np.repeat(tokens, repeats).astype(np.int32)


def mrope_positions(
    tokens: Int[np.ndarray, "time"], config: Config, grids: Sequence[tuple[int, int]]
) -> tuple[Int32[np.ndarray, "3 time"], int]:
    """M-RoPE positions (temporal, height, width) and the position after the last.

    Text advances all three axes by one a token. A picture of h x w merged tokens that starts at
    position p has temporal p, height p + row, width p + column, and the text after it goes on at
    p + max(h, w) (Qwen2-VL, arXiv:2409.12191, section 2.1; transformers' get_rope_index).

    Args:
        tokens: one row with its placeholders expanded, without padding.
        config: the placeholder's id and the merge size.
        grids: (rows, columns) in patches of each picture, in order.

    Raises:
        ValueError: the placeholders are not those of `grids`.
    """
    merge = config.vision.spatial_merge_size
    placeholder = tokens == config.image_token_id
    positions = np.empty((3, len(tokens)), np.int32)
    pending = iter(grids)
    at, position = 0, 0
    while at < len(tokens):
        if not placeholder[at]:
            positions[:, at] = position
            at, position = at + 1, position + 1
            continue
        grid = next(pending, None)
        if grid is None:
            raise ValueError(f"more image placeholders than {len(grids)} picture(s) fill")
        rows, columns = grid[0] // merge, grid[1] // merge
        end = at + rows * columns
        if end > len(tokens) or not placeholder[at:end].all():
            raise ValueError(f"too few image placeholders for a picture of {rows} x {columns}")
        row, column = np.indices((rows, columns), np.int32)
        positions[0, at:end] = position
        positions[1, at:end] = position + row.ravel()
        positions[2, at:end] = position + column.ravel()
        at, position = end, position + max(rows, columns)
    if next(pending, None) is not None:
        raise ValueError(f"fewer image placeholders than {len(grids)} picture(s) fill")
    return positions, position


@dataclass(frozen=True)
class TokenRow:
    """One prompt, before it is padded into a batch.

    Attributes:
        tokens: ids with the image placeholders expanded.
        positions: M-RoPE positions.
        feature_ids: the row of the flattened image features behind each placeholder, else -1.
        next_position: M-RoPE position of the token that follows.
    """

    tokens: Int32[np.ndarray, "time"]
    positions: Int32[np.ndarray, "3 time"]
    feature_ids: Int32[np.ndarray, "time"]
    next_position: int


def token_row(
    tokens: Int[np.ndarray, "time"],
    config: Config,
    grids: Sequence[tuple[int, int]],
    feature_index: Sequence[Int[np.ndarray, "_"]],
) -> TokenRow:
    """A prompt of `encode_prompt` joined with its pictures.

    Args:
        tokens: ids with one placeholder a picture.
        config: the model.
        grids: (rows, columns) in patches of each picture, in the order of the placeholders.
        feature_index: each picture's rows in the image features, from `pack_patches`.

    Raises:
        ValueError: placeholders, grids and features do not match.
    """
    counts = [rows * columns // config.vision.merge_unit for rows, columns in grids]
    if [len(index) for index in feature_index] != counts:
        raise ValueError(
            f"pictures of {counts} tokens have {[len(index) for index in feature_index]} features"
        )
    expanded = expand_images(tokens, config.image_token_id, counts)
    positions, next_position = mrope_positions(expanded, config, grids)
    feature_ids = np.full(expanded.shape, -1, np.int32)
    if counts:
        feature_ids[expanded == config.image_token_id] = np.concatenate(feature_index)
    return TokenRow(expanded, positions, feature_ids, next_position)


def pack_tokens(
    rows: Sequence[TokenRow],
    num_rows: int,
    width: int,
    pad_id: int,
    side: Literal["right", "left"] = "right",
) -> ModelInputs:
    """Rows of one bucket, int32; rows past the last are all padding.

    Args:
        rows: at most `num_rows` prompts of at most `width` tokens.
        num_rows: rows of the bucket.
        width: tokens of the bucket.
        pad_id: the id that padding holds; its position is 0.
        side: where padding stands.

    Raises:
        ValueError: the rows do not fit.
    """
    if len(rows) > num_rows:
        raise ValueError(f"{len(rows)} rows do not fit a bucket of {num_rows}")
    tokens = np.full((num_rows, width), pad_id, np.int32)
    positions = np.zeros((3, num_rows, width), np.int32)
    mask = np.zeros((num_rows, width), bool)
    feature_ids = np.full((num_rows, width), -1, np.int32)
    for index, row in enumerate(rows):
        length = len(row.tokens)
        if length > width:
            raise ValueError(f"row {index} of {length} tokens does not fit a bucket of {width}")
        span = slice(0, length) if side == "right" else slice(width - length, width)
        tokens[index, span] = row.tokens
        positions[:, index, span] = row.positions
        mask[index, span] = True
        feature_ids[index, span] = row.feature_ids
    return ModelInputs(tokens, positions, mask, feature_ids)
