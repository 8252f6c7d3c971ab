"""The shipped checkpoint: its size, its format, its figures, and how far it repeats itself."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoTokenizer, Qwen2_5_VLForConditionalGeneration

from verdict_jax import prompts
from verdict_jax.benchmarks.easy_vqa import load
from verdict_jax.bundled import bundled_checkpoint
from verdict_jax.judges import VLMPanel
from verdict_jax.protocols import Question
from verdict_jax.reasoner import VLMReasoner
from verdict_jax.reasoning import Reasoned, reason
from verdict_jax.vlm import model
from verdict_jax.vlm.checkpoint import VLM, load_vlm
from verdict_jax.vlm.images import load_image
from verdict_jax.vlm.prompting import frame, prompt_row
from verdict_jax.vlm.rows import pack_tokens
from verdict_jax.vlm.sampling import SamplingSettings
from verdict_jax.vlm.tokenizer import plain_ids

FOLDER = bundled_checkpoint("easy_vqa")
sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

import evaluate_bundled  # noqa: E402

QUESTIONS = 96
"""Few enough for a test; 1.96 standard errors of an accuracy of .85 are .07."""


@functools.cache
def vlm() -> VLM:
    return load_vlm(FOLDER, jnp.float32)


def questions(count: int) -> list[Question]:
    drawn = np.random.default_rng(1).permutation(len(load("test")))[:count]
    return [load("test")[i] for i in drawn]


# Format


def test_the_folder_is_small() -> None:
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= 4e6


def test_transformers_loads_it_and_gives_our_logits() -> None:
    reference, report = Qwen2_5_VLForConditionalGeneration.from_pretrained(
        FOLDER, dtype=torch.float32, output_loading_info=True
    )
    assert not any(report.values()), report
    auto = AutoTokenizer.from_pretrained(FOLDER)
    processor = AutoImageProcessor.from_pretrained(FOLDER, backend="pil")
    ours, question = vlm(), questions(1)[0]
    (image,) = (load_image(source) for source in question.images)
    around = frame(ours.tokenizer, ours.config, prompts.reasoner_system(), 1)
    asked = plain_ids(ours.tokenizer, prompts.question_text(question.text, question.choices))

    encoded = ours.encode([question.images])
    row = prompt_row(ours.config, (around.opening, asked, around.closing), encoded.rows[0])
    inputs = pack_tokens([row], 1, len(row.tokens), ours.config.pad_token_id)
    logits = model.forward(ours.config, ours.params, inputs, encoded.features)

    messages = [
        {"role": "system", "content": prompts.reasoner_system()},
        {"role": "user", "content": f"<IMG>{question.text}"},
    ]
    text = auto.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    given = processor(Image.fromarray(np.asarray(image)), return_tensors="pt")
    count = int(given["image_grid_thw"].prod()) // processor.merge_size**2
    pads = "<|image_pad|>" * count
    ids = auto(text.replace("<IMG>", f"<|vision_start|>{pads}<|vision_end|>"))["input_ids"]
    assert ids == row.tokens.tolist()
    tokens = torch.tensor([ids])
    with torch.no_grad():
        expected = reference(
            input_ids=tokens,
            attention_mask=torch.ones_like(tokens),
            mm_token_type_ids=(tokens == ours.config.image_token_id).int(),
            **given,
        ).logits.numpy()
    assert expected.std() >= 1
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4)


# Figures: floors below those of the card, by more than the error of so few questions.


def test_it_answers_and_judges() -> None:
    traces = evaluate_bundled.greedy_traces(vlm(), questions(QUESTIONS), 48)
    answers = evaluate_bundled.accuracy(traces)
    assert answers["accuracy"] >= 0.75 and answers["no_answer"] <= 0.05
    examples = evaluate_bundled.easy_vqa_examples(4 * QUESTIONS, np.random.default_rng(0))
    figures = evaluate_bundled.judge_figures(vlm(), examples, 48)
    for judge, kind in evaluate_bundled.KINDS.items():
        assert figures[judge][kind] >= 0.65, (judge, figures[judge])


# Same seed, same trace


def run(count: int, buckets: tuple[int, ...] = ()) -> list[Reasoned]:
    """Six questions in batches of this size."""
    chooser = VLMReasoner(vlm(), SamplingSettings(max_tokens=48))
    panel, asked = VLMPanel(vlm()), questions(6)
    return [
        reason(asked[at : at + count], chooser, (panel,), n=2, max_steps=4, buckets=buckets)
        for at in range(0, 6, count)
    ]


@functools.cache
def whole() -> Reasoned:
    return run(6)[0]


def test_the_same_batch_twice_is_the_same_to_the_bit() -> None:
    again = run(6)[0]
    assert again.traces == whole().traces and again.trees == whole().trees


FLIPS = 0
"""Sampled texts or choices of a rule that another bucket changed, of those compared here."""


@pytest.mark.parametrize(("count", "buckets"), [(1, ()), (3, ()), (6, (1, 2, 4))])
def test_other_buckets_move_the_last_bits_only(count: int, buckets: tuple[int, ...]) -> None:
    flips = compared = 0
    others = [trace for part in run(count, buckets) for trace in part.traces]
    for ours, other in zip(whole().traces, others, strict=True):
        for one, two in zip(ours.steps, other.steps, strict=False):
            compared += 1
            texts = [[candidate.token_ids for candidate in step.candidates] for step in (one, two)]
            for a, b in zip(one.candidates, two.candidates, strict=True):
                if a.token_ids == b.token_ids:
                    difference = abs(a.logprob - b.logprob)
                    assert difference <= 1e-4 * max(1, len(a.token_ids))
            if texts[0] != texts[1] or one.chosen != two.chosen:
                # behind a flip the chains are different ones
                flips += 1
                break
    print(f"batches of {count}, buckets {buckets}: {flips} flips in {compared} steps")
    assert compared >= 6 and flips <= FLIPS
