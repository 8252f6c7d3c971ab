"""The form in which queries reach a backend."""

from __future__ import annotations

import sys
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svrl_jax.search.plain_text import MAX_QUERY, plain, search_query


@pytest.mark.parametrize(
    ("query", "sent"),
    [
        (" The  CAPITAL\tof\nNorway ", "the capital of norway"),
        ("ＡＢＣ", "abc"),
        ("a\x00b\x1fc\x7fd\ud800e\udfff", "a b c d e"),
        ('"a" OR b', '"a" or b'),
        ("", ""),
        ("\x00", ""),
        ("国" * 50_000, "国" * MAX_QUERY),
        ("x " * 50_000, "x " * (MAX_QUERY // 2 - 1) + "x"),
    ],
)
def test_the_form(query: str, sent: str) -> None:
    assert search_query(query) == sent


def test_a_text_keeps_its_lines() -> None:
    assert plain("a\tb\r\nc\vd") == "a\tb\r\nc d"


def test_it_is_a_fixed_point_for_every_character() -> None:
    characters = [chr(code) for code in range(sys.maxunicode + 1)]
    assigned = [c for c in characters if unicodedata.category(c) not in ("Cn", "Co", "Cs")]
    for start in range(0, len(assigned), 500):
        once = search_query(" ".join(assigned[start : start + 500]))
        assert search_query(once) == once


@settings(deadline=None)
@given(st.text(st.characters(codec=None)))
def test_it_is_a_fixed_point(query: str) -> None:
    once = search_query(query)
    assert search_query(once) == once
    assert once.encode().decode() == once
