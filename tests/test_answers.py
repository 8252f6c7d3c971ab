"""Answers are read from declarations and never guessed."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verdict_jax.answers import declares, extract_choice, final_answer, is_correct

FOUR = ("cat", "dog", "red ball", "blue box")
SIDES = ("left", "left of the car")
STEPS = ("Step 1", "Step 10")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Answer: no", "no"),
        ("Answer: no.", "no"),
        ("Final answer: two blue boxes.", "two blue boxes"),
        ("**Answer:** B", "B"),
        ("**Answer**: B", "B"),
        ("Answer:\nB", "B"),
        ("### Answer\nyes", "yes"),
        ("The answer is **B**.", "B"),
        ("The final answer is: 7", "7"),
        ("So the correct answer is yes.", "yes"),
        ("my answer is blue", "blue"),
        ("\\boxed{42}", "42"),
        ("It is $\\boxed{\\text{B}}$.", "B"),
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("<answer> yes </answer>", "yes"),
        ("<ANSWER>Answer: yes</ANSWER>", "yes"),
        ("I choose (C) because A is too far.", "C"),
        # Where the declaration ends.
        ("Answer: no. The circle is red.", "no"),
        ("Answer: 3.5 meters. It is long.", "3.5 meters"),
        ("Answer: Mr. Smith. He waves.", "Mr. Smith"),
        ("Answer: J. K. Rowling", "J. K. Rowling"),
        ("Answer: U.S. Navy.", "U.S. Navy"),
        ("Answer: yes\nThe shape is a circle.", "yes"),
        ("Answer: (B) dog", "(B) dog"),
        ("Answer: f(x)", "f(x)"),
        # The last one counts.
        ("Answer: no\n\nWait.\n\nAnswer: yes", "yes"),
        ("<answer>no</answer> I mean: the answer is yes", "yes"),
        ("Answer: A is incorrect, so the answer is D", "D"),
        ("The answer is yes. The answer is consistent with the picture.", "yes"),
        # Nothing declared.
        ("", None),
        ("The picture shows a blue circle.", None),
        ("There is no answer here", None),
        ("What is the answer?", None),
        ("Answer:", None),
        ("Answer: **", None),
        ("If it is red, the answer is yes.", None),
        ("We ask whether the answer is yes", None),
        ("The answer is not B", None),
        ("The answer is yes. No, the answer is not yes", None),
        ("The answer is consistent with the picture.", None),
        ("I choose to look at the left side.", None),
        ("<answer>yes", None),
        ("\\boxed{yes", None),
        ("The answers: several", None),
    ],
)
def test_final_answer(text, answer):
    assert final_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "choices", "letter"),
    [
        # Rows of reported faults.
        ("The correct answer is (B).", FOUR, "B"),
        ("The answer is **D**. A dog is not present.", FOUR, "D"),
        ("I choose C because A is too far.", FOUR, "C"),
        ("Answer: A is incorrect, so the answer is D", FOUR, "D"),
        ("The correct answer is B. Here's why: A is not in the picture.", FOUR, "B"),
        ("10", ("1", "2", "3", "4"), None),
        ("Answer: 10", ("1", "2", "3", "4"), None),
        ("Unknown", ("no", "yes"), None),
        ("Answer: Unknown", ("no", "yes"), None),
        ("left of the car", SIDES, "B"),
        ("Answer: left of the car", SIDES, "B"),
        ("The answer is that it stands left of the car.", SIDES, "B"),
        ("Answer: left", SIDES, "A"),
        ("Answer: F", ("1", "2", "3", "4", "5", "6"), "F"),
        ("Answer: 6", ("1", "2", "3", "4", "5", "6"), "F"),
        # Numbers are whole: Step 1 is not in Step 10, nor 3 in 3.5, nor 5 in -5.
        ("Answer: Step 10", STEPS, "B"),
        ("The answer is in Step 10", STEPS, "B"),
        ("The answer is in Step 1", STEPS, "A"),
        ("Answer: 3.5", ("3", "5"), None),
        ("Answer: -5", ("5", "6"), None),
        ("Answer: 5.0", ("5", "6"), "A"),
        ("Answer: 1,000", ("1", "1000"), "B"),
        # How a letter is written.
        ("Answer: B", FOUR, "B"),
        ("Answer: b", FOUR, "B"),
        ("Answer: B.", FOUR, "B"),
        ("Answer: [B]", FOUR, "B"),
        ("Answer: option B", FOUR, "B"),
        ("Answer: B) dog", FOUR, "B"),
        ("Answer: (B) dog", FOUR, "B"),
        ("Answer: B: dog", FOUR, "B"),
        ("\\boxed{\\text{B}}", FOUR, "B"),
        ("<answer>B</answer>", FOUR, "B"),
        ("**Answer:** **B**", FOUR, "B"),
        ("I'd go with (A).", FOUR, "A"),
        ("Answer: B (vitamin C)", ("water", "vitamin C"), "B"),
        # A text instead of a letter.
        ("Answer: dog", FOUR, "B"),
        ("Answer: A dog", FOUR, "B"),
        ("Answer: the Red Ball.", FOUR, "C"),
        ("The answer is the red ball on the floor.", FOUR, "C"),
        ("Answer: not visible", ("visible", "not visible"), "B"),
        # Two letters, a negation, or a letter nobody has: unparsed.
        ("Answer: A or B", FOUR, None),
        ("The answer is B or maybe C.", FOUR, None),
        ("The answer is either A or B", FOUR, None),
        ("Answer: A, B", FOUR, None),
        ("Answer: B and C", FOUR, None),
        ("Answer: E", FOUR, None),
        ("Answer: A or E", FOUR, None),
        ("The answer is not B", FOUR, None),
        ("Answer: A is incorrect", FOUR, None),
        ("The answer is not the dog", FOUR, None),
        ("The answer is a cat and a dog", FOUR, None),
        ("The answer is B, not C", FOUR, "B"),
        ("The answer is B rather than C", FOUR, "B"),
        ("The answer is B. No, the answer is not B.", FOUR, None),
        ("The answer is B.\n\nAnswer: none of them", FOUR, None),
        # The last declared one.
        ("Answer: A\n\nOn second thought.\n\nAnswer: C", FOUR, "C"),
        ("The answer is B. The answer is consistent with the picture.", FOUR, "B"),
        # Without a declaration only a last line that is nothing but the answer.
        ("B", FOUR, "B"),
        ("(B)", FOUR, "B"),
        ("It wears a collar.\n\n(B) dog", FOUR, "B"),
        ("A dog is near the red ball.", FOUR, None),
        ("A is too far and B is behind the wall.", FOUR, None),
        ("I see a dog", FOUR, None),
        ("", FOUR, None),
        ("Answer:", FOUR, None),
        # A letter that is also another choice's text cannot be told.
        ("Answer: A", ("B", "A"), None),
        ("Answer: +", ("-", "+"), "B"),
        # Nine choices and more: "I" is a pronoun unless it stands alone.
        ("The answer is what I see: D", tuple("qrstuvwxyz"), "D"),
        ("Answer: I", tuple("qrstuvwxyz"), "I"),
    ],
)
def test_extract_choice(text, choices, letter):
    assert extract_choice(text, choices) == letter


def test_the_callers_choices_are_not_changed():
    choices = ["left of the car", "left", "The Dog"]
    extract_choice("Answer: the dog", choices)
    assert choices == ["left of the car", "left", "The Dog"]


def test_choices_must_fit_the_alphabet():
    assert extract_choice("Answer: Z", [str(i) for i in range(26)]) == "Z"
    for count in (0, 27):
        with pytest.raises(ValueError, match="1 to 26 choices"):
            extract_choice("Answer: A", [str(i) for i in range(count)])


@pytest.mark.parametrize(
    ("text", "choices", "expected"),
    [
        # Prose that names no choice explains; the chain goes on.
        ("The correct answer is the one that is closest to the camera.", FOUR, False),
        ("The correct answer is the one that is closest to the camera.", (), True),
        ("The answer is consistent with the picture.", FOUR, False),
        ("It wears a collar, so it is a dog.", FOUR, False),
        ("Now I choose to look at the left side.", FOUR, False),
        # Prose that names one, or two.
        ("The correct answer is the dog.", FOUR, True),
        (
            "The answer is (B), because it wears a collar, as no cat in this house would.",
            FOUR,
            True,
        ),
        ("I choose C because A is too far.", FOUR, True),
        ("The answer is either A or B", FOUR, True),
        ("The answer is B, not C", FOUR, True),
        # A retraction declares nothing, whatever went before it.
        ("The answer is not B", FOUR, False),
        ("The answer is not B", (), False),
        ("The answer is B. No, the answer is not B.", FOUR, False),
        ("If it is red, the answer is B.", FOUR, False),
        # A mark declares whatever it holds.
        ("Answer: B", FOUR, True),
        ("Answer: a bird", FOUR, True),
        ("\\boxed{7}", FOUR, True),
        ("Answer:", FOUR, False),
        ("Answer: B\n\nThe answer is consistent with the picture.", FOUR, True),
        ("", FOUR, False),
    ],
)
def test_declares(text, choices, expected):
    assert declares(text, choices) is expected


def test_a_chain_may_end_only_where_choices_fit_the_alphabet():
    with pytest.raises(ValueError, match="1 to 26 choices"):
        declares("Answer: A", [str(i) for i in range(27)])


@pytest.mark.parametrize(
    ("gold", "choices", "answer", "right"),
    [
        ("no", (), "no", True),
        ("No", (), "no", True),
        ("no", (), "yes", False),
        ("no", (), None, False),
        ("no", (), "not sure", False),
        ("a circle", (), "circle", True),
        ("3", (), "3.0", True),
        ("30", (), "3.0", False),
        ("-5", (), "5", False),
        ("3.5", (), "35", False),
        ("1000", (), "1,000", True),
        ("it’s red", (), "it's red", True),
        ("A", (), "the", False),
        ("+", (), "+", True),
        ("+", (), "-", False),
        ("B", FOUR, "B", True),
        ("(B)", FOUR, "B", True),
        ("dog", FOUR, "B", True),
        ("(B) dog", FOUR, "B", True),
        ("B", FOUR, "A", False),
        ("B", FOUR, None, False),
        ("F", ("1", "2", "3", "4", "5", "6"), "F", True),
    ],
)
def test_is_correct(gold, choices, answer, right):
    assert is_correct(answer, gold, choices) is right


@pytest.mark.parametrize("gold", ["bird", "E"])
def test_a_gold_answer_that_is_no_choice_is_an_error(gold):
    with pytest.raises(ValueError, match=f"{gold}.* is none of the choices"):
        is_correct("A", gold, FOUR)


HOSTILE = [
    "<answer>", "<answer></answer>", "\\boxed{", "\\boxed{}", "{", "Answer: ", "the answer is ",
    "I choose A ", "if the answer is ", "a\n", " ", "\n", "*", "A. ", "J. ", "(", "((a)", "1,",
    "1.", "\\text{", "A or ", "not A ", "'", ". ", "# ", "the ",
]  # fmt: skip


@pytest.mark.parametrize("piece", HOSTILE)
@pytest.mark.parametrize("start", ["", "Answer: "])
def test_work_is_linear_in_the_text(start, piece):
    """Calls are counted at two lengths. (A pattern that backtracks would not come back at all.)"""

    def work(size: int) -> int:
        text = start + (piece * size)[:size]
        calls = 0

        def count(frame, event, argument) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        previous = sys.getprofile()
        sys.setprofile(count)
        try:
            final_answer(text)
            extract_choice(text, FOUR)
        finally:
            sys.setprofile(previous)
        return calls

    assert work(50_000) <= 4 * work(12_500) + 400


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.lists(
        st.sampled_from(
            [
                *HOSTILE,
                "Answer: B",
                "The answer is C",
                "dog",
                "A",
                "B",
                "\n\n",
                ".",
                "not",
                "I pick D",
            ]
        ),
        max_size=12,
    )
)
def test_readers_never_fail_and_stay_in_range(pieces):
    text = " ".join(pieces)
    assert extract_choice(text, FOUR) in (None, "A", "B", "C", "D")
    answer = final_answer(text)
    assert answer is None or (answer.strip() == answer and answer)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.text(max_size=60))
def test_any_text_can_be_read(text):
    assert extract_choice(text, FOUR) in (None, "A", "B", "C", "D")
    final_answer(text)
