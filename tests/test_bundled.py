"""The shipped checkpoint: its size, its format, its figures, and how far it repeats itself."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Mapping
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoTokenizer, Qwen2_5_VLForConditionalGeneration

from verdict_jax import prompts
from verdict_jax.benchmarks.easy_vqa import load
from verdict_jax.benchmarks.tabletop.questions import CHOICES, FAMILIES
from verdict_jax.bundled import bundled_checkpoint
from verdict_jax.json_records import decode
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

FOLDER = bundled_checkpoint()
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
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= 8e6


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


# Figures: the card's, measured again on a sample


@functools.cache
def card() -> dict[evaluate_bundled.World, evaluate_bundled.Figures]:
    """What scripts/evaluate_bundled.py --out wrote beside the card."""
    stored = json.loads((FOLDER / "figures.json").read_text(encoding="utf-8"))
    return {world: decode(evaluate_bundled.Figures, own) for world, own in stored.items()}


def assert_like(accuracy: Mapping[str, float], expected: Mapping[str, float]) -> None:
    """Within four standard errors of the sample."""
    share = expected["accuracy"]
    error = (share * (1 - share) / accuracy["questions"]) ** 0.5
    assert abs(accuracy["accuracy"] - share) <= 4 * error, (accuracy, expected)


def test_the_card_states_the_stored_figures() -> None:
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    table = card()["tabletop"]
    assert table.blind is not None and table.own_steps is not None
    assert table.first_faults is not None
    stated = [own["accuracy"] for own in (*table.answers.values(), *table.blind.values())]
    stated += [*table.first_faults.values(), *table.own_steps.own.values()]
    stated += [card()["easy-vqa"].answers["all"]["accuracy"]]
    for figures in card().values():
        stated += [value for own in figures.judges.values() for value in own.values()]
    assert len(stated) > 40
    missing = [value for value in stated if f"{value:.3f}" not in text]
    assert not missing


def test_the_cards_figures_keep_the_bounds() -> None:
    """Errs often enough to leave room, but no family by chance, and not without the picture."""
    table, chance = card()["tabletop"], 1 / CHOICES
    assert table.blind is not None and table.own_steps is not None
    assert 0.55 <= table.answers["all"]["accuracy"] <= 0.80
    for family in FAMILIES:
        assert table.answers[family]["accuracy"] >= chance + 0.15, family
    assert table.blind["all"]["accuracy"] <= chance + 0.05
    assert card()["easy-vqa"].answers["all"]["accuracy"] >= 0.85
    assert table.own_steps.own["visual"] >= 0.70


def test_easy_vqa_again() -> None:
    traces = evaluate_bundled.greedy_traces(vlm(), questions(QUESTIONS), 48)
    assert_like(evaluate_bundled.accuracy(traces), card()["easy-vqa"].answers["all"])
    examples = evaluate_bundled.easy_vqa_examples(4 * QUESTIONS, np.random.default_rng(0))
    figures = evaluate_bundled.judge_figures(vlm(), examples, 48)
    for judge, kind in evaluate_bundled.KINDS.items():
        assert abs(figures[judge][kind] - card()["easy-vqa"].judges[judge][kind]) < 0.1


def test_tabletop_again() -> None:
    args = evaluate_bundled.Args(
        questions=QUESTIONS, sampled=24, judgements=4 * QUESTIONS, batch=48
    )
    figures, expected = evaluate_bundled.figures_of(vlm(), "tabletop", args), card()["tabletop"]
    assert figures.blind is not None and expected.blind is not None
    assert figures.own_steps is not None and expected.own_steps is not None
    assert figures.first_faults is not None and expected.first_faults is not None
    assert_like(figures.answers["all"], expected.answers["all"])
    assert_like(figures.blind["all"], expected.blind["all"])
    for judge, kind in evaluate_bundled.KINDS.items():
        assert abs(figures.judges[judge][kind] - expected.judges[judge][kind]) < 0.1
    assert abs(figures.own_steps.own["visual"] - expected.own_steps.own["visual"]) < 0.12
    assert abs(figures.first_faults["none"] - expected.first_faults["none"]) < 0.2


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
