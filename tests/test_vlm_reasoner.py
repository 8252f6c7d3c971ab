"""The VLM as a reasoner: prompts, sampling, token-in token-out states, one vision pass."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image
from vlm.compilations import compilations

from tests.tiny_vlm import (
    batch,
    full_logits,
    leaves,
    logprobs,
    picture,
    png,
    question,
    tiny_config,
    tiny_folder,
    tiny_params,
    tiny_vlm,
    write_checkpoint,
)
from verdict_jax import prompts
from verdict_jax.bundled import bundled_checkpoint
from verdict_jax.judges import DEFAULT_JUDGES, VLMPanel
from verdict_jax.keys import sampling_keys
from verdict_jax.protocols import Candidate, Question, QuestionErrors
from verdict_jax.reasoner import ReasonerState, VLMReasoner, base_reasoner
from verdict_jax.reasoning import reason
from verdict_jax.vlm import pictures, prefixes
from verdict_jax.vlm.cache import KVCache
from verdict_jax.vlm.checkpoint import VLM, CheckpointError, load_vlm
from verdict_jax.vlm.config import Config, config_to_json
from verdict_jax.vlm.inputs import PatchBatch
from verdict_jax.vlm.parameters import Params
from verdict_jax.vlm.prefixes import Prefixes
from verdict_jax.vlm.rows import TokenRow
from verdict_jax.vlm.sampling import DELIMITER, LENGTH, STOPPED, Completion, SamplingSettings
from verdict_jax.vlm.tokenizer import plain_ids

SAMPLING = SamplingSettings(max_tokens=6)


def reasoner(vlm: VLM | None = None, sampling: SamplingSettings = SAMPLING) -> VLMReasoner:
    return VLMReasoner(tiny_vlm() if vlm is None else vlm, sampling)


def keys(questions: list[Question], n: int = 2, step: int = 0) -> jax.Array:
    return sampling_keys(0, [question.id for question in questions], step, n)


def messages(question: Question) -> list[dict[str, str]]:
    return [
        {"role": "system", "content": prompts.reasoner_system(question.choices)},
        {
            "role": "user",
            "content": "<IMG>" * len(question.images)
            + prompts.question_text(question.text, question.choices),
        },
    ]


def whole(vlm: VLM, question: Question, more: tuple[int, ...] = ()) -> np.ndarray:
    images = [image for image in question.images if isinstance(image, Image.Image)]
    return full_logits(vlm, messages(question), images, more)


# Checkpoint folders


def break_architecture(folder: Path) -> None:
    table = json.loads((folder / "config.json").read_text())
    table |= {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(table))


def break_weights(folder: Path) -> None:
    other = replace(tiny_config(), text=replace(tiny_config().text, num_hidden_layers=3))
    (folder / "config.json").write_text(json.dumps(config_to_json(other, "float32")))


def drop_template(folder: Path) -> None:
    path = folder / "tokenizer_config.json"
    table = json.loads(path.read_text())
    del table["chat_template"]
    path.write_text(json.dumps(table))


def drop_added_tokens(folder: Path) -> None:
    path = folder / "tokenizer.json"
    table = json.loads(path.read_text())
    del table["added_tokens"]
    path.write_text(json.dumps(table))


def set_stops(folder: Path, ids: list[int]) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))


def shrink_vocabulary(folder: Path) -> None:
    table = json.loads((folder / "config.json").read_text())
    table["text_config"]["vocab_size"] = 600
    (folder / "config.json").write_text(json.dumps(table))


DEFECTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no folder": (shutil.rmtree, "no such folder"),
    "no config": (lambda f: (f / "config.json").unlink(), "config.json"),
    "architecture": (break_architecture, "LlamaForCausalLM"),
    "config is no JSON": (lambda f: (f / "config.json").write_text("{"), "not a JSON file"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "model.safetensors"),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), "tokenizer.json"),
    "no processor": (lambda f: (f / "preprocessor_config.json").unlink(), "preprocessor_config"),
    "bad tokenizer": (lambda f: (f / "tokenizer.json").write_text("[]"), "tokenizer.json"),
    "bad processor": (lambda f: (f / "preprocessor_config.json").write_text("["), "preprocessor"),
    "cut weights": (lambda f: (f / "model.safetensors").write_bytes(b"\0" * 9), "safetensors"),
    "other weights": (break_weights, "missing"),
    "no template": (drop_template, "chat template"),
    "other vocabulary": (shrink_vocabulary, "vocabulary"),
    "no stop id": (lambda f: set_stops(f, []), "at least one id"),
    "stop id past the vocabulary": (lambda f: set_stops(f, [151645]), "eos_token_id 151645"),
    "half a tokenizer": (
        lambda f: (f / "tokenizer.json").write_text(
            '{"model": {"type": "BPE"}, "decoder": {"type": "ByteLevel"}}'
        ),
        "tokenizer.json",
    ),
    "tokenizer without added tokens": (drop_added_tokens, "added_tokens"),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_each_defect_of_a_folder_is_one_line_with_advice(defect: str, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_folder(), tmp_path / "model")
    spoil, expected = DEFECTS[defect]
    spoil(folder)
    with pytest.raises(CheckpointError) as error:
        load_vlm(folder)
    message = str(error.value)
    assert expected in message
    assert "\n" not in message and ";" in message


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "model").write_text("")
    with pytest.raises(CheckpointError, match="is a file, not a folder; give"):
        load_vlm(tmp_path / "model")


def test_the_name_tells_weights_apart_and_not_places(tmp_path: Path) -> None:
    name = tiny_vlm().name
    copied = shutil.copytree(tiny_folder(), tmp_path / "a" / "tiny")
    assert name.startswith("tiny@") and load_vlm(copied).name == name
    assert load_vlm(write_checkpoint(tmp_path / "b" / "tiny", seed=1)).name != name


def test_loading_keeps_or_casts_the_stored_type() -> None:
    assert tiny_vlm().dtype == "float32"
    assert load_vlm(tiny_folder(), jnp.dtype(jnp.bfloat16)).dtype == "bfloat16"


def test_bundled_checkpoints_are_found_by_name() -> None:
    assert (bundled_checkpoint() / "tokenizer.json").is_file()
    with pytest.raises(ValueError, match="easy_vqa"):
        bundled_checkpoint("no such")


# Prompts


def test_the_prompt_is_the_chat_templates() -> None:
    vlm = tiny_vlm()
    questions = [
        question(1),
        Question("text", "Why?"),
        Question("two", "Same?", (picture(2), picture(3, (32, 64)))),
        Question("choices", "Which?", (picture(4),), ("a circle", "none")),
        question(5, text="é\n\n  spaced  "),
        question(6),
    ]
    state = reasoner(vlm).start(questions)
    rows = [whole(vlm, asked)[-1] for asked in questions]
    np.testing.assert_allclose(state.prefixes.logits, rows, atol=1e-4, rtol=1e-4)
    assert np.std(rows) > 1


def test_control_strings_in_a_question_stay_text(monkeypatch: pytest.MonkeyPatch) -> None:
    read = skip_reading(monkeypatch)
    vlm = tiny_vlm()
    text = "What is <|image_pad|> or <|im_end|>?"
    reasoner(vlm).start([Question("q", text), Question("q", "?")])
    (with_controls, plain) = read[0]
    special = vlm.tokenizer.all_special_ids
    assert np.isin(with_controls.tokens, special).sum() == np.isin(plain.tokens, special).sum()
    assert text in vlm.tokenizer.decode(with_controls.tokens)


def skip_reading(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[TokenRow]]:
    """The prompts that would have been read."""
    read: list[Sequence[TokenRow]] = []

    def note(vlm: VLM, rows: Sequence[TokenRow], num_rows: int, features: object) -> Prefixes:
        read.append(rows)
        return no_prefixes(len(rows))

    monkeypatch.setattr(prefixes, "read_prompts", note)
    return read


def no_prefixes(count: int) -> Prefixes:
    empty = np.zeros((1, count, 1, 1, 1), np.float32)
    none = np.zeros(count, np.int32)
    return Prefixes(
        KVCache(empty, empty, none, none), np.zeros((count, 3), np.float32), (1,) * count
    )


# Sampling


@pytest.mark.parametrize(
    "sampling", [SAMPLING, replace(SAMPLING, temperature=0.5, top_k=40, top_p=0.7)]
)
def test_logprobs_are_those_of_a_full_pass(sampling: SamplingSettings) -> None:
    vlm = tiny_vlm()
    questions = batch(1, 2, 3, 4)
    chooser = reasoner(vlm, sampling)
    state = chooser.start(questions)
    for proposed, asked in zip(
        chooser.propose(state, keys(questions), False), questions, strict=True
    ):
        for candidate in proposed:
            ids = np.array(candidate.token_ids)
            model = logprobs(vlm, whole(vlm, asked, candidate.token_ids)[-len(ids) - 1 : -1])
            assert candidate.logprob == pytest.approx(
                model[np.arange(len(ids)), ids].sum(dtype=np.float64), abs=1e-4 * len(ids)
            )
            sharpened = np.sort(np.exp(model / sampling.temperature), axis=1)[:, ::-1]
            if sampling.top_k:
                sharpened[:, sampling.top_k :] = 0
            sharpened /= sharpened.sum(axis=1, keepdims=True)
            kept = np.cumsum(sharpened, axis=1) - sharpened < sampling.top_p
            mass = np.where(kept, sharpened, 0).sum(axis=1)
            own = np.exp(model / sampling.temperature)[np.arange(len(ids)), ids]
            scale = np.sort(np.exp(model / sampling.temperature), axis=1)[:, ::-1]
            total = scale[:, : sampling.top_k or None].sum(axis=1)
            assert candidate.sample_logprob == pytest.approx(
                np.log(own / total / mass).sum(), abs=1e-3
            )


def test_candidates_follow_their_keys_alone() -> None:
    """At a fixed bucket neither neighbours nor the place move a candidate's bits."""
    chooser = reasoner()
    first, second = batch(1, 2, 3, 4), batch(1, 7, 8, 9)
    ours = chooser.propose(chooser.start(first), keys(first), False)
    theirs = chooser.propose(chooser.start(second), keys(second), False)
    assert ours[0] == theirs[0]
    assert ours[1] != theirs[1]
    assert ours[0][0] != ours[0][1]
    moved = [first[2], first[0], *first[3:], first[1]]
    again = chooser.propose(chooser.start(moved), keys(moved), False)
    assert [c.token_ids for c in again[1]] == [c.token_ids for c in ours[0]]
    other = chooser.propose(chooser.start(first), keys(first, step=1), False)
    assert other[0] != ours[0]


def test_greedy_is_the_argmax_whatever_the_key() -> None:
    vlm = tiny_vlm()
    base = base_reasoner(reasoner(vlm))
    assert base.settings["temperature"] == 0 and base.settings["max_tokens"] == 6
    questions = batch(1, 2, 3, 4)
    state = base.start(questions)
    proposed = base.propose(state, keys(questions), False)
    assert proposed == base.propose(state, keys(questions, step=3), False)
    candidate = proposed[0][0]
    model = logprobs(vlm, whole(vlm, questions[0], candidate.token_ids)[-7:-1])
    assert candidate.token_ids == tuple(np.argmax(model, axis=1)[: len(candidate.token_ids)])


def with_masks(vlm: VLM, *, delimiter: bool = False, stop: bool = False) -> VLM:
    """The model with a vocabulary all of whose ids delimit or stop."""
    size = vlm.config.text.vocab_size
    masks = replace(
        vlm.masks,
        contains_delimiter=jnp.full((size,), delimiter),
        starts_newline=jnp.zeros((size,), bool),
        stop=jnp.full((size,), stop),
    )
    return replace(vlm, masks=masks)


def test_only_the_last_step_runs_over_delimiters(monkeypatch: pytest.MonkeyPatch) -> None:
    chooser = reasoner(with_masks(tiny_vlm(), delimiter=True))
    questions = batch(1, 2, 3, 4)
    state = chooser.start(questions)
    lengths = []

    def note(self: VLMReasoner, completion: Completion, index: int) -> Candidate:
        lengths.append((int(completion.mask[index].sum()), int(completion.finish[index])))
        return Candidate("")

    monkeypatch.setattr(VLMReasoner, "_candidate", note)
    chooser.propose(state, keys(questions), False)
    assert set(lengths) == {(1, DELIMITER)}
    lengths.clear()
    chooser.propose(state, keys(questions), True)
    assert set(lengths) == {(6, LENGTH)}


def test_a_stop_id_ends_the_chain() -> None:
    chooser = reasoner(with_masks(tiny_vlm(), stop=True))
    questions = batch(1, 2, 3, 4)
    candidate = chooser.propose(chooser.start(questions), keys(questions), False)[0][0]
    assert (candidate.text, candidate.finish, len(candidate.token_ids)) == ("", "eos", 1)


@pytest.mark.parametrize(
    ("spelling", "finish", "text", "name"),
    [
        (["Yes", ".ĊĊ"], DELIMITER, "Yes.", "step"),
        (["Yes", ".", "Ċ", "Ċ"], DELIMITER, "Yes.", "step"),
        (["Yes", "?Ċ", "ĊĊ"], DELIMITER, "Yes?", "step"),
        (["ĊĊ"], DELIMITER, "", "step"),
        (["No", "<|im_end|>"], STOPPED, "No", "eos"),
        (["No", ".ĊĊ", "Yes", "<|endoftext|>"], STOPPED, "No.\n\nYes", "eos"),
        (["No", ".ĊĊ", "<|im_end|>"], STOPPED, "No.", "eos"),
        (["<|im_end|>"], STOPPED, "", "eos"),
        (["Yes", "No"], LENGTH, "YesNo", "length"),
        ([], LENGTH, "", "eos"),
    ],
)
def test_text_and_finish_of_a_completion(
    spelling: list[str],
    finish: int,
    text: str,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chooser = reasoner()
    ids = chooser.vlm.tokenizer.convert_tokens_to_ids(spelling)
    tokens = np.zeros((1, 6), np.int32)
    tokens[0, : len(ids)] = ids
    mask = np.arange(6)[None, :] < len(ids)
    completion = Completion(
        tokens,
        np.where(mask, np.float32(-1), np.float32(0)),
        np.where(mask, np.float32(-2), np.float32(0)),
        mask,
        np.array([finish], np.int32),
    )
    monkeypatch.setattr(prefixes, "sample", lambda *arguments: completion)
    state = ReasonerState(no_prefixes(1), (True,))
    ((candidate,),) = chooser.propose(state, keys([question(1)], 1), False)
    expected = Candidate(text, tuple(ids), -2.0 * len(ids), -1.0 * len(ids), name)  # type: ignore[arg-type]
    assert candidate == expected


# States


def test_a_commit_is_token_in_token_out() -> None:
    """Sampled ids are kept even where encoding their text gives others; None changes nothing."""
    vlm = tiny_vlm()
    chooser = reasoner(vlm)
    questions = batch(1, 2, 3, 4)
    split = tuple(vlm.tokenizer.convert_tokens_to_ids(["Y", "es", ".", "Ċ", "Ċ"]))
    written = Candidate("Yes.", finish="step")
    assert split != tuple(plain_ids(vlm.tokenizer, "Yes.\n\n"))
    before = chooser.start(questions)
    kept = leaves(before)
    after = chooser.commit(
        before,
        [Candidate("Yes.", split), written, None, Candidate("No", (), finish="eos"), None, None],
    )
    ends = [split, (*plain_ids(vlm.tokenizer, "Yes.\n\n"),), (), (*plain_ids(vlm.tokenizer, "No"),)]
    for row, (asked, more) in enumerate(zip(questions[:4], ends, strict=True)):
        np.testing.assert_allclose(
            after.prefixes.logits[row], whole(vlm, asked, more)[-1], atol=1e-4, rtol=1e-4
        )
    np.testing.assert_array_equal(after.prefixes.logits[2], before.prefixes.logits[2])
    for was, now in zip(kept, leaves(before), strict=True):
        np.testing.assert_array_equal(was, now)
    assert after.live == (True, True, False, False, False, False)
    proposed = chooser.propose(after, keys(questions), False)
    assert proposed[2] == proposed[3] == (Candidate("", finish="eos"),) * 2
    again = chooser.commit(after, [None, written, None, None, None, None])
    assert again.live == (False, True, False, False, False, False)
    assert chooser.commit(again, [None] * 6).prefixes is again.prefixes


def test_a_long_chain_outgrows_its_cache_unharmed() -> None:
    vlm = tiny_vlm()
    chooser = reasoner(vlm)
    questions = batch(1, 2, 3, 4)
    state = chooser.start(questions)
    slots = state.prefixes.cache.slots
    step = Candidate("The picture shows a blue circle, a red circle, a teal circle.")
    # as often as it takes to leave any bucket of the prompt behind
    repeats = slots // len(plain_ids(vlm.tokenizer, step.text)) + 1
    for _ in range(repeats):
        state = chooser.commit(state, [step, None, step, None, None, None])
    chains = (*plain_ids(vlm.tokenizer, step.text + "\n\n"),) * repeats
    assert max(state.prefixes.lengths) <= state.prefixes.cache.slots
    for row, more in ((0, chains), (1, ()), (2, chains)):
        np.testing.assert_allclose(
            state.prefixes.logits[row], whole(vlm, questions[row], more)[-1], atol=1e-4, rtol=1e-4
        )


def test_rows_are_taken_in_order() -> None:
    chooser = reasoner()
    questions = batch(1, 2, 3, 4)
    steps = [Candidate("a"), Candidate("b"), None, None, Candidate("c"), Candidate("d")]
    state = chooser.commit(chooser.start(questions), steps)
    rows = (3, 1, 1, 5, 0, 4)
    taken = chooser.take(state, rows)
    assert taken.live == (False, True, True, True, True, True)
    assert taken.prefixes.lengths == tuple(state.prefixes.lengths[row] for row in rows)
    proposed = chooser.propose(taken, keys([questions[row] for row in rows]), False)
    expected = chooser.propose(state, keys(questions), False)
    assert [[c.token_ids for c in row] for row in proposed] == [
        [c.token_ids for c in expected[row]] for row in rows
    ]
    assert expected[1] != expected[5]
    assert len(chooser.take(state, [5, 2]).prefixes.lengths) == 2


# Pictures


def test_the_vision_tower_runs_once_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = []
    skip_reading(monkeypatch)

    def counted(config: Config, params: Params, patches: PatchBatch) -> jax.Array:
        passes.append(int(np.asarray(patches.mask).any(axis=(1, 2)).sum()))
        return jnp.zeros((patches.mask.shape[0], 4, 3))

    monkeypatch.setattr(pictures, "encode_patches", counted)
    vlm = tiny_vlm()
    questions = [question(1), question(2), question(1), Question("bytes", "Why?", (png(2),))]
    reasoner(vlm).start(questions)
    assert passes == [2]
    VLMPanel(vlm).start(questions)
    base_reasoner(reasoner(vlm)).start(questions)
    assert passes == [2]
    VLMPanel(vlm, DEFAULT_JUDGES[1:]).start(batch())
    assert passes == [2]
    reasoner(vlm).start(batch(5))
    reasoner(vlm).start(batch(6))
    reasoner(vlm).start(questions)
    assert passes == [2, 6, 6, 2]


def test_other_parameters_never_see_stale_features() -> None:
    vlm = tiny_vlm()
    questions = batch(1, 2, 3, 4)
    first = reasoner(vlm).start(questions)
    other = replace(vlm, params=tiny_params(1))
    np.testing.assert_allclose(
        reasoner(other).start(questions).prefixes.logits[0],
        whole(other, questions[0])[-1],
        atol=1e-4,
        rtol=1e-4,
    )
    again = reasoner(vlm).start(questions)
    np.testing.assert_array_equal(first.prefixes.logits, again.prefixes.logits)


def test_rows_that_cannot_be_read_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_reading(monkeypatch)
    (tmp_path / "text.png").write_text("no picture")
    questions = [
        question(1),
        Question("absent", "Why?", (tmp_path / "absent.png",)),
        Question("broken", "Why?", (picture(1), tmp_path / "text.png")),
        Question("thin", "Why?", (picture(1, (402, 2)),)),
        question(2),
    ]
    for participant in (reasoner(), VLMPanel(tiny_vlm())):
        with pytest.raises(QuestionErrors) as errors:
            participant.start(questions)
        assert set(errors.value.reasons) == {1, 2, 3}
        assert "absent.png" in errors.value.reasons[1]
        assert "text.png" in errors.value.reasons[2]
        assert "200" in errors.value.reasons[3]
    with pytest.raises(QuestionErrors) as errors:
        reasoner().start(
            [question(1), Question("long", "a " * 400), Question("?", "?", (), ("",) * 27)]
        )
    assert set(errors.value.reasons) == {1, 2}
    assert "400" in errors.value.reasons[1] and "27 choices" in errors.value.reasons[2]
    # whatever is wrong with a batch is said at once
    both = [question(1), questions[1], Question("long", "a " * 400), questions[3]]
    for participant in (reasoner(), VLMPanel(tiny_vlm())):
        with pytest.raises(QuestionErrors) as errors:
            participant.start(both)
        assert set(errors.value.reasons) == {1, 2, 3}
        assert "absent.png" in errors.value.reasons[1] and "400" in errors.value.reasons[2]
    unseen = VLMPanel(tiny_vlm(), DEFAULT_JUDGES[1:])
    assert unseen.start([questions[1]]).lengths


# Cost


def test_a_second_batch_of_the_same_bucket_compiles_nothing() -> None:
    chooser = reasoner()

    def run(questions: list[Question]) -> None:
        state = chooser.start(questions)
        first = chooser.propose(state, keys(questions), False)
        state = chooser.commit(state, [row[0] for row in first])
        state = chooser.take(state, range(len(questions)))
        chooser.propose(state, keys(questions, step=1), True)

    sizes = [(64, 64), (40, 64), (64, 48), (33, 50), (60, 20)]
    first = [Question(f"{i}", "Is it red?", (picture(i, sizes[i]),)) for i in range(5)]
    run(first)
    second = [Question(f"b{i}", "Is it a circle?", (picture(9 + i, sizes[-i]),)) for i in range(5)]
    with compilations() as compiled:
        run(second)
    assert compiled == []
    functions = (
        pictures.encode_patches,
        prefixes.prefill_rows,
        prefixes.sample_rows,
        prefixes.extend_rows,
        prefixes.take_rows,
    )
    # 5 rows and 6 share the bucket of 6
    before = [function._cache_size() for function in functions]
    run([*second, Question("b5", "Is it blue?", (picture(20),))])
    assert [function._cache_size() for function in functions] == before


def test_settings_record_all_that_moves_a_candidate() -> None:
    chooser = reasoner(sampling=SamplingSettings(0.7, 3, 0.9, 11))
    assert dict(chooser.settings) == {
        "temperature": 0.7,
        "top_k": 3,
        "top_p": 0.9,
        "max_tokens": 11,
        "dtype": "float32",
        "system": prompts.reasoner_system(),
        "system_choices": prompts.reasoner_system(("left", "right")),
    }
    assert len({chooser.settings["system"], chooser.settings["system_choices"]}) == 2
    assert VLMReasoner(chooser.vlm).sampling == SamplingSettings(0.8, 0, 1.0, 512)
    assert chooser.model_id == chooser.vlm.name


# The loop


def test_the_loop_reproduces_itself_and_outlives_a_broken_picture(tmp_path: Path) -> None:
    questions = batch(1, 2, 3, 4)
    questions[1] = replace(questions[1], images=(tmp_path / "absent.png",))
    chooser = reasoner()
    first, second = (
        reason(questions, chooser, rule="random", n=2, seed=3, max_steps=2) for _ in range(2)
    )
    assert first.trees == second.trees
    assert [trace.finish == "error" for trace in first.traces] == [row == 1 for row in range(6)]
    assert first.traces[1].error is not None and "absent.png" in first.traces[1].error
    for trace in (first.traces[0], *first.traces[2:]):
        assert trace.model_id == chooser.model_id and trace.settings == chooser.settings
        for candidate in trace.steps[0].candidates:
            assert math.isfinite(candidate.logprob) and candidate.token_ids
