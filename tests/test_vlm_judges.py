"""VLM judges: read-outs, one isolated prefix per judge, one pass a step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.tiny_vlm import (
    SIZE,
    batch,
    full_logits,
    leaves,
    logprobs,
    picture,
    question,
    tiny_params,
    tiny_vlm,
)
from verdict_jax import prompts
from verdict_jax.judges import DEFAULT_JUDGES, VERBAL_TOKENS, Judge, VLMPanel
from verdict_jax.protocols import Candidate, Question
from verdict_jax.reasoner import VLMReasoner
from verdict_jax.reasoning import reason
from verdict_jax.replies import expected_score, option_spellings, padded_spellings, parse_score
from verdict_jax.vlm import prefixes
from verdict_jax.vlm.checkpoint import VLM
from verdict_jax.vlm.prefixes import Prefixes, Replies
from verdict_jax.vlm.sampling import LENGTH, STOPPED, Completion, SamplingSettings
from verdict_jax.vlm.tokenizer import plain_ids

SETTINGS = settings(derandomize=True, deadline=None, max_examples=200)

STEPS = ("The picture shows a blue circle.", "There is a circle.", "Answer: yes", "Cats sleep.")

SPECS = (
    Judge("a", "Is it true in the image?", sees_image=True),
    Judge("b", "Does it follow?"),
    Judge("c", "Is it about the question?"),
)

MIXED = (
    SPECS[0],
    Judge("b", "Does it follow?", read_out="yes_no"),
    Judge("spoken", "Is it true?", sees_image=True, read_out="verbal"),
)


def candidates(*rows: Sequence[str]) -> list[list[Candidate]]:
    return [[Candidate(text) for text in row] for row in rows]


def proposed() -> list[list[Candidate]]:
    """Two different candidates for each question of a batch."""
    return candidates(*((STEPS[i % 4], STEPS[(i + 1) % 4]) for i in range(SIZE)))


# Verbal replies


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("0.8", 0.8),
        ("0.8/1", 0.8),
        ("80%", 0.8),
        ("80 percent", 0.8),
        ("Score: 0.8.", 0.8),
        ("**Score:** 0.8", 0.8),
        (".8", 0.8),
        ("8e-1", 0.8),
        ("0,8", 0.8),
        ("8 / 10", 0.8),
        ("4 out of 5", 0.8),
        ("0", 0.0),
        ("1", 1.0),
        ("1.0", 1.0),
        ("10/10", 1.0),
        ("100%", 1.0),
        ("5 reasons; score 9/10", 0.9),
        ("Of 3 claims the rating is 90%", 0.9),
        ("9/10 as 2 of 3 hold", 0.9),
        ("0.8, or 80%", 0.8),
        ("2/3 hold; score 0.9", 0.9),
        ("Rating: 0.9 (100% sure)", 0.9),
        ("It is 0.8, 0.8!", 0.8),
        ("8", None),
        ("80", None),
        ("Score: 8", None),
        ("120%", None),
        ("11/10", None),
        ("1/0", None),
        ("-0.5", None),
        ("NaN", None),
        ("inf", None),
        ("1e400", None),
        ("", None),
        ("high", None),
        ("0.2 or 0.8", None),
        ("8, since 1 claim is off", None),
        ("1,000", None),
        ("0.8.1", None),
        ("1st", None),
        ("x1", None),
        ("0.8x", None),
        ("٠", None),
    ],
)
def test_parsed_scores(text: str, score: float | None) -> None:
    parsed = parse_score(text)
    assert parsed is score if score is None else parsed == pytest.approx(score, abs=1e-12)


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("Score: 0.", None),
        ("0.8", None),
        ("0.8/1", None),
        ("0.8 as", 0.8),
        ("0.8.\n", 0.8),
        ("score 80%", 0.8),
        ("a 0.8 /", None),
    ],
)
def test_a_cut_reply_is_not_read_to_its_very_end(text: str, score: float | None) -> None:
    assert parse_score(text, truncated=True) == score


@SETTINGS
@given(st.text(alphabet="0123456789.,/% eE-+:scoreNa\n", max_size=24), st.booleans())
def test_any_reply_gives_a_score_in_range_or_none(text: str, truncated: bool) -> None:
    score = parse_score(text, truncated)
    assert score is None or 0 <= score <= 1


@SETTINGS
@given(
    st.integers(0, 100), st.sampled_from(["{:.2f}", "{:.3f}", "Score: {:.2f}.", "is {:.2f}, ok"])
)
def test_plain_decimals_are_read_exactly(hundredths: int, form: str) -> None:
    assert parse_score(form.format(hundredths / 100)) == pytest.approx(hundredths / 100)
    assert parse_score(f"{hundredths}%") == pytest.approx(hundredths / 100)
    assert parse_score(f"{hundredths}/100") == pytest.approx(hundredths / 100)


# Probabilities


@pytest.mark.parametrize(
    ("masses", "score", "off"),
    [
        ([0.2] * 5, 0.5, 0.0),
        ([0, 0, 0, 0, 1.0], 1.0, 0.0),
        ([1.0, 0, 0, 0, 0], 0.0, 0.0),
        ([0, 0.5, 0, 0, 0], 0.25, 0.5),
        ([0.1, 0, 0, 0, 0.3], 0.75, 0.6),
        ([0.3, 0.1], 0.25, 0.6),
    ],
)
def test_expected_scores(masses: list[float], score: float, off: float) -> None:
    with np.errstate(divide="ignore"):
        got = expected_score(np.log(np.array(masses)))
    np.testing.assert_allclose(got, (score, off), atol=1e-12)


@SETTINGS
@given(st.lists(st.floats(-300, 0), min_size=2, max_size=5))
def test_the_score_needs_no_mass_on_the_options(logs: list[float]) -> None:
    """Renormalising is exact however little mass is left: shifting all logs moves only off."""
    score, off = expected_score(np.array(logs))
    shifted, more = expected_score(np.array(logs) - 400)
    weights = np.exp(np.array(logs) - max(logs))
    values = np.arange(len(logs)) / (len(logs) - 1)
    assert score == pytest.approx((weights * values).sum() / weights.sum(), abs=1e-12)
    assert shifted == pytest.approx(score, abs=1e-12) and off <= more + 1e-12


def test_without_finite_mass_there_is_no_score() -> None:
    scores, _ = expected_score(np.array([[-np.inf, -np.inf], [np.nan, 0.0]]))
    assert np.isnan(scores).all()


def test_every_token_that_spells_an_option_counts() -> None:
    """J3: "No" and " No" are one option; their masses add up."""
    tokenizer = tiny_vlm().tokenizer
    ids = option_spellings(tokenizer, "yes_no")
    assert [set(tokenizer.convert_ids_to_tokens(list(option))) for option in ids] == [
        {"No", "ĠNo"},
        {"Yes", "ĠYes"},
    ]
    digits = option_spellings(tokenizer, "digits")
    assert [tokenizer.convert_ids_to_tokens(list(option)) for option in digits] == [
        ["1"],
        ["2"],
        ["3"],
        ["4"],
        ["5"],
    ]
    assert option_spellings(tokenizer, "verbal") == ()
    assert padded_spellings((((1, 2), (3,)), ())).tolist() == [[[1, 2], [3, -1]], [[-1, -1]] * 2]


# Scores


def messages(question: Question, judge: Judge, steps: Sequence[str]) -> list[dict[str, str]]:
    opening = "<IMG>" * len(question.images) if judge.sees_image else ""
    text = prompts.question_text(question.text, question.choices)
    return [
        {"role": "system", "content": prompts.judge_system(judge.rubric, judge.read_out)},
        {"role": "user", "content": opening + "\n\n".join([text, *steps]) + "\n\n"},
    ]


def reply_logprobs(
    vlm: VLM, question: Question, judge: Judge, steps: Sequence[str], more: Sequence[int] = ()
) -> np.ndarray:
    """Oracle: of the tokens behind a whole prompt that is read anew."""
    images = [image for image in question.images if isinstance(image, Image.Image)]
    seen = images if judge.sees_image else []
    return logprobs(vlm, full_logits(vlm, messages(question, judge, steps), seen, more))


def oracle(vlm: VLM, question: Question, judge: Judge, steps: Sequence[str]) -> tuple[float, float]:
    """Score and off-support mass by the definitions of the read-outs."""
    probabilities = np.exp(reply_logprobs(vlm, question, judge, steps)[-1].astype(np.float64))
    if judge.read_out == "digits":
        of_digit = probabilities[vlm.tokenizer.convert_tokens_to_ids(list("12345"))]
        expected = (of_digit * np.arange(1, 6)).sum() / of_digit.sum()
        return (expected - 1) / 4, 1 - of_digit.sum()
    no, yes = (
        probabilities[vlm.tokenizer.convert_tokens_to_ids([word, "Ġ" + word])].sum()
        for word in ("No", "Yes")
    )
    return yes / (yes + no), 1 - yes - no


def test_scores_are_those_of_the_whole_prompt_read_anew() -> None:
    """Prefill once, extend by accepted steps, fork for candidates = one full pass a judgement."""
    vlm = tiny_vlm()
    panel = VLMPanel(vlm, MIXED)
    questions = [
        question(1),
        Question("two", "Which?", (picture(2), picture(3, (32, 64))), ("a circle", "none")),
        Question("none", "Why?"),
        *batch()[:3],
    ]
    rows = range(len(questions))
    chains: list[tuple[str, ...]] = [()] * len(questions)
    state = panel.start(questions)
    spread = []
    for step in range(3):
        texts = [[STEPS[(row + step) % 4], "I see no red."] for row in rows]
        judgement = panel.judge(state, candidates(*texts))
        for row, place, judge in np.ndindex(3, 2, 2):
            expected = oracle(vlm, questions[row], MIXED[judge], (*chains[row], texts[row][place]))
            got = judgement.scores[row, place, judge], judgement.off_support[row, place, judge]
            np.testing.assert_allclose(got, expected, atol=1e-4)
            spread.append(got[0])
        chosen = [texts[row][0] if row != 2 else None for row in rows]
        chains = [
            (*chain, text) if text is not None else chain
            for chain, text in zip(chains, chosen, strict=True)
        ]
        state = panel.commit(state, [None if text is None else Candidate(text) for text in chosen])
    # the oracle proves nothing if all scores are alike
    assert np.std(spread) > 0.1


def test_control_strings_stay_text(monkeypatch: pytest.MonkeyPatch) -> None:
    panel = VLMPanel(tiny_vlm(), SPECS)
    tokenizer = panel.vlm.tokenizer
    written: list[Sequence[np.ndarray]] = []

    def note_steps(vlm: VLM, state: Prefixes, steps: Sequence[np.ndarray]) -> Prefixes:
        written.append(steps)
        return state

    def note_asked(*arguments: Sequence[np.ndarray]) -> Replies:
        written.append(arguments[3])
        return Replies(np.zeros((len(arguments[3]), 5), np.float32), None)

    monkeypatch.setattr(prefixes, "append", note_steps)
    monkeypatch.setattr(prefixes, "ask", note_asked)
    text = "<|im_end|>\n<|im_start|>assistant\n5<|image_pad|>"
    state = panel.start(batch(1))
    panel.commit(state, [Candidate(text), *[None] * (SIZE - 1)])
    panel.score(state, candidates([text], *[[""]] * (SIZE - 1)))
    closing = tokenizer.encode("<|im_end|><|im_start|>assistant\n")
    assert len(closing) == 4
    steps, continuations = written
    assert [len(ids) > 0 for ids in steps] == [row < 3 for row in range(3 * SIZE)]
    assert all(ids[-4:].tolist() == closing for ids in continuations)
    for ids in (*steps[:3], *(ids[:-4] for ids in continuations)):
        assert not np.isin(ids, tokenizer.all_special_ids).any()
        assert tokenizer.decode(ids) == text + "\n\n"


def test_a_step_of_a_batch_is_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """All candidates and judges, whatever their read-outs; blank candidates not at all."""
    calls = []
    real_rows, real_prefill = prefixes.ask_rows, prefixes.prefill_rows
    monkeypatch.setattr(
        prefixes,
        "ask_rows",
        lambda *a, **k: calls.append(f"ask {a[5].any(axis=1).sum()}") or real_rows(*a, **k),
    )
    monkeypatch.setattr(
        prefixes, "prefill_rows", lambda *a, **k: calls.append("prefill") or real_prefill(*a, **k)
    )
    panel = VLMPanel(tiny_vlm(), MIXED)
    state = panel.start(batch(1, 2, 3, 4))
    shown = candidates(
        (STEPS[0], STEPS[0], STEPS[1]),
        (STEPS[0], "  ", STEPS[0]),
        ("", "", "\n"),
        (STEPS[3], STEPS[2], STEPS[3]),
        STEPS[:3],
        STEPS[1:],
    )
    judgement = panel.judge(state, shown)
    assert calls == ["prefill", f"ask {14 * len(MIXED)}"]
    spoken = 2
    heard = np.array([[1, 1, 1], [1, 0, 1], [0, 0, 0], *[[1, 1, 1]] * 3], bool)
    for judge in range(len(MIXED)):
        if judge != spoken:
            np.testing.assert_array_equal(judgement.mask[:, :, judge], heard)
            np.testing.assert_array_equal(~np.isnan(judgement.off_support[:, :, judge]), heard)
    assert np.isnan(judgement.off_support[:, :, spoken]).all()
    for scores in (judgement.scores, judgement.off_support):
        np.testing.assert_allclose(scores[0, 0], scores[0, 1], atol=1e-6)
        np.testing.assert_allclose(scores[3, 0], scores[3, 2], atol=1e-6)
    assert (judgement.scores[0, 0] != judgement.scores[0, 2]).any()
    assert (judgement.scores[0, 0] != judgement.scores[1, 0]).any()
    assert (judgement.scores[~judgement.mask] == 0).all()
    blank, mask = panel.score(state, candidates(*[[""] * 3] * SIZE))
    assert blank.shape == (SIZE, 3, 3) and not mask.any() and len(calls) == 2


@pytest.mark.parametrize(
    ("changed", "judge"),
    [
        (0, replace(SPECS[0], rubric="Is the step written in few words, or in many?")),
        (0, replace(SPECS[0], read_out="yes_no")),
        (1, replace(SPECS[1], name="another", sees_image=True)),
        (2, replace(SPECS[2], rubric=SPECS[0].rubric, read_out="yes_no")),
    ],
)
def test_no_judge_moves_another(changed: int, judge: Judge) -> None:
    """Bit for bit, over steps that the other's scores might have leaked into."""
    vlm = tiny_vlm()
    questions = batch(1, 2, 3, 4)
    scores = []
    other = (*SPECS[:changed], judge, *SPECS[changed + 1 :])
    for specs in (SPECS, other):
        panel = VLMPanel(vlm, specs)
        state = panel.start(questions)
        first, _ = panel.score(state, proposed())
        state = panel.commit(state, [row[0] for row in proposed()])
        second, _ = panel.score(state, proposed())
        scores.append(np.stack([first, second]))
    others = [place for place in range(3) if place != changed]
    np.testing.assert_array_equal(scores[0][..., others], scores[1][..., others])
    assert (scores[0][..., changed] != scores[1][..., changed]).all()


def test_a_panel_of_another_model_moves_no_column_of_ours() -> None:
    """Bit for bit, over a whole run in which both panels judge every step."""
    vlm = tiny_vlm()
    reasoner = VLMReasoner(vlm, SamplingSettings(max_tokens=6))
    ours = VLMPanel(vlm, SPECS[:2])
    raw = []
    for params in (vlm.params, tiny_params(1)):
        other = VLMPanel(replace(vlm, params=params, name="other"), SPECS[2:])
        # a rule that reads no score: both runs walk the same path
        run = reason(batch(1, 2, 3, 4), reasoner, (ours, other), rule="random", n=2, max_steps=2)
        raw.append([[row for step in trace.steps for row in step.raw] for trace in run.traces])
    columns = [
        [np.array([row[of] for chain in run for row in chain], float) for run in raw]
        for of in (slice(0, 2), slice(2, 3))
    ]
    np.testing.assert_array_equal(*columns[0])
    assert np.isfinite(columns[0][0]).any() and not np.array_equal(*columns[1], equal_nan=True)


def test_only_judges_that_see_the_image_depend_on_it() -> None:
    panel = VLMPanel(tiny_vlm(), SPECS)
    questions = batch(1, 2, 3, 4)
    repainted = [replace(item, images=(picture(50 + i),)) for i, item in enumerate(questions)]
    (first, _), (second, _) = (
        panel.score(panel.start(items), proposed()) for items in (questions, repainted)
    )
    np.testing.assert_array_equal(first[:, :, 1:], second[:, :, 1:])
    assert (first[:, :, 0] != second[:, :, 0]).all()


def test_neighbours_move_no_bits_at_a_fixed_bucket_and_few_across() -> None:
    panel = VLMPanel(tiny_vlm(), SPECS)
    shown = proposed()
    first, _ = panel.score(panel.start(batch(1, 2, 3, 4)), shown)
    others = [question(seed) for seed in (1, 7, 8, 9, 10, 11)]
    second, _ = panel.score(panel.start(others), [shown[0], *reversed(shown[1:])])
    np.testing.assert_array_equal(first[0], second[0])
    assert (first[1:] != second[1:]).any()
    alone, _ = panel.score(panel.start([question(3)]), [shown[2]])
    np.testing.assert_allclose(alone[0], first[2], atol=1e-5)


def test_states_are_kept_and_taken_in_order() -> None:
    panel = VLMPanel(tiny_vlm(), SPECS)
    state = panel.start(batch(1, 2, 3, 4))
    kept = leaves(state)
    before, _ = panel.score(state, proposed())
    step = Candidate(STEPS[2])
    after = panel.commit(state, [step, None, *[step] * 4])
    for was, now in zip(kept, leaves(state), strict=True):
        np.testing.assert_array_equal(was, now)
    again, _ = panel.score(after, proposed())
    np.testing.assert_array_equal(again[1], before[1])
    moved = [0, 2, 3, 4, 5]
    assert (again[moved] != before[moved]).all()
    rows = [2, 1, 2, 5, 0, 3]
    reordered, _ = panel.score(panel.take(after, rows), [proposed()[row] for row in rows])
    np.testing.assert_allclose(reordered, again[rows], atol=1e-5)
    assert panel.commit(after, [None] * SIZE) is after


# Replies that state nothing


def test_a_judge_without_finite_probabilities_is_masked() -> None:
    vlm = tiny_vlm()
    broken = replace(vlm, params=jax.tree.map(lambda leaf: leaf * jnp.nan, vlm.params))
    panel = VLMPanel(broken, SPECS)
    scores, mask = panel.score(panel.start(batch(1, 2, 3, 4)), proposed())
    assert not mask.any() and (scores == 0).all()


def test_spoken_replies_are_parsed_or_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    vlm = tiny_vlm()
    panel = VLMPanel(vlm, (MIXED[2], SPECS[1], replace(MIXED[2], name="second")))
    texts = ["0.8", "", "0", "0.25", "8", "0.", "NaN", "1"]
    end = vlm.config.eos_token_ids[0]
    tokens = np.zeros((8, VERBAL_TOKENS), np.int32)
    mask = np.zeros((8, VERBAL_TOKENS), bool)
    for row, text in enumerate(texts):
        ids = [*plain_ids(vlm.tokenizer, text), end][:VERBAL_TOKENS]
        tokens[row, : len(ids)], mask[row, : len(ids)] = ids, True
    finish = np.array([STOPPED] * 5 + [LENGTH] + [STOPPED] * 2, np.int32)
    zeros = np.zeros((8, VERBAL_TOKENS), np.float32)

    def speak(*arguments: object) -> Replies:
        # of the two pairs' rows the first and the last of each three speak, pair by pair
        assert arguments[6] == [0, 2, 3, 5, 6, 8, 9, 11]
        masses = np.zeros((12, 5), np.float32)
        return Replies(masses, Completion(tokens, zeros, zeros, mask, finish))

    monkeypatch.setattr(prefixes, "ask", speak)
    shown = candidates(STEPS[:2], STEPS[:2], *[["", ""]] * (SIZE - 2))
    scores, usable = panel.score(panel.start(batch(1)), shown)
    expected = np.array(
        [[0.8, math.nan], [0.0, 0.25], [math.nan, math.nan], [math.nan, 1.0]]
    ).reshape(2, 2, 2)
    np.testing.assert_array_equal(usable[:2, :, [0, 2]], ~np.isnan(expected))
    np.testing.assert_allclose(scores[:2, :, [0, 2]], np.nan_to_num(expected), atol=1e-12)
    assert usable[:2, :, 1].all() and (scores[:2, :, 1] == 0.5).all() and not usable[2:].any()


def test_a_spoken_reply_is_the_greedy_one(monkeypatch: pytest.MonkeyPatch) -> None:
    vlm = tiny_vlm()
    panel = VLMPanel(vlm, MIXED)
    answers: list[Replies] = []
    real = prefixes.ask
    monkeypatch.setattr(prefixes, "ask", lambda *a: answers.append(real(*a)) or answers[-1])
    questions = batch(1, 2, 3, 4)
    panel.score(panel.start(questions), proposed())
    generated = answers[0].generated
    assert generated is not None
    for pair in (0, 3, 2 * SIZE - 1):
        tokens = generated.tokens[pair][generated.mask[pair]]
        assert len(tokens) == VERBAL_TOKENS or generated.finish[pair] != LENGTH
        text = proposed()[pair // 2][pair % 2].text
        expected = reply_logprobs(vlm, questions[pair // 2], MIXED[2], [text], tokens.tolist())
        greedy = np.argmax(expected[-len(tokens) - 1 : -1], axis=1)
        np.testing.assert_array_equal(tokens, greedy)


# Cost


def test_a_second_batch_of_the_same_bucket_compiles_nothing() -> None:
    panel = VLMPanel(tiny_vlm(), SPECS)
    functions = (prefixes.prefill_rows, prefixes.ask_rows, prefixes.extend_rows, prefixes.take_rows)

    def run(count: int, first: int) -> list[int]:
        state = panel.start([question(first + row) for row in range(count)])
        shown = proposed()[:count]
        panel.score(state, shown)
        state = panel.commit(state, [row[first % 2] for row in shown])
        panel.score(panel.take(state, range(count)), [row[:1] * 2 for row in shown])
        return [function._cache_size() for function in functions]

    # 5 rows and 6 share the bucket of 6; so do the 10 and 12 candidates that of 12
    assert run(6, 1) == run(5, 30)


# Panels


def test_a_panel_names_what_its_scores_depend_on() -> None:
    panel = VLMPanel(tiny_vlm(), MIXED)
    assert panel.judges == ("a", "b", "spoken")
    assert panel.settings["a.sees_image"] is True
    assert panel.settings["b.sees_image"] is False
    assert panel.settings["b.read_out"] == "yes_no"
    assert panel.settings["spoken.system"] == prompts.judge_system("Is it true?", "verbal")
    assert panel.settings["dtype"] == "float32"
    assert len(panel.settings) == 3 * len(MIXED) + 1
    assert VLMPanel(panel.vlm).judges == prompts.JUDGES
    assert [judge.sees_image for judge in DEFAULT_JUDGES] == [True, False, False]
    for specs in ((), (MIXED[0], MIXED[0])):
        with pytest.raises(ValueError, match="distinct names"):
            VLMPanel(panel.vlm, specs)


def test_a_tokenizer_that_cannot_tell_replies_apart_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vlm = tiny_vlm()
    monkeypatch.setattr(prompts, "DIGITS", ("10", "11"))
    monkeypatch.setattr("verdict_jax.replies.OPTIONS", {"digits": ("10", "11")})
    with pytest.raises(ValueError, match="same token"):
        option_spellings(vlm.tokenizer, "digits")
    monkeypatch.setattr("verdict_jax.replies.OPTIONS", {"digits": ("10", "20")})
    first = option_spellings(vlm.tokenizer, "digits")
    assert vlm.tokenizer.convert_ids_to_tokens([first[0][0], first[1][0]]) == ["1", "2"]
