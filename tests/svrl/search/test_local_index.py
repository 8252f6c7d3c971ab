"""Text search over a local corpus."""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svrl_jax.search.local_index import MAX_TERMS, LocalIndex, terms
from svrl_jax.trajectory import Snippet


def snippet(key: str, title: str, text: str) -> Snippet:
    return Snippet(key, title, text, "test")


CORPUS = (
    snippet("no-capital", "Norway: capital", "Oslo is the capital of Norway."),
    snippet("no-area", "Norway: area", "The land covers 323,802 square kilometres."),
    snippet("it-capital", "Italy: capital", "Rome has been the capital since 1871."),
    snippet("ci-capital", "Côte d'Ivoire: capital", "Yamoussoukro"),
    snippet("cn-capital", "中国: 首都", "中国的首都是北京。"),
    snippet("de-capital", "Deutschland", "Die Hauptstadt heißt Berlin."),
)
INDEX = LocalIndex(CORPUS)


def ids(query: str, top_k: int = 3, index: LocalIndex = INDEX) -> list[str]:
    return [found.id for found in index.search(query, top_k)]


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("capital of Norway", "no-capital"),
        ("NORWAY AREA", "no-area"),
        ("Norway capitals", "no-capital"),
        ("Rome", "it-capital"),
        ("cote d'ivoire", "ci-capital"),
        ("CÔTE", "ci-capital"),
        ("北京", "cn-capital"),
        ("京", "cn-capital"),
        ("heisst", "de-capital"),
        ("323802", None),
        ("323,802", "no-area"),
        ("zebra", None),
    ],
)
def test_the_best_snippet(query: str, first: str | None) -> None:
    assert ids(query)[:1] == ([first] if first else [])


def test_snippets_come_back_whole() -> None:
    assert INDEX.search("Oslo", 1) == (CORPUS[0],)


def test_more_of_the_query_ranks_higher() -> None:
    assert ids("capital Italy", 6)[0] == "it-capital"
    assert set(ids("capital Italy", 6)) == {"it-capital", "no-capital", "ci-capital"}


def test_a_rare_word_counts_more_than_a_frequent_one() -> None:
    corpus = [snippet(f"{i}", "", "common thing") for i in range(8)]
    index = LocalIndex([*corpus, snippet("rare", "", "rare thing")])
    assert ids("common rare", 1, index) == ["rare"]


@pytest.mark.parametrize("order", [0, 1, 2])
def test_equal_scores_are_ordered_by_id(order: int) -> None:
    corpus = [snippet(key, "same", "words") for key in ("b", "a10", "a9", "c", "B")]
    random.Random(order).shuffle(corpus)
    index = LocalIndex(corpus)
    assert ids("words", 5, index) == ["B", "a10", "a9", "b", "c"]
    assert ids("words", 2, index) == ["B", "a10"]


def test_a_short_corpus() -> None:
    assert len(ids("capital", 10**12)) == 3
    assert ids("capital", 10, LocalIndex([])) == []


@pytest.mark.parametrize("top_k", [0, -1])
def test_at_least_one_hit_is_asked_for(top_k: int) -> None:
    with pytest.raises(ValueError, match="top_k"):
        INDEX.search("Oslo", top_k)


PLAIN = [
    '"Oslo', "Oslo AND", "NOT Oslo", "Oslo OR (", "NEAR(Oslo, 2)", "title:Oslo", "Oslo*", "^Oslo",
    "-Oslo", "Oslo + -", "{title text}: Oslo", "'Oslo'; DROP TABLE corpus; --", "Oslo\x00Norway",
    "Oslo \ud800", "os\u00adlo Oslo", "Oslo 家", "Oslo " * 10_000, "Oslo" + " x" * 25_000,
    "Oslo_Norway", "🙂Oslo🙂", "%Oslo%", "\\Oslo",
]  # fmt: skip


@pytest.mark.parametrize("query", PLAIN)
def test_a_query_has_no_operators(query: str) -> None:
    assert ids(query)[0] == "no-capital"


@pytest.mark.parametrize(
    "query", ["", " \t\n", "\x00", '"', "...", "🙂", "\ud800", "_", "y" * 50_000, "\u0301", "AND"]
)
def test_nothing_to_look_up(query: str) -> None:
    assert ids(query) == []


@settings(deadline=None, max_examples=100)
@given(st.text(st.characters(codec=None)))
def test_no_query_is_an_error(query: str) -> None:
    index = LocalIndex([snippet("a", query.encode("utf-8", "replace").decode(), "x")])
    found = index.search(query, 3)
    assert len(found) == (1 if terms(query) else 0) or "\ud800" <= max(query, default="")


def test_words_beyond_the_limit_are_not_looked_up() -> None:
    filler = " ".join(f"w{i}" for i in range(MAX_TERMS - 1))
    assert ids(f"{filler} Oslo") == ["no-capital"]
    assert ids(f"{filler} w Oslo") == []


def test_an_id_stands_once() -> None:
    with pytest.raises(ValueError, match="'no-area' stands twice"):
        LocalIndex([*CORPUS, CORPUS[1]])


def test_the_version_tells_the_corpus() -> None:
    assert LocalIndex(CORPUS[::-1]).version == INDEX.version
    changed: Sequence[Snippet] = [*CORPUS[:-1], snippet("de-capital", "Deutschland", "Bonn.")]
    versions = {INDEX.version, LocalIndex(changed).version, LocalIndex(CORPUS[1:]).version}
    assert len(versions) == 3
    # a field's end counts
    assert LocalIndex([snippet("a", "bc", "")]).version != LocalIndex([snippet("a", "b", "c")])


def test_several_threads() -> None:
    queries = ["Oslo", "Rome", "北京", "Berlin"] * 50
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda query: ids(query, 1), queries))
    assert found == [ids(query, 1) for query in queries]
