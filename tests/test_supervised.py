"""Packed rows mean what their continuations mean alone; training resumes bit for bit."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.tiny_vlm import tiny_config
from verdict_jax import prompts
from verdict_jax.benchmarks.easy_vqa_steps import draw_chain, draw_judgement, items
from verdict_jax.bundled import bundled_checkpoint
from verdict_jax.packing import REPLIES, PackedBatch, Packer, Scene, pack_pictures
from verdict_jax.supervised import (
    Schedule,
    auxiliary_loss,
    fit,
    init_params,
    language_loss,
    vision_loss,
)
from verdict_jax.vlm import model
from verdict_jax.vlm.images import ProcessedImage
from verdict_jax.vlm.parameters import Params
from verdict_jax.vlm.tokenizer import load_tokenizer

CONFIG = tiny_config()
CLASSES = (8, 3)


@pytest.fixture(scope="module")
def packer() -> Packer:
    return Packer(CONFIG, load_tokenizer(bundled_checkpoint()), 288, judge_weight=5.0)


@pytest.fixture(scope="module")
def params() -> Params:
    return init_params(CONFIG, CLASSES, jax.random.key(1))


def picture(rng: np.random.Generator) -> ProcessedImage:
    patches = rng.normal(size=(16, CONFIG.vision.patch_dim)).astype(np.float32)
    return ProcessedImage(patches, (4, 4))


def scene(seed: int, chains: int = 2, judgements: int = 3) -> Scene:
    rng = np.random.default_rng(seed)
    pool = items("train")
    drawn = [pool[i] for i in rng.choice(len(pool), chains + judgements)]
    labels = np.full((4, 2), -1, np.int32)
    labels[int(rng.integers(4))] = rng.integers(8), rng.integers(3)
    return Scene(
        picture(rng),
        tuple(draw_chain(item, rng) for item in drawn[:chains]),
        tuple(draw_judgement(item, rng) for item in drawn[chains:]),
        labels,
    )


def batch(packer: Packer, step: int, size: int = 2) -> PackedBatch:
    return packer.pack([scene(100 * step + i) for i in range(size)], "digits")


@jax.jit
def target_entropy(params: Params, packed: PackedBatch) -> jax.Array:
    features = model.encode_images(CONFIG, params, packed.patches)
    logits = model.forward(CONFIG, params, packed.inputs, features, packed.segments)
    flat = logits.reshape(-1, logits.shape[-1])[jnp.asarray(packed.predictors)]
    return optax.softmax_cross_entropy_with_integer_labels(flat, jnp.asarray(packed.targets))


def token_losses(params: Params, packed: PackedBatch) -> dict[tuple[int, int], list[float]]:
    """Cross-entropy of each supervised token, under (row, segment)."""
    entropy = np.asarray(target_entropy(params, packed))
    width = packed.inputs.tokens.shape[1]
    losses: dict[tuple[int, int], list[float]] = {}
    for place, value, weight in zip(packed.predictors, entropy, packed.weights, strict=True):
        if weight > 0:
            row, column = divmod(int(place), width)
            segment = int(packed.segments[row, column])
            losses.setdefault((row, segment), []).append(float(value))
    return losses


def test_a_packed_continuation_has_the_loss_it_has_alone(packer: Packer, params: Params) -> None:
    both = [scene(1), scene(2)]
    together = token_losses(params, packer.pack(both, "digits"))
    for index in range(2):
        alone = [
            Scene(s.picture, (s.chains[index],), (s.judgements[index],), s.attributes) for s in both
        ]
        single = token_losses(params, packer.pack(alone, "digits"))
        # rows 0 and 2 hold the scenes' chains, rows 1 and 3 the visual judgements
        for row in range(4):
            np.testing.assert_allclose(together[row, index + 1], single[row, 1], rtol=0, atol=1e-5)


def test_what_is_supervised_is_what_should_be_said(packer: Packer) -> None:
    first = scene(3)
    packed = packer.pack([first, scene(4)], "digits")
    tokenizer = packer.tokenizer
    said: dict[int, list[int]] = {}
    replies: dict[int, list[int]] = {}
    width = packed.inputs.tokens.shape[1]
    for place, target, weight in zip(
        packed.predictors, packed.targets, packed.weights, strict=True
    ):
        row, column = divmod(int(place), width)
        if weight == 1.0 and row == 0:
            # the first predictor of a chain is the end of its prompt, in the same segment
            said.setdefault(int(packed.segments[row, column]), []).append(int(target))
        if weight == 5.0 and row == 1:
            replies.setdefault(int(packed.segments[row, column]), []).append(int(target))
    for number, example in enumerate(first.chains, start=1):
        expected = prompts.chain_text(example.steps) + "<|im_end|>"
        assert tokenizer.decode(said[number]) == expected
    for number, judged in enumerate(first.judgements, start=1):
        assert tokenizer.decode(replies[number]) == REPLIES["digits"][judged.verdict.grounded]


def test_a_row_is_filled_to_its_width_and_no_further(packer: Packer) -> None:
    full = packer.pack([scene(5, chains=20, judgements=20), scene(6)], "digits")
    used = np.asarray(full.inputs.mask).sum(axis=1)
    assert used.max() <= packer.width
    assert used[0] > packer.width - 90
    assert full.segments[0].max() < 20


def test_scenes_come_in_pairs(packer: Packer) -> None:
    with pytest.raises(ValueError, match="pairs"):
        packer.pack([scene(1)], "digits")


def test_auxiliary_loss_reads_labelled_tokens_only(params: Params) -> None:
    features = jax.random.normal(jax.random.key(2), (2, 4, CONFIG.text.hidden_size))
    labels = np.full((8, 2), -1, np.int32)
    labels[5] = 3, 2
    scores = np.asarray(features.reshape(8, -1)[5] @ params["auxiliary"]["kernel"], np.float64)

    def entropy(logits: np.ndarray, label: int) -> float:
        return float(np.log(np.exp(logits).sum()) - logits[label])

    expected = entropy(scores[:8], 3) + entropy(scores[8:], 2)
    actual = auxiliary_loss(params, CLASSES, features, labels)
    np.testing.assert_allclose(actual, expected, rtol=1e-5)
    nothing = auxiliary_loss(params, CLASSES, features, np.full((8, 2), -1, np.int32))
    assert float(nothing) == 0.0


def test_language_loss_is_the_weighted_mean(packer: Packer, params: Params) -> None:
    packed = batch(packer, 7)
    loss, parts = jax.jit(language_loss(CONFIG, CLASSES, 0.2))(params, packed)
    values = [
        (5.0 if row in (1, 3, 4, 5) else 1.0, value)
        for (row, _), losses in token_losses(params, packed).items()
        for value in losses
    ]
    expected = sum(w * v for w, v in values) / sum(w for w, _ in values)
    np.testing.assert_allclose(parts["tokens"], expected, rtol=1e-5)
    np.testing.assert_allclose(loss, expected + 0.2 * float(parts["auxiliary"]), rtol=1e-5)


def test_training_lowers_the_loss(packer: Packer, params: Params, tmp_path: Path) -> None:
    loss = jax.jit(language_loss(CONFIG, CLASSES, 0.2))
    fixed = batch(packer, 0)
    before = float(loss(params, fixed)[0])
    start = jax.tree.map(jnp.copy, params)
    after = fit(loss, start, Schedule(20, 3e-3, warmup=2), lambda _: fixed, tmp_path)
    assert float(loss(after, fixed)[0]) < 0.8 * before


def test_a_killed_run_goes_on_to_the_same_bits(params: Params, tmp_path: Path) -> None:
    rng = np.random.default_rng(8)
    labels = np.array([[1, 2], [-1, -1], [0, 1], [7, 0]], np.int32)
    batches = [
        pack_pictures(CONFIG, [picture(rng), picture(rng)], [labels, labels[::-1]])[0]
        for _ in range(7)
    ]
    schedule = Schedule(6, 1e-2, warmup=2)
    loss = vision_loss(CONFIG, CLASSES)

    def run(folder: Path, killed_at: int | None) -> Params:
        def batch_of(step: int):  # noqa: ANN202 - the batch type is private to the loss
            if step == killed_at:
                raise KeyboardInterrupt
            return batches[step]

        start = jax.tree.map(jnp.copy, params)
        return fit(loss, start, schedule, batch_of, folder, save_every=2)

    whole = run(tmp_path / "whole", None)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "killed", 5)
    resumed = run(tmp_path / "killed", None)
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), whole, resumed))
    moved = jax.tree.map(lambda a, b: bool((a != b).any()), whole["vision"], params["vision"])
    assert any(jax.tree.leaves(moved))


def test_schedule_warms_up_and_falls_to_zero() -> None:
    schedule = Schedule(100, 1e-2, warmup=10, decay=0.3)
    optimizer = schedule.optimizer()
    leaf = {"scale": jnp.zeros(())}
    state = optimizer.init(leaf)
    sizes = []
    for _ in range(100):
        updates, state = optimizer.update({"scale": jnp.ones(())}, state, leaf)
        sizes.append(-float(updates["scale"]))
    np.testing.assert_allclose(sizes[5], 5e-3, rtol=1e-3)
    np.testing.assert_allclose(sizes[40], 1e-2, rtol=1e-3)
    np.testing.assert_allclose(sizes[85], 5e-3, rtol=1e-3)
