"""The cache before a tool, with entries in SQLite, with entries in DynamoDB."""

from __future__ import annotations

import itertools
import json
import logging
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from svrl_jax.search.cache import CacheError, CacheKey, Store, cached_images, cached_text
from svrl_jax.search.dynamodb_store import DynamoStore, create_table
from svrl_jax.search.protocol import ImageHit, SearchError
from svrl_jax.search.sqlite_store import SqliteStore
from svrl_jax.trajectory import Snippet

from .conftest import dynamo_client

TABLES = itertools.count()
HITS = (
    Snippet("a", 'quoted "title"', "line\nbreak, 国, 🙂, </information>", "s"),
    Snippet("b", "", "", ""),
)


class Counting:
    """Finds the same hits for every query; fails while `broken`; keeps what it was asked."""

    def __init__(self, name: str = "tool", version: str = "1") -> None:
        self.name = name
        self.version = version
        self.broken = False
        self.calls: list[tuple[str, int]] = []

    def search(self, query: str, top_k: int) -> tuple[Snippet, ...]:
        self.calls.append((query, top_k))
        if self.broken:
            raise SearchError(self.name, "server error", "HTTP 500")
        return HITS[:top_k]


class Pictures:
    name = "pictures"
    version = "1"

    def __init__(self) -> None:
        self.calls = 0

    def search(self, query: Image.Image, top_k: int) -> tuple[ImageHit, ...]:
        self.calls += 1
        return (ImageHit(f"{self.calls}", "title", "thumbnail", "source"),)


@pytest.fixture(params=["sqlite", "dynamodb"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Store]]:
    """Opens the same store again and again."""
    if request.param == "sqlite":
        opened: list[SqliteStore] = []

        def open_sqlite() -> Store:
            opened.append(SqliteStore(tmp_path / "cache.sqlite"))
            return opened[-1]

        yield open_sqlite
        for store in opened:
            store.close()
    else:
        client = request.getfixturevalue("dynamo")
        table = f"cache-{next(TABLES)}"
        create_table(client, table)
        yield lambda: DynamoStore(client, table)


def key(**changed: Any) -> CacheKey:
    fields: dict[str, Any] = {
        "backend": "tool", "version": "1", "kind": "text", "query": "q", "top_k": 3,
    }  # fmt: skip
    return CacheKey(**{**fields, **changed})


def test_a_search_is_made_once(open_store: Callable[[], Store]) -> None:
    tool = Counting()
    first = cached_text(tool, open_store())
    assert first.search("Oslo", 2) == first.search("  OSLO ", 2) == HITS
    assert tool.calls == [("Oslo", 2)]
    # a rerun, of another process for all it knows
    rerun = Counting()
    rerun.broken = True
    assert cached_text(rerun, open_store()).search("oslo", 2) == HITS
    assert rerun.calls == []


def test_a_result_without_hits_is_one(open_store: Callable[[], Store]) -> None:
    class Nothing(Counting):
        def search(self, query: str, top_k: int) -> tuple[Snippet, ...]:
            return super().search(query, top_k)[:0]

    tool = Nothing()
    cached = cached_text(tool, open_store())
    assert cached.search("q", 2) == cached.search("q", 2) == ()
    assert len(tool.calls) == 1


def test_an_error_is_not_stored(open_store: Callable[[], Store]) -> None:
    tool = Counting()
    tool.broken = True
    cached = cached_text(tool, open_store())
    for _ in range(2):
        with pytest.raises(SearchError, match="HTTP 500"):
            cached.search("q", 1)
    tool.broken = False
    assert cached.search("q", 1) == HITS[:1]
    assert len(tool.calls) == 3


def test_pictures_are_told_apart_by_their_pixels(open_store: Callable[[], Store]) -> None:
    tool = Pictures()
    cached = cached_images(tool, open_store())
    red, blue = (Image.new("RGB", (8, 8), name) for name in ("red", "blue"))
    first = cached.search(red, 3)
    assert first == (ImageHit("1", "title", "thumbnail", "source"),)
    assert cached.search(blue, 3) != first
    assert cached.search(red.copy(), 3) == first
    assert tool.calls == 2


DIFFERENT: list[dict[str, Any]] = [
    {}, {"backend": "other"}, {"version": "2"}, {"kind": "image"}, {"query": "r"}, {"top_k": 2},
    # what runs together if fields are only joined
    {"backend": "tool1", "version": ""}, {"backend": "tool\", \"1"}, {"query": "q\", 3]"},
    {"query": "国" * 2048}, {"query": "国" * 2047 + "家"},
]  # fmt: skip


def test_every_field_of_a_key_counts(open_store: Callable[[], Store]) -> None:
    store = open_store()
    keys = [key(**changed) for changed in DIFFERENT]
    assert [store.get(one) for one in keys] == [None] * len(keys)
    for place, one in enumerate(keys):
        assert store.put(one, f"value {place}") == f"value {place}"
    assert [open_store().get(one) for one in keys] == [f"value {i}" for i in range(len(keys))]


def test_the_first_entry_stands(open_store: Callable[[], Store]) -> None:
    one, other = open_store(), open_store()
    assert one.put(key(), "first") == "first"
    assert other.put(key(), "second") == "first"
    assert one.get(key()) == "first"


def test_who_comes_second_goes_on_with_the_first_result(open_store: Callable[[], Store]) -> None:
    store = open_store()

    class Overtaken(Counting):
        def search(self, query: str, top_k: int) -> tuple[Snippet, ...]:
            cached_text(Counting(), store).search(query, top_k)
            return super().search(query, top_k)[::-1]

    assert cached_text(Overtaken(), store).search("q", 2) == HITS


def test_name_with_version_are_the_tools(open_store: Callable[[], Store]) -> None:
    store = open_store()
    old, new = Counting(version="1"), Counting(version="2")
    cached_text(old, store).search("q", 1)
    cached = cached_text(new, store)
    assert (cached.name, cached.version) == ("tool", "2")
    cached.search("q", 1)
    assert len(new.calls) == 1


def test_empty_queries_reach_neither_store_nor_tool(open_store: Callable[[], Store]) -> None:
    tool = Counting()
    assert cached_text(tool, open_store()).search(" \x00", 1) == ()
    assert tool.calls == []
    with pytest.raises(ValueError, match="top_k"):
        cached_text(tool, open_store()).search("q", 0)


@pytest.mark.parametrize(
    "value",
    ["", "{", "null", '{"schema": "search-result/1"}', '{"schema": "search-result/2", "hits": []}',
     '{"schema": "search-result/1", "hits": [{"id": "a"}]}',
     '{"schema": "search-result/1", "hits": [{"id": 1, "title": "", "text": "", "source": ""}]}'],
)  # fmt: skip
def test_an_entry_that_is_none_is_an_error(open_store: Callable[[], Store], value: str) -> None:
    store, tool = open_store(), Counting()
    store.put(key(), value)
    with pytest.raises(SearchError) as raised:
        cached_text(tool, store).search("q", 3)
    assert raised.value.cause == "cache"
    assert tool.calls == []


def test_entries_are_json(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "cache.sqlite")
    cached_text(Counting(), store).search("Q", 1)
    store.close()
    database = sqlite3.connect(tmp_path / "cache.sqlite")
    ((stored_key, value),) = database.execute("SELECT * FROM search_cache")
    assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    database.close()
    assert json.loads(stored_key) == ["tool", "1", "text", "q", 1]
    assert json.loads(value) == {
        "schema": "search-result/1",
        "hits": [{"id": "a", "title": HITS[0].title, "text": HITS[0].text, "source": "s"}],
    }


class Failing:
    """A store that fails at what is named."""

    def __init__(self, at: str) -> None:
        self.at = at

    def get(self, key: CacheKey) -> str | None:
        if self.at == "get":
            raise CacheError("disk gone")
        return None

    def put(self, key: CacheKey, value: str) -> str:
        raise CacheError("disk full")


def test_a_store_that_cannot_be_read_fails_the_search() -> None:
    tool = Counting()
    with pytest.raises(SearchError, match=r"tool: cache \(disk gone\)"):
        cached_text(tool, Failing("get")).search("q", 1)
    assert tool.calls == []


def test_a_store_that_cannot_be_written_keeps_the_result(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        assert cached_text(Counting(), Failing("put")).search("q", 1) == HITS[:1]
    assert "tool: a result was not stored: disk full" in caplog.text


def test_files_that_are_no_cache(tmp_path: Path) -> None:
    with pytest.raises(CacheError, match="folder"):
        SqliteStore(tmp_path / "no folder" / "cache.sqlite")
    (tmp_path / "text").write_text("not a database, and long enough to be seen as none" * 20)
    with pytest.raises(CacheError, match="not a database"):
        SqliteStore(tmp_path / "text")


def test_dynamodb_that_fails(dynamo: Any) -> None:
    absent = DynamoStore(dynamo, "absent")
    with pytest.raises(CacheError, match="absent: ResourceNotFoundException"):
        absent.get(key())
    with pytest.raises(CacheError, match="absent: ResourceNotFoundException"):
        absent.put(key(), "value")
    nobody = DynamoStore(dynamo_client("http://127.0.0.1:9"), "table")
    with pytest.raises(CacheError, match="table: EndpointConnectionError"):
        nobody.get(key())
    with pytest.raises(CacheError, match="table: EndpointConnectionError"):
        nobody.put(key(), "value")
    create_table(dynamo, "twice")
    with pytest.raises(CacheError, match="ResourceInUseException"):
        create_table(dynamo, "twice")


def test_a_table_with_other_items(dynamo: Any) -> None:
    create_table(dynamo, "foreign")
    store = DynamoStore(dynamo, "foreign")
    store.put(key(), "value")
    (item,) = dynamo.scan(TableName="foreign")["Items"]
    assert json.loads(item["of"]["S"]) == ["tool", "1", "text", "q", 3]
    del item["value"]
    dynamo.put_item(TableName="foreign", Item=item)
    with pytest.raises(CacheError, match="no entry"):
        store.get(key())


PROCESSES, ENTRIES = 8, 1250

# each process also writes what its neighbour writes, with another value
WRITER = """
import sys
from pathlib import Path
from svrl_jax.search.cache import CacheKey
from svrl_jax.search.sqlite_store import SqliteStore
path, process, processes, entries = Path(sys.argv[1]), *map(int, sys.argv[2:])
store = SqliteStore(path)
for entry in range(entries):
    for owner in (process, (process + 1) % processes):
        key = CacheKey("tool", "1", "text", f"{owner} {entry}", 1)
        stood = store.put(key, f"{process} {entry}")
        assert stood == store.get(key), stood
        assert stood in (f"{owner} {entry}", f"{(owner - 1) % processes} {entry}"), stood
store.close()
"""


def test_several_processes_lose_no_entry(tmp_path: Path) -> None:
    path = tmp_path / "cache.sqlite"
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), *map(str, (i, PROCESSES, ENTRIES))],
            stderr=subprocess.PIPE,
        )
        for i in range(PROCESSES)
    ]
    errors = [writer.communicate()[1].decode() for writer in writers]
    assert [writer.returncode for writer in writers] == [0] * PROCESSES, "\n".join(errors)
    database = sqlite3.connect(path)
    rows = dict(database.execute("SELECT key, value FROM search_cache").fetchall())
    assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    database.close()
    assert len(rows) == PROCESSES * ENTRIES == 10_000
    for stored_key, value in rows.items():
        owner, entry = (int(number) for number in json.loads(stored_key)[3].split())
        assert value in (f"{owner} {entry}", f"{(owner - 1) % PROCESSES} {entry}")
