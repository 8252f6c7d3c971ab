"""Chat prompts around a question, ready to be joined with pictures."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int32
from transformers import PreTrainedTokenizerFast

from verdict_jax.vlm.config import Config
from verdict_jax.vlm.pictures import Picture
from verdict_jax.vlm.tokenizer import (
    Marker,
    Message,
    Text,
    TokenRow,
    encode_prompt,
    render_prompt,
    split_at_slot,
    token_row,
)


@dataclass(frozen=True)
class Frame:
    """What the chat template writes before and behind the text of the user's turn.

    Attributes:
        opening: system turn, start of the user's turn, one placeholder per picture.
        closing: end of the user's turn, start of the assistant's.
    """

    opening: Int32[np.ndarray, "opening"]
    closing: Int32[np.ndarray, "closing"]


def frame(
    tokenizer: PreTrainedTokenizerFast, config: Config, system: str, num_images: int
) -> Frame:
    """The frame of a prompt: system text, then a user's turn of pictures and a text to come.

    Raises:
        TokenizerError: as `tokenizer.render_prompt`.
    """
    user = Message("user", (*[Marker.IMAGE] * num_images, Marker.SLOT))
    messages = (Message("system", (system,)), user)
    pieces = render_prompt(tokenizer, config, messages, add_generation_prompt=True)
    opening, closing = split_at_slot(pieces)
    return Frame(encode_prompt(tokenizer, opening), encode_prompt(tokenizer, closing))


def plain_ids(tokenizer: PreTrainedTokenizerFast, text: str) -> Int32[np.ndarray, "time"]:
    """Ids of a text in which control strings are text."""
    return encode_prompt(tokenizer, (Text(text),))


def prompt_row(
    config: Config, parts: tuple[Int32[np.ndarray, "_"], ...], pictures: tuple[Picture, ...]
) -> TokenRow:
    """The token row of a prompt given in parts, its placeholders filled with the pictures.

    Raises:
        ValueError: the placeholders are not those of the pictures, or the prompt is longer than
            the model's positions.
    """
    row = token_row(
        np.concatenate(parts),
        config,
        [picture.grid for picture in pictures],
        [picture.feature_index for picture in pictures],
    )
    most = config.text.max_position_embeddings
    if len(row.tokens) > most:
        raise ValueError(
            f"the prompt has {len(row.tokens)} tokens, the model takes {most}; give a shorter text, "
            "fewer or smaller pictures"
        )
    return row
