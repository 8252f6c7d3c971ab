"""Web search in Serper's shape, in SerpApi's shape, for text, for pictures."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

import pytest
from PIL import Image

from svrl_jax.search.http_client import RetryPolicy
from svrl_jax.search.protocol import ImageHit, ImageTool, SearchError, TextTool
from svrl_jax.search.web import SerpApiSearch, SerperSearch
from svrl_jax.search.web_images import SerpApiLens, SerperLens
from svrl_jax.trajectory import Snippet

from .local_server import Answer, LocalServer, as_json, serve

ONCE = RetryPolicy(attempts=1)
SECRET = "s3cr3t-key"
PICTURE = Image.new("RGB", (4, 4), "red")
ADDRESS = "https://pictures.example/1.png?a=b&c"


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERPER_API_KEY", SECRET)
    monkeypatch.setenv("SERPAPI_API_KEY", SECRET)


def serper(server: LocalServer) -> TextTool:
    return SerperSearch(ONCE, url=f"{server.url}/search")


def serpapi(server: LocalServer) -> TextTool:
    return SerpApiSearch(ONCE, url=f"{server.url}/search.json")


def serper_lens(server: LocalServer) -> ImageTool:
    return SerperLens(lambda _: ADDRESS, ONCE, url=f"{server.url}/lens")


def serpapi_lens(server: LocalServer) -> ImageTool:
    return SerpApiLens(lambda _: ADDRESS, ONCE, url=f"{server.url}/search.json")


def page(link: str, **fields: object) -> dict[str, object]:
    return {"title": f"title {link}", "link": link, "snippet": f"about {link}", **fields}


TEXT = [(serper, "organic", "serper"), (serpapi, "organic_results", "serpapi")]
IMAGES = [
    (serper_lens, "organic", "thumbnailUrl", "serper lens"),
    (serpapi_lens, "visual_matches", "thumbnail", "serpapi lens"),
]


@pytest.mark.parametrize(("tool", "results", "source"), TEXT)
def test_pages(tool: Callable[[LocalServer], TextTool], results: str, source: str) -> None:
    bare = {"title": "bare", "link": "c"}
    answer = {results: [page("b"), page("a"), page("b"), bare, page("d")], "credits": 1}
    with serve(as_json(answer)) as server:
        assert tool(server).search("Oslo", 3) == (
            Snippet("b", "title b", "about b", source),
            Snippet("a", "title a", "about a", source),
            Snippet("c", "bare", "", source),
        )


@pytest.mark.parametrize(("tool", "results", "thumbnail", "source"), IMAGES)
def test_pictures(
    tool: Callable[[LocalServer], ImageTool], results: str, thumbnail: str, source: str
) -> None:
    answer = {results: [page("b", **{thumbnail: "small b"}), page("a"), page("b"), page("c")]}
    with serve(as_json(answer)) as server:
        assert tool(server).search(PICTURE, 2) == (
            ImageHit("b", "title b", "small b", source),
            ImageHit("a", "title a", "", source),
        )


def test_what_serper_is_sent() -> None:
    with serve(as_json({"organic": []})) as server:
        assert serper(server).search(" OSLO 国\n", 4) == ()
        assert serper_lens(server).search(PICTURE, 4) == ()
    text, image = server.seen
    assert (text.method, text.path) == ("POST", "/search")
    assert json.loads(text.body) == {"q": "oslo 国", "num": 4}
    assert (image.method, image.path) == ("POST", "/lens")
    assert json.loads(image.body) == {"url": ADDRESS}
    assert {seen.headers["X-API-KEY"] for seen in server.seen} == {SECRET}


def test_what_serpapi_is_sent() -> None:
    with serve(as_json({"organic_results": [], "visual_matches": []})) as server:
        assert serpapi(server).search(" OSLO 国\n&api_key=x", 4) == ()
        assert serpapi_lens(server).search(PICTURE, 4) == ()
    text, image = (urlsplit(seen.path) for seen in server.seen)
    assert {seen.method for seen in server.seen} == {"GET"}
    assert text.path == image.path == "/search.json"
    assert parse_qs(text.query) == {
        "engine": ["google"], "q": ["oslo 国 &api_key=x"], "num": ["4"], "api_key": [SECRET],
    }  # fmt: skip
    assert parse_qs(image.query) == {
        "engine": ["google_lens"], "url": [ADDRESS], "api_key": [SECRET],
    }  # fmt: skip


def test_serpapi_tells_that_there_is_nothing_as_an_error() -> None:
    nothing = {"error": "Google hasn't returned any results for this query."}
    with serve(as_json(nothing)) as server:
        assert serpapi(server).search("q", 3) == ()
    with serve(as_json({"error": "Your account has run out of searches."})) as server:
        with pytest.raises(SearchError, match="malformed"):
            serpapi(server).search("q", 3)


@pytest.mark.parametrize(
    "shape",
    [
        lambda name: {},
        lambda name: [],
        lambda name: {name: None},
        lambda name: {name: {}},
        lambda name: {name: [3]},
        lambda name: {name: [{"title": "a"}]},
        lambda name: {name: [{"link": "a"}]},
        lambda name: {name: [page("a", title=3)]},
        lambda name: {name: [page("a", snippet=None, thumbnail=None, thumbnailUrl=None)]},
    ],
)
def test_another_shape(shape: Callable[[str], object]) -> None:
    for tool, results, _ in TEXT:
        with serve(as_json(shape(results))) as server:
            with pytest.raises(SearchError, match="malformed"):
                tool(server).search("q", 3)
    for lens, results, _, _ in IMAGES:
        with serve(as_json(shape(results))) as server:
            with pytest.raises(SearchError, match="malformed"):
                lens(server).search(PICTURE, 3)


@pytest.mark.parametrize("query", ["x " * 25_000, "国" * 50_000, 'a "b\x00\ud800', "site:a -b"])
def test_any_query_is_plain_text(query: str) -> None:
    for tool, results, _ in TEXT:
        with serve(as_json({results: [page("a")]})) as server:
            assert len(tool(server).search(query, 1)) == 1
            # four bytes, percent-encoded, for every character, at the very most
            assert len(server.seen[0].path) < 12 * 2048 + 200


def test_empty_queries_ask_nobody() -> None:
    for tool, results, _ in TEXT:
        with serve(as_json({results: [page("a")]})) as server:
            assert tool(server).search(" \x00", 1) == ()
        assert not server.seen


@pytest.mark.parametrize("status", [401, 500])
def test_no_error_holds_the_key_though_the_server_repeats_it(status: int) -> None:
    body = json.dumps({"error": f"bad key {SECRET}"}).encode()
    for tool, _, name in TEXT:
        with serve(Answer(status, body)) as server:
            used = tool(server)
            with pytest.raises(SearchError) as raised:
                used.search("q", 3)
        assert str(raised.value).startswith(name)
        told = "".join(traceback.format_exception(raised.value)) + repr(raised.value)
        assert SECRET not in told + repr(used) + used.name + used.version + str(vars(used))


@pytest.mark.parametrize("key", [None, "", "  ", "two words", "line\nbreak", "schlüssel"])
def test_no_key_no_tool(key: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("SERPER_API_KEY", "SERPAPI_API_KEY"):
        if key is None:
            monkeypatch.delenv(variable)
        else:
            monkeypatch.setenv(variable, key)
    with serve(as_json({})) as server:
        for make in (serper, serpapi, serper_lens, serpapi_lens):
            with pytest.raises(SearchError, match="_API_KEY") as raised:
                make(server)
            assert raised.value.cause == "key"
            assert not (key or "").strip() or str(key) not in str(raised.value)
    assert not server.seen
