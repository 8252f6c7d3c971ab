"""Writes the tokenizer of the bundled easy-vqa model in the published file format.

    python scripts/build_bundled_tokenizer.py --folder verdict_jax/bundled/easy_vqa

The corpus is closed (prompts, questions, the controlled language), so merges end with whole words
and every other text falls back to bytes. A model rests on its tokenizer: rebuild both or neither.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

import tyro
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from verdict_jax import prompts
from verdict_jax.benchmarks import tabletop
from verdict_jax.benchmarks.easy_vqa import load
from verdict_jax.benchmarks.easy_vqa_language import SENTENCES
from verdict_jax.benchmarks.easy_vqa_steps import examples
from verdict_jax.benchmarks.tabletop.language import ASIDES, sentence
from verdict_jax.benchmarks.tabletop.questions import chain

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
VOCABULARY = 2048

# the published Qwen2 pre-tokenizer: words take one leading mark or space, digits stand alone,
# punctuation takes the line ends that follow it
QWEN2_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# Qwen2.5-VL's, without its default system prompt, and without a line end after <|im_end|>: so
# a judge's turn is closed by four tokens
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def train(texts: Iterable[str], vocabulary: int) -> Tokenizer:
    """A byte-level BPE with Qwen2's pre-tokenizer.

    Args:
        texts: the corpus; a word must occur twice to be merged.
        vocabulary: the most entries, the special tokens included.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(SPECIAL_TOKENS),
        min_frequency=2,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return tokenizer


def write(tokenizer: Tokenizer, folder: Path) -> None:
    """Writes tokenizer.json with its tokenizer_config.json; creates the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "Qwen2Tokenizer",
        "add_prefix_space": False,
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "additional_special_tokens": list(SPECIAL_TOKENS[1:]),
        "clean_up_tokenization_spaces": False,
        "model_max_length": 2048,
        "chat_template": CHAT_TEMPLATE,
    }
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")


def prompt_texts() -> Iterator[str]:
    """Every prompt of the package, with the words of the chat template and the replies."""
    for choices in ((), ("yes", "no")):
        yield prompts.reasoner_system(choices)
        yield prompts.question_text("is it there?", choices)
    for rubric, read_out in itertools.product(prompts.RUBRICS.values(), prompts.READ_OUTS):
        yield prompts.judge_system(rubric, read_out)
    for role in ("system", "user", "assistant"):
        yield f"{role}\n"
    yield from (*prompts.DIGITS, *prompts.YES_NO, "0.5", "1.0")


def easy_vqa_texts() -> Iterator[str]:
    """Prompts, questions, and each sentence of the language as reasoner and judges read it."""
    for text in prompt_texts():
        yield from (text, text)
    for question in load("train"):
        yield prompts.judge_opening(question.text)
    for text in SENTENCES:
        yield from (text, prompts.judge_step(text))
    for example, _ in itertools.islice(examples("train", 0), 2000):
        yield prompts.chain_text(example.steps)


def tabletop_texts() -> Iterator[str]:
    """Questions and chains of tabletop, with every aside, as reasoner and judges read them."""
    for aside in ASIDES:
        yield from (aside, prompts.judge_step(aside))
    for item in tabletop.load("train", 0, 2000):
        question = prompts.question_text(item.question.text, item.question.choices)
        yield prompts.judge_opening(question)
        steps = chain(item.asked, item.scene)
        assert steps is not None
        yield prompts.chain_text([sentence(step) for step in steps])
        yield from (prompts.judge_step(sentence(step)) for step in steps)


def main(folder: Path, world: Literal["easy_vqa", "both"] = "both") -> None:
    """Trains on a corpus; writes the two tokenizer files into a folder.

    Args:
        folder: where they go.
        world: whose language; "both" is easy-vqa's with tabletop's.
    """
    texts = easy_vqa_texts()
    if world == "both":
        texts = itertools.chain(texts, tabletop_texts())
    tokenizer = train(texts, VOCABULARY)
    write(tokenizer, folder)
    print(f"{tokenizer.get_vocab_size()} entries -> {folder}")


if __name__ == "__main__":
    tyro.cli(main)
