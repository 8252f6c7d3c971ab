"""Chat prompts that texts cannot break, ready to be joined with pictures."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal

import jinja2
import numpy as np
from jaxtyping import Int32
from transformers import PreTrainedTokenizerFast

from verdict_jax.vlm.config import Config
from verdict_jax.vlm.rows import TokenRow, token_row
from verdict_jax.vlm.tokenizer import TokenizerError, plain_ids
from verdict_jax.vlm.windows import Picture


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
                ids += [*plain_ids(tokenizer, run).tolist(), added[fragment]]
                run = ""
            else:
                run += fragment
    return np.array(ids + plain_ids(tokenizer, run).tolist(), np.int32)


@dataclass(frozen=True)
class Frame:
    """What the chat template writes before and behind the text of the user's turn.

    Attributes:
        opening: system turn, start of the user's turn, one placeholder per picture.
        closing: end of the user's turn, start of the assistant's.
    """

    opening: Int32[np.ndarray, "opening"]
    closing: Int32[np.ndarray, "closing"]


# A run has few frames, and asks for each of them at every question.
@functools.lru_cache(maxsize=1_000)
def frame(
    tokenizer: PreTrainedTokenizerFast, config: Config, system: str, num_images: int
) -> Frame:
    """The frame of a prompt: system text, then a user's turn of pictures and a text to come.

    Cached, so its arrays are read-only.

    Raises:
        TokenizerError: as `render_prompt`.
    """
    user = Message("user", (*[Marker.IMAGE] * num_images, Marker.SLOT))
    messages = (Message("system", (system,)), user)
    pieces = render_prompt(tokenizer, config, messages, add_generation_prompt=True)
    opening, closing = split_at_slot(pieces)
    around = Frame(encode_prompt(tokenizer, opening), encode_prompt(tokenizer, closing))
    around.opening.flags.writeable = around.closing.flags.writeable = False
    return around


@functools.lru_cache(maxsize=100)
def reply_frame(tokenizer: PreTrainedTokenizerFast, config: Config) -> Frame:
    """What stands between two turns of the assistant, around the user's text.

    Its opening begins behind the end-of-turn token, which the model wrote itself. Cached, so its
    arrays are read-only.

    Raises:
        TokenizerError: as `render_prompt`.
    """
    messages = (
        Message("user", ("?",)),
        Message("assistant", ("!",)),
        Message("user", (Marker.SLOT,)),
    )
    pieces = render_prompt(tokenizer, config, messages, add_generation_prompt=True)
    said = pieces.index(Text("!"))
    opening, closing = split_at_slot(pieces[said + 1 :])
    ids = encode_prompt(tokenizer, opening)
    if len(ids) and int(ids[0]) in config.eos_token_ids:
        ids = ids[1:]
    around = Frame(ids, encode_prompt(tokenizer, closing))
    around.opening.flags.writeable = around.closing.flags.writeable = False
    return around


def prompt_row(
    config: Config, parts: tuple[Int32[np.ndarray, "_"], ...], pictures: tuple[Picture, ...]
) -> TokenRow:
    """The token row of a prompt given in parts, its placeholders filled with the pictures.

    Raises:
        ValueError: the placeholders are not those of the pictures, or the prompt is longer than
            the model's positions.
    """
    row = token_row(np.concatenate(parts), config, pictures)
    most = config.text.max_position_embeddings
    if len(row.tokens) > most:
        raise ValueError(
            f"the prompt has {len(row.tokens)} tokens, the model takes {most}; give a shorter "
            "text, fewer or smaller pictures"
        )
    return row
