"""Packed rows mean what their continuations mean alone; training resumes bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.tiny_vlm import picture as random_picture
from tests.tiny_vlm import tiny_config, tiny_params, tiny_vlm
from verdict_jax import prompts
from verdict_jax.benchmarks.easy_vqa_steps import draw_chain, draw_judgement, items
from verdict_jax.bundled import bundled_checkpoint
from verdict_jax.judges import DEFAULT_JUDGES, VLMPanel
from verdict_jax.packing import REPLIES, Lesson, PackedBatch, Packer, PictureBatch, pack_pictures
from verdict_jax.protocols import Candidate, Question
from verdict_jax.reasoner import VLMReasoner
from verdict_jax.supervised import (
    Schedule,
    auxiliary_loss,
    fit,
    init_with_heads,
    language_loss,
    vision_loss,
)
from verdict_jax.vlm import model, prefixes
from verdict_jax.vlm.cache import KVCache
from verdict_jax.vlm.checkpoint import VLM
from verdict_jax.vlm.images import ProcessedImage, load_image
from verdict_jax.vlm.parameters import Params
from verdict_jax.vlm.prefixes import Prefixes, Replies
from verdict_jax.vlm.rows import TokenRow
from verdict_jax.vlm.tokenizer import load_tokenizer, plain_ids
from verdict_jax.vlm.windows import Picture

CONFIG = tiny_config()
CLASSES = (8, 3)


@pytest.fixture(scope="module")
def packer() -> Packer:
    return Packer(
        CONFIG, load_tokenizer(bundled_checkpoint()), 288, judge_weight=5.0, answer_weight=1.0
    )


@pytest.fixture(scope="module")
def params() -> Params:
    return init_with_heads(CONFIG, CLASSES, jax.random.key(1))


def picture(rng: np.random.Generator) -> ProcessedImage:
    patches = rng.normal(size=(16, CONFIG.vision.patch_dim)).astype(np.float32)
    return ProcessedImage(patches, (4, 4))


def lesson(seed: int, chains: int = 2, judgements: int = 3) -> Lesson:
    rng = np.random.default_rng(seed)
    pool = items("train")
    drawn = [pool[i] for i in rng.choice(len(pool), chains + judgements)]
    labels = np.full((4, 2), -1, np.int32)
    labels[int(rng.integers(4))] = rng.integers(8), rng.integers(3)
    return Lesson(
        picture(rng),
        tuple(draw_chain(item, rng) for item in drawn[:chains]),
        tuple(draw_judgement(item, rng) for item in drawn[chains:]),
        labels,
    )


def batch(packer: Packer, step: int, size: int = 2) -> PackedBatch:
    return packer.pack([lesson(100 * step + i) for i in range(size)], "digits")


@jax.jit
def target_entropy(params: Params, packed: PackedBatch) -> jax.Array:
    features = model.encode_images(CONFIG, params, packed.pictures.patches)
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
    both = [lesson(1), lesson(2)]
    together = token_losses(params, packer.pack(both, "digits"))
    for index in range(2):
        alone = [
            Lesson(s.picture, (s.chains[index],), (s.judgements[index],), s.attributes)
            for s in both
        ]
        single = token_losses(params, packer.pack(alone, "digits"))
        # rows 0 and 2 hold the lessons' chains, rows 1 and 3 the visual judgements
        for row in range(4):
            np.testing.assert_allclose(together[row, index + 1], single[row, 1], rtol=0, atol=1e-5)


def test_what_is_supervised_is_what_should_be_said(packer: Packer) -> None:
    first = lesson(3)
    packed = packer.pack([first, lesson(4)], "digits")
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
    full = packer.pack([lesson(5, chains=20, judgements=20), lesson(6)], "digits")
    used = np.asarray(full.inputs.mask).sum(axis=1)
    assert used.max() <= packer.width
    assert used[0] > packer.width - 90
    assert full.segments[0].max() < 20


def seen_rows(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[TokenRow]]:
    """The prompts that inference reads; nothing is computed."""
    read: list[Sequence[TokenRow]] = []

    def note(vlm: VLM, rows: Sequence[TokenRow], num_rows: int, features: object) -> Prefixes:
        read.append(rows)
        empty, none = np.zeros((1, num_rows, 1, 1, 1), np.float32), np.zeros(num_rows, np.int32)
        logits = np.zeros((num_rows, 3), np.float32)
        lengths = tuple(len(row.tokens) for row in rows)
        return Prefixes(KVCache(empty, empty, none, none), logits, lengths)

    monkeypatch.setattr(prefixes, "read_prompts", note)
    return read


def assert_continues(row: TokenRow, prompt: TokenRow, more: np.ndarray) -> None:
    """The trained row is the prompt as inference reads it, then these ids."""
    steps = prompt.next_position + np.arange(len(more))
    assert row.tokens.tolist() == [*prompt.tokens, *more]
    expected = np.concatenate([prompt.positions, np.broadcast_to(steps, (3, len(more)))], axis=1)
    np.testing.assert_array_equal(row.positions, expected)
    assert row.feature_ids.tolist() == [*prompt.feature_ids, *[-1] * len(more)]


def in_the_picture(question: Question) -> tuple[Question, Picture]:
    """The question about a random picture, and this picture among its features."""
    vlm, image = tiny_vlm(), random_picture(9)
    processed = vlm.image_processor.process(load_image(image))
    labels = np.full((processed.num_tokens(CONFIG.vision), 2), -1, np.int32)
    _, (packed,) = pack_pictures(CONFIG, [processed], [labels])
    return replace(question, images=(image,)), packed


@pytest.mark.parametrize("choices", [(), ("yes", "no", "both", "neither")])
def test_a_chain_is_trained_where_the_reasoner_writes_it(
    choices: tuple[str, ...], packer: Packer, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = seen_rows(monkeypatch)
    drawn = lesson(1).chains[0]
    example = replace(drawn, question=replace(drawn.question, choices=choices))
    question, picture = in_the_picture(example.question)
    VLMReasoner(tiny_vlm()).start([question])
    chain = plain_ids(packer.tokenizer, prompts.chain_text(example.steps))
    row = packer.chain_row([example], picture)
    assert_continues(row.tokens, read[0][0], np.append(chain, CONFIG.eos_token_ids[0]))


@pytest.mark.parametrize("read_out", REPLIES)
def test_a_judgement_is_trained_where_the_panel_reads_it(
    read_out: prompts.ReadOut, packer: Packer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prefix, accepted steps, candidate and closing, of each judge."""
    read = seen_rows(monkeypatch)
    appended: list[list[np.ndarray]] = []
    asked: list[np.ndarray] = []

    def append(vlm: VLM, state: Prefixes, steps: list[np.ndarray]) -> Prefixes:
        appended.append(steps)
        return state

    def ask(*arguments: list[np.ndarray]) -> Replies:
        asked.extend(arguments[3])
        return Replies(np.zeros((len(arguments[3]), 5), np.float32), None)

    monkeypatch.setattr(prefixes, "append", append)
    monkeypatch.setattr(prefixes, "ask", ask)
    drawn = [example for seed in range(9) for example in lesson(seed).judgements]
    example = max(drawn, key=lambda example: len(example.accepted))
    assert example.accepted
    question, picture = in_the_picture(example.question)
    panel = VLMPanel(
        tiny_vlm(), tuple(replace(judge, read_out=read_out) for judge in DEFAULT_JUDGES)
    )
    state = panel.start([question])
    for step in example.accepted:
        state = panel.commit(state, [Candidate(step)])
    panel.score(state, [[Candidate(example.candidate)]])
    for index, judge in enumerate(prompts.JUDGES):
        row = packer.judge_row(judge, read_out, [example], picture if index == 0 else None)
        reply = plain_ids(packer.tokenizer, REPLIES[read_out][example.verdict.good(judge)])
        parts = [*(steps[index] for steps in appended), asked[index], reply]
        assert_continues(row.tokens, read[0][index], np.concatenate(parts))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_the_loss_promotes_no_type(dtype: jnp.dtype, packer: Packer, params: Params) -> None:
    cast = jax.tree.map(lambda leaf: leaf.astype(dtype), params)
    loss = language_loss(CONFIG, CLASSES, 0.2)
    with jax.numpy_dtype_promotion("strict"):
        total, parts = jax.eval_shape(loss, cast, batch(packer, 0))
    assert {part.dtype for part in (total, *parts.values())} == {jnp.dtype(jnp.float32)}


def test_lessons_come_in_pairs(packer: Packer) -> None:
    with pytest.raises(ValueError, match="pairs"):
        packer.pack([lesson(1)], "digits")
    with pytest.raises(ValueError, match="no pictures"):
        packer.pack([], "digits")


def test_chains_alone_are_a_row_a_lesson(packer: Packer) -> None:
    packed = packer.pack_chains([lesson(1), lesson(2), lesson(3)])
    assert packed.inputs.tokens.shape[0] == 3
    with_judgements = packer.pack([lesson(1), lesson(2)], "digits")
    for row, other in ((0, 0), (1, 2)):
        np.testing.assert_array_equal(
            packed.inputs.tokens[row], with_judgements.inputs.tokens[other]
        )


def test_a_row_has_one_system_prompt(packer: Packer) -> None:
    one, two = lesson(1).chains
    lettered = replace(two, question=replace(two.question, choices=("yes", "no")))
    with pytest.raises(ValueError, match="share their system prompt"):
        packer.pack_chains([replace(lesson(1), chains=(one, lettered))])


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
        for _ in range(6)
    ]
    schedule = Schedule(6, 1e-2, warmup=2)
    loss = vision_loss(CONFIG, CLASSES)
    drawn: list[int] = []

    def run(folder: Path, killed_at: int | None) -> Params:
        def batch_of(step: int) -> PictureBatch:
            drawn.append(step)
            if step == killed_at:
                raise KeyboardInterrupt
            return batches[step]

        start = jax.tree.map(jnp.copy, params)
        return fit(loss, start, schedule, batch_of, folder, save_every=2)

    whole = run(tmp_path / "whole", None)
    # no batch beyond the last, and none at all for a run that is over
    assert drawn == [0, 1, 2, 3, 4, 5]
    again = run(tmp_path / "whole", None)
    assert drawn == [0, 1, 2, 3, 4, 5]
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), whole, again))
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "killed", 5)
    resumed = run(tmp_path / "killed", None)
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), whole, resumed))
    moved = jax.tree.map(lambda a, b: bool((a != b).any()), whole["vision"], params["vision"])
    assert any(jax.tree.leaves(moved))


def test_weight_decay_spares_norms_and_biases() -> None:
    """Stacked over layers these have two axes, as matrices have."""
    params = {**tiny_params(), "auxiliary": {"kernel": jnp.ones((32, 11))}}
    optimizer = Schedule(10, 1e-2, warmup=1).optimizer()
    state = optimizer.init(params)
    zeros = jax.tree.map(jnp.zeros_like, params)
    decayed = params
    # the first update of a warm-up has rate 0
    for _ in range(2):
        updates, state = optimizer.update(zeros, state, decayed)
        decayed = optax.apply_updates(decayed, updates)
    before = jax.tree_util.tree_leaves_with_path(params)
    names = set()
    for (path, was), now in zip(before, jax.tree.leaves(decayed), strict=True):
        name = path[-1].key
        names.add(name)
        moved = bool((now != was).any())
        assert moved == (name in ("kernel", "embedding")), jax.tree_util.keystr(path)
    assert names == {"kernel", "embedding", "bias", "scale"}


def test_a_large_gradient_is_clipped() -> None:
    optimizer = Schedule(100, 1.0, warmup=0, weight_decay=0.0, clip_norm=1.0).optimizer()
    leaf = {"kernel": jnp.zeros(2)}
    gradient = {"kernel": jnp.array([60.0, 80.0])}
    _, state = optimizer.update(gradient, optimizer.init(leaf), leaf)
    # (1 - b1) of the gradient of norm 100, scaled to norm 1
    first_moment = optax.tree_utils.tree_get(state, "mu")["kernel"]
    np.testing.assert_allclose(first_moment, [0.06, 0.08], rtol=1e-5)


@pytest.mark.parametrize(
    "arguments", [{"steps": 20}, {"steps": 10, "warmup": 8}, {"steps": 1, "warmup": 1}]
)
def test_warm_up_and_decay_must_fit(arguments: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="do not fit into"):
        Schedule(**arguments)


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
    assert sizes[-1] < 5e-4
