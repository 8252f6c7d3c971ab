"""The grammar: what keeps to it, what breaks it and how, and that the parser never raises."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svrl_jax.grammar import (
    FinalAnswer,
    ImageSearch,
    Malformed,
    TextSearch,
    Turn,
    normalize_query,
    parse,
    render,
    unique_queries,
)

K = 3
R = "<reason>I look.</reason>"

WELL_FORMED: list[tuple[str, bool, Turn]] = [
    (f"{R}<answer>Oslo</answer>", False, Turn("I look.", None, "", FinalAnswer("Oslo"))),
    (f"\n{R}\n\n<answer> Oslo \n</answer> \n", False,
     Turn("I look.", None, "", FinalAnswer("Oslo"))),
    ("<reason></reason><answer>x</answer>", False, Turn("", None, "", FinalAnswer("x"))),
    (f"{R}<search><img></search>", False, Turn("I look.", None, "", ImageSearch())),
    (f"{R}<text_search>a b\n c\n\nd</text_search>", False,
     Turn("I look.", None, "", TextSearch(("a b", "c", "d")))),
    (f"{R}<text_search>a\na</text_search>", False,
     Turn("I look.", None, "", TextSearch(("a", "a")))),
    (f"{R}<verify>1,0,1</verify> It says so.\n<answer>x</answer>", True,
     Turn("I look.", (True, False, True), "It says so.", FinalAnswer("x"))),
    (f"{R}<verify> 0 , 1 </verify><answer>x</answer>", True,
     Turn("I look.", (False, True), "", FinalAnswer("x"))),
    # more marks than snippets: the reward pays for it, the format does not
    (f"{R}<verify>0,0,0,0,0,0,0</verify>none<text_search>q</text_search>", True,
     Turn("I look.", (False,) * 7, "none", TextSearch(("q",)))),
    # what looks like a tag and is none
    ("<reason>a < b, <b>bold</b>, <Reason>, <reason </reason><answer>1 < 2</answer>", False,
     Turn("a < b, <b>bold</b>, <Reason>, <reason", None, "", FinalAnswer("1 < 2"))),
    (f"{R}<answer>the assistant said</answer>", False,
     Turn("I look.", None, "", FinalAnswer("the assistant said"))),
    ("<reason>line\none</reason><answer>two\nlines</answer>", False,
     Turn("line\none", None, "", FinalAnswer("two\nlines"))),
]  # fmt: skip


@pytest.mark.parametrize(("text", "verify", "turn"), WELL_FORMED)
def test_what_keeps_to_the_grammar(text: str, verify: bool, turn: Turn) -> None:
    assert parse(text, K, verify) == turn


MALFORMED: list[tuple[str, bool, str, str | None]] = [
    ("", False, "no reason", None),
    ("   \n", False, "no reason", None),
    ("Oslo", False, "no reason", None),
    ("<answer>Oslo</answer>", False, "no reason", "Oslo"),
    (f"Well. {R}<answer>Oslo</answer>", False, "text outside", "Oslo"),
    (f"{R} so <answer>Oslo</answer>", False, "text outside", "Oslo"),
    (f"{R}<answer>Oslo</answer> done", False, "after the action", "Oslo"),
    (f"{R}<answer>Oslo</answer><answer>Rome</answer>", False, "after the action", None),
    (f"{R}<answer>Oslo</answer><text_search>q</text_search>", False, "after the action", "Oslo"),
    (f"{R}<text_search>q</text_search><answer>Oslo</answer>", False, "after the action", "Oslo"),
    (f"{R}<search><img></search><search><img></search>", False, "after the action", None),
    (f"{R}{R}<answer>Oslo</answer>", False, "tag in text", "Oslo"),
    (f"{R}", False, "no action", None),
    (f"{R} I think", False, "no action", None),
    ("<reason>I look.", False, "not closed", None),
    ("<reason>I look.<answer>Oslo</answer>", False, "tag in text", "Oslo"),
    ("<reason><reason>I</reason></reason><answer>Oslo</answer>", False, "tag in text", "Oslo"),
    ("<reason>I<answer>Oslo</answer></reason>", False, "tag in text", "Oslo"),
    ("</reason>I look.<reason><answer>Oslo</answer>", False, "no reason", "Oslo"),
    (f"{R}<answer>Oslo", False, "not closed", None),
    (f"{R}<answer>Oslo</answer", False, "not closed", None),
    (f"{R}<answer></answer>", False, "empty answer", None),
    (f"{R}<answer> \n </answer>", False, "empty answer", None),
    (f"{R}<answer><answer>Oslo</answer></answer>", False, "tag in text", None),
    (f"{R}<answer>Oslo<verify>1</verify></answer>", False, "tag in text", None),
    (f"{R}<text_search></text_search>", False, "no query", None),
    (f"{R}<text_search>\n \n</text_search>", False, "no query", None),
    (f"{R}<text_search>a\nb\nc\nd</text_search>", False, "too many queries", None),
    (f"{R}<text_search>a<search><img></search></text_search>", False, "tag in text", None),
    (f"{R}<text_search>a", False, "not closed", None),
    (f"{R}<search><img>", False, "tag in text", None),
    (f"{R}<search> <img> </search>", False, "tag in text", None),
    (f"{R}<img>", False, "tag in text", None),
    (f"{R}<search>a query</search>", False, "tag in text", None),
    (f"{R}<verify>1</verify><answer>Oslo</answer>", False, "verify not due", "Oslo"),
    (f"{R}<answer>Oslo</answer>", True, "no verify", "Oslo"),
    (f"<verify>1</verify>{R}<answer>Oslo</answer>", True, "no reason", "Oslo"),
    (f"{R}<verify></verify><answer>Oslo</answer>", True, "bits", "Oslo"),
    (f"{R}<verify>1,2</verify><answer>Oslo</answer>", True, "bits", "Oslo"),
    (f"{R}<verify>1 0</verify><answer>Oslo</answer>", True, "bits", "Oslo"),
    (f"{R}<verify>1,,0</verify><answer>Oslo</answer>", True, "bits", "Oslo"),
    (f"{R}<verify>10</verify><answer>Oslo</answer>", True, "bits", "Oslo"),
    (f"{R}<verify>true</verify><answer>Oslo</answer>", True, "bits", "Oslo"),
    (f"{R}<verify>1<answer>Oslo</answer>", True, "tag in text", "Oslo"),
    (f"{R}<verify>1</verify>yes<verify>0</verify><answer>Oslo</answer>", True, "tag in text",
     "Oslo"),
    (f"{R}so<verify>1</verify><answer>Oslo</answer>", True, "text outside", "Oslo"),
    (f"{R}<verify>1</verify>yes", True, "no action", None),
    (f"{R}<information>1. Oslo</information><answer>Oslo</answer>", False, "tag in text", "Oslo"),
    ("<reason>I</reason></reason><answer>Oslo</answer>", False, "tag in text", "Oslo"),
    ("<REASON>I</REASON><ANSWER>Oslo</ANSWER>", False, "no reason", None),
]  # fmt: skip


@pytest.mark.parametrize(("text", "verify", "fault", "answer"), MALFORMED)
def test_what_breaks_the_grammar(text: str, verify: bool, fault: str, answer: str | None) -> None:
    assert parse(text, K, verify) == Malformed(fault, answer)  # pyright: ignore


PIECES = st.sampled_from(
    [
        "<reason>", "</reason>", "<verify>", "</verify>", "<text_search>", "</text_search>",
        "<search>", "<img>", "</search>", "<search><img></search>", "<answer>", "</answer>",
        "<information>", "</information>", "1", "0", ",", "\n", " ", "<", ">", "</", "query",
        "Oslo", "\u2028", "\x00", "\ud83c\udf89",
    ]
)  # fmt: skip


@given(st.lists(PIECES, max_size=24).map("".join) | st.text(max_size=80), st.booleans())
@settings(deadline=None, max_examples=500)
def test_the_parser_never_raises(text: str, verify: bool) -> None:
    turn = parse(text, K, verify)
    if isinstance(turn, Turn):
        assert (turn.verify is not None) == verify
        # what was read is written and read again the same
        assert parse(render(turn), K, verify) == turn
    else:
        assert turn.fault


PLAIN = st.text(st.characters(exclude_characters="<\r", codec="utf-8"), max_size=30).map(str.strip)
QUERIES = st.lists(
    st.text(st.characters(categories=["L", "N", "Zs"]), min_size=1, max_size=12)
    .map(lambda text: " ".join(text.split()))
    .filter(bool),
    min_size=1,
    max_size=K,
)
ACTIONS = (
    st.builds(TextSearch, QUERIES.map(tuple))
    | st.builds(ImageSearch)
    | st.builds(FinalAnswer, PLAIN.filter(bool))
)


@given(PLAIN, st.none() | st.lists(st.booleans(), min_size=1).map(tuple), PLAIN, ACTIONS)
@settings(deadline=None, max_examples=300)
def test_what_is_written_is_read_back(
    reason: str,
    verify: tuple[bool, ...] | None,
    justification: str,
    action: TextSearch | ImageSearch | FinalAnswer,
) -> None:
    turn = Turn(reason, verify, justification if verify is not None else "", action)
    assert parse(render(turn), K, verify is not None) == turn


def test_long_hostile_turns_are_read_in_no_time() -> None:
    for piece in ("<reason>", "<answer>", "<verify>1,", "<search><img>", "<"):
        assert isinstance(parse(piece * 50_000, K, True), Malformed)


@pytest.mark.parametrize(
    ("query", "normal"),
    [
        ("  Who  is\tit ", "who is it"),
        ("ＦＬＡＧ of Norway", "flag of norway"),
        ("Straße", "strasse"),
        ("\u00a0", ""),
        ("\ufb01nland", "finland"),
    ],
)
def test_queries_are_compared_by_what_they_say(query: str, normal: str) -> None:
    assert normalize_query(query) == normal


def test_unique_queries_keep_the_first_spelling() -> None:
    assert unique_queries(["Oslo ", "oslo", " ", "Rome", "OSLO"]) == ("Oslo ", "Rome")
