"""The tokenizer of a checkpoint: loading, plain text to ids, what its vocabulary means."""

from __future__ import annotations

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int32
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from verdict_jax.vlm.config import Config, ConfigError, read_json
from verdict_jax.vlm.sampling import TokenMasks

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


def plain_ids(tokenizer: PreTrainedTokenizerFast, text: str) -> Int32[np.ndarray, "time"]:
    """Ids of a text in which control strings are text."""
    # The stages below the added tokens: encode() would find those in plain text too.
    backend = tokenizer.backend_tokenizer
    if backend.normalizer is not None:
        text = backend.normalizer.normalize_str(text)
    words = [text] if text else []
    if backend.pre_tokenizer is not None:
        words = [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text)]
    model = backend.model
    return np.array([token.id for word in words for token in model.tokenize(word)], np.int32)


def token_masks(config: Config, tokenizer: PreTrainedTokenizerFast) -> TokenMasks:
    """What the vocabulary means to the sampler.

    A step ends at the first token that holds a blank line, or that starts with a newline and
    follows one that ends in a newline. Never to be sampled (known-fault V10) are the image and
    video placeholders, the vision markers, every special token that is not a stop id of `config`,
    and ids without a token (a model's vocabulary is padded).

    Raises:
        TokenizerError: the tokenizer has ids that the model's vocabulary lacks.
    """
    size = config.text.vocab_size
    spellings = _vocabulary(tokenizer, size)
    texts = [spelling.replace(_NEWLINE, "\n") for spelling in spellings]
    return TokenMasks(
        suppressed=jnp.asarray(_suppressed(config, tokenizer, spellings)),
        stop=jnp.asarray(np.isin(np.arange(size), config.eos_token_ids)),
        contains_delimiter=jnp.array(["\n\n" in text for text in texts], bool),
        ends_newline=jnp.array([text.endswith("\n") for text in texts], bool),
        starts_newline=jnp.array([text.startswith("\n") for text in texts], bool),
    )


def _suppressed(
    config: Config, tokenizer: PreTrainedTokenizerFast, spellings: list[str]
) -> Bool[np.ndarray, "vocab"]:
    suppressed = np.array([not spelling for spelling in spellings], bool)
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
