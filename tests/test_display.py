"""Traces as a person reads them."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from verdict_jax.display import FINISHES, render, show, step_table, verdict_line
from verdict_jax.protocols import Candidate
from verdict_jax.rules import RuleParameters
from verdict_jax.trace import SCHEMA, RuleSettings, Step, StepCost, Trace
from verdict_jax.tree import PanelIdentity

JUDGES = ("visual", "logical", "contextual")

STEP = Step(
    candidates=(Candidate("It is [red].\nSo"), Candidate("It is blue."), Candidate(" ")),
    failures=(None, None, "empty candidate"),
    raw=((0.9, 0.3, 0.9), (0.7, 0.7, None), (None, None, None)),
    consensus=((0.80, 0.54, 0.77), (0.7, 0.7, None), (None, None, None)),
    mean=(0.70766, 0.7, None),
    dispersion=(0.10871, 0.0, None),
    criterion=(0.70766, 0.7, None),
    accepted=(False, True, False),
    chosen=1,
    fallback=False,
    unjudged=False,
    final=False,
    cost=StepCost(0.0, 0.0, 0.0, True, 1),
)

TRACE = Trace(
    schema=SCHEMA,
    item="q",
    question="what color?",
    choices=(),
    gold=None,
    images=("a.png", "b.png"),
    model_id="toy",
    settings={},
    panels=(PanelIdentity("a", JUDGES[:1]), PanelIdentity("b", JUDGES[1:])),
    rule="verdict",
    parameters=RuleSettings.of(RuleParameters()),
    n=3,
    max_steps=12,
    seed=0,
    steps=(STEP,),
    finish="answered",
    error=None,
    answer="blue",
)


def printed(step: Step, judges: tuple[str, ...] = JUDGES) -> list[list[str]]:
    """The cells of each line of a step's table, the head first."""
    console = Console(file=io.StringIO(), width=140)
    with console.capture() as captured:
        console.print(step_table(step, 3, judges))
    title, *lines = captured.get().splitlines()
    assert title.strip() == "step 3"
    # two blanks stand between columns, one between the scores of a cell
    rows = [re.split(r"\s{2,}", line.strip()) for line in lines if line.strip(" ─")]
    return rows


def test_a_step_shows_scores_raw_and_settled_and_what_became_of_each_candidate() -> None:
    assert printed(STEP) == [
        ["candidate", "V L C", "consensus V L C", "mean", "dispersion", "outcome"],
        ["It is [red]. So", "0.90 0.30 0.90", "0.80 0.54 0.77", "0.708", "0.109", "rejected"],
        ["It is blue.", "0.70 0.70 -", "0.70 0.70 -", "0.700", "0.000", "taken"],
        ["- - -", "- - -", "-", "-", "empty candidate"],
    ]


def test_judges_of_ones_own_keep_their_names() -> None:
    head = printed(STEP, ("short", "logical", "polite"))[0]
    assert head[1:3] == ["short L polite", "consensus short L polite"]


def test_without_judges_there_is_nothing_settled_to_show() -> None:
    bare = replace(STEP, raw=((), (), ()), consensus=((), (), ()), accepted=(True, True, False))
    assert printed(bare, ()) == [
        ["candidate", "outcome"],
        ["It is [red]. So", "accepted"],
        ["It is blue.", "taken"],
        ["empty candidate"],
    ]


def test_a_fallback_and_a_step_that_nobody_judged_are_named() -> None:
    fallback = replace(STEP, accepted=(False,) * 3, chosen=0, fallback=True)
    assert printed(fallback)[1][-1] == "taken (fallback)"
    assert printed(fallback)[2][-1] == "rejected"
    failures = ("1 of 3 judges gave a score",) * 2 + ("empty candidate",)
    unjudged = replace(fallback, failures=failures, fallback=False, unjudged=True)
    assert printed(unjudged)[1][-1] == "taken (unjudged)"


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "answer: blue"),
        ({"gold": "Blue"}, "answer: blue   gold: Blue   right"),
        ({"gold": "red"}, "answer: blue   gold: red   wrong"),
        ({"choices": ("red", "blue"), "answer": "B", "gold": "blue"},
         "answer: B   gold: blue   right"),
        ({"choices": ("red", "blue"), "answer": "A", "gold": "B"}, "answer: A   gold: B   wrong"),
        ({"finish": "error", "error": "x.png: no such file", "answer": None, "gold": "red"},
         "error: x.png: no such file"),
        ({"answer": None}, "no answer: its answer could not be read"),
        ({"answer": None, "gold": "red"},
         "no answer: its answer could not be read   gold: red   wrong"),
        *(
            ({"finish": finish, "answer": None, "gold": "red"},
             f"no answer: {reason}   gold: red   wrong")
            for finish, reason in FINISHES.items()
        ),
    ],
)  # fmt: skip
def test_the_last_line_says_the_answer_or_why_there_is_none_beside_the_gold(
    changes: dict[str, str | None], line: str
) -> None:
    assert verdict_line(replace(TRACE, **changes)).plain == line  # pyright: ignore


def test_every_way_for_a_chain_to_lack_an_answer_has_words_of_its_own() -> None:
    assert set(FINISHES) == {"eos", "length", "cap", "empty"}
    assert len(set(FINISHES.values())) == len(FINISHES)


def test_a_trace_is_pictures_question_choices_steps_and_answer() -> None:
    asked = replace(TRACE, choices=("red", "[blue]"), answer="B", steps=(STEP, STEP))
    console = Console(file=io.StringIO(), width=140)
    with console.capture() as captured:
        show(asked, console)
    lines = captured.get().splitlines()
    assert lines[:3] == ["picture: a.png", "picture: b.png", "question: what color?"]
    assert [line.strip() for line in lines[3:6]] == ["A. red", "B. [blue]", "step 1"]
    assert [line.strip() for line in lines].count("step 2") == 1
    assert lines[-1] == "answer: B"
    assert len(render(asked).renderables) == 3 + 2 + 2 + 1
