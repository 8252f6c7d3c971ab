"""A retrieval server in Search-R1's format, with its known faults (R21)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import pytest

from svrl_jax.search.http_client import RetryPolicy
from svrl_jax.search.protocol import SearchError
from svrl_jax.search.retriever import HttpRetriever
from svrl_jax.trajectory import Snippet

from .local_server import as_json, serve

ONCE = RetryPolicy(attempts=1)
OSLO = {"id": "7", "contents": '"Norway"\nThe capital is Oslo.\nIt is old.'}
ROME = {"id": "12", "contents": '"Italy"\nThe capital is Rome.'}
NORWAY = Snippet("7", "Norway", "The capital is Oslo.\nIt is old.", "retriever")
ITALY = Snippet("12", "Italy", "The capital is Rome.", "retriever")


def scored(document: object, score: object) -> dict[str, object]:
    return {"document": document, "score": score}


def found(hits: Sequence[object], top_k: int = 5) -> tuple[Snippet, ...]:
    with serve(as_json({"result": [hits]})) as server:
        return HttpRetriever(f"{server.url}/retrieve", "v", ONCE).search("capital", top_k)


def test_what_is_asked() -> None:
    with serve(as_json({"result": [[]]})) as server:
        tool = HttpRetriever(f"{server.url}/retrieve", "wiki-18 e5", ONCE)
        assert tool.search("  Capital of\tNORWAY ", 3) == ()
    assert server.seen[0].path == "/retrieve"
    assert json.loads(server.seen[0].body) == {
        "queries": ["capital of norway"], "topk": 3, "return_scores": True,
    }  # fmt: skip
    assert (tool.name, tool.version) == ("retriever", "wiki-18 e5")


@pytest.mark.parametrize(
    ("hits", "snippets"),
    [
        ([scored(OSLO, 0.9), scored(ROME, 0.5)], (NORWAY, ITALY)),
        # a server may rank by distance
        ([scored(OSLO, 0.1), scored(ROME, 0.5)], (NORWAY, ITALY)),
        # return_scores is ignored: the items are the documents
        ([OSLO, ROME], (NORWAY, ITALY)),
        ([ROME, OSLO], (ITALY, NORWAY)),
        # equal scores: by id, which is a text
        ([scored(OSLO, 0.5), scored(ROME, 0.5)], (ITALY, NORWAY)),
        # index -1 is FAISS's padding, which the server takes for its last document
        ([scored(OSLO, 0.9), scored(ROME, -3.4028234663852886e38)], (NORWAY,)),
        ([scored(OSLO, 0.9), scored(ROME, 3.4028234663852886e38)], (NORWAY,)),
        ([scored(OSLO, 0.9), scored(None, 0.0), None], (NORWAY,)),
        # twice the same
        ([scored(OSLO, 0.9), scored(OSLO, 0.8), scored(ROME, 0.7)], (NORWAY, ITALY)),
        ([], ()),
    ],
)
def test_hits(hits: list[object], snippets: tuple[Snippet, ...]) -> None:
    assert found(hits) == snippets


def test_more_than_was_asked_for() -> None:
    assert found([scored(OSLO, 0.9), scored(ROME, 0.5)], top_k=1) == (NORWAY,)


@pytest.mark.parametrize(
    ("contents", "title", "text"),
    [
        ('"A "quoted" title"\ntext', 'A "quoted" title', "text"),
        ("bare title\ntext", "bare title", "text"),
        ("one line", "one line", ""),
        ('"', '"', ""),
        ("", "", ""),
        ("t\na\x00b\ud800c", "t", "a b c"),
    ],
)
def test_title_with_text(contents: str, title: str, text: str) -> None:
    (snippet,) = found([{"contents": contents}])
    assert (snippet.title, snippet.text, snippet.source) == (title, text, "retriever")


def test_a_document_without_an_id_is_known_by_its_contents() -> None:
    same, other = {"contents": "a\nb"}, {"contents": "a\nc"}
    first, second = found([same, same, other])
    assert first.id != second.id
    assert found([same])[0].id == first.id
    assert found([{"id": 7, "contents": "a"}])[0].id == "7"


@pytest.mark.parametrize(
    "answer",
    [
        {}, [], None, {"result": None}, {"result": []}, {"result": [[], []]}, {"result": [None]},
        {"result": [[3]]}, {"result": [[{}]]}, {"result": [[{"contents": None}]]},
        {"result": [[{"document": 3, "score": 1}]]},
        {"result": [[{"document": OSLO, "score": "high"}]]},
        {"result": [[{"document": OSLO, "score": True}]]},
        {"result": [[{"document": OSLO, "score": 10**400}]]},
        {"result": [[{"id": [], "contents": "a"}]]},
        {"detail": "out of memory"},
    ],
)  # fmt: skip
def test_another_shape(answer: object) -> None:
    with serve(as_json(answer)) as server, pytest.raises(SearchError) as raised:
        HttpRetriever(server.url, "v", ONCE).search("q", 3)
    assert raised.value.cause == "malformed"


ODD_QUERIES = [
    '"', "a AND (b OR", "NEAR(a b", "col:a*", "-a", "a\x00b", "国家首都", "\ud800", "x " * 25_000,
    "y" * 50_000, "🙂", "'; DROP TABLE corpus; --", "{\"q\": 1}", "a\r\nX-API-KEY: b",
]  # fmt: skip


@pytest.mark.parametrize("query", ODD_QUERIES)
def test_any_query_is_plain_text(query: str) -> None:
    with serve(as_json({"result": [[OSLO]]})) as server:
        hits = HttpRetriever(server.url, "v", ONCE).search(query, 1)
    assert hits == ((NORWAY,) if server.seen else ())


@pytest.mark.parametrize("query", ["", " \t\n", "\x00", "\u3000"])
def test_an_empty_query_asks_nobody(query: str) -> None:
    with serve(as_json({"result": [[OSLO]]})) as server:
        assert HttpRetriever(server.url, "v", ONCE).search(query, 1) == ()
    assert not server.seen


@pytest.mark.parametrize("top_k", [0, -1])
def test_at_least_one_hit_is_asked_for(top_k: int) -> None:
    with pytest.raises(ValueError, match="top_k"):
        HttpRetriever("http://127.0.0.1:9", "v", ONCE).search("q", top_k)


def test_a_server_that_dies_in_mid_run() -> None:
    slept: list[float] = []
    pause: Callable[[float], None] = slept.append
    with serve(as_json({"result": [[OSLO]]})) as server:
        tool = HttpRetriever(server.url, "v", RetryPolicy(attempts=3), pause)
        assert tool.search("q", 1) == (NORWAY,)
    with pytest.raises(SearchError, match=r"retriever: unreachable .*; 3 tries"):
        tool.search("q", 1)
    assert len(slept) == 2
