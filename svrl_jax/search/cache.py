"""The cache before a tool: each search is made once, a rerun repeats its results for nothing."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, runtime_checkable

from PIL import Image

from svrl_jax.search.protocol import (
    Hit,
    ImageHit,
    ImageTool,
    Query,
    SearchError,
    SearchTool,
    TextTool,
    check_top_k,
    query_key,
)
from svrl_jax.trajectory import Snippet
from verdict_jax.json_records import MalformedRecord, dumps, loads

_LOG = logging.getLogger(__name__)

Kind = Literal["text", "image"]

_SCHEMA = "search-result/1"


class CacheError(Exception):
    """A store cannot be read or written; the message is one line."""


@dataclass(frozen=True)
class CacheKey:
    """What a result is a function of.

    Attributes:
        backend: the tool's name.
        version: the tool's version.
        kind: of search.
        query: `protocol.query_key` of the query.
        top_k: the most hits.
    """

    backend: str
    version: str
    kind: Kind
    query: str
    top_k: int

    def text(self) -> str:
        """The key as JSON: different keys have different texts."""
        fields = [self.backend, self.version, self.kind, self.query, self.top_k]
        return json.dumps(fields, ensure_ascii=False)


@runtime_checkable
class Store(Protocol):
    """Where a cache keeps its entries; may be used by several threads and processes."""

    def get(self, key: CacheKey) -> str | None:
        """The entry, None if there is none. Raises CacheError."""
        ...

    def put(self, key: CacheKey, value: str) -> str:
        """Stores an entry unless there is one, and gives the one that then stands.

        So two that search the same at once go on with the same result. Raises CacheError.
        """
        ...


@dataclass(frozen=True)
class _Entry:
    schema: str
    hits: tuple[Snippet | ImageHit, ...]


# what is read back is of one kind
@dataclass(frozen=True)
class _Snippets:
    schema: str
    hits: tuple[Snippet, ...]


@dataclass(frozen=True)
class _ImageHits:
    schema: str
    hits: tuple[ImageHit, ...]


def _snippets(value: str) -> tuple[Snippet, ...]:
    return loads(_Snippets, value, _SCHEMA).hits


def _image_hits(value: str) -> tuple[ImageHit, ...]:
    return loads(_ImageHits, value, _SCHEMA).hits


class CachedTool(Generic[Query, Hit]):
    """A tool with a cache before it; `cached_text` and `cached_images` make one.

    A store that cannot be read fails the search: a rerun must not pay in silence, nor differ. One
    that cannot be written costs a rerun this search, not this run its result: that is logged. A
    failed search is not stored.

    Attributes:
        name, version: of the tool.
    """

    def __init__(
        self,
        tool: SearchTool[Query, Hit],
        store: Store,
        kind: Kind,
        read: Callable[[str], tuple[Hit, ...]],
    ) -> None:
        self.name = tool.name
        self.version = tool.version
        self._tool = tool
        self._store = store
        self._kind: Kind = kind
        self._read = read

    def search(self, query: Query, top_k: int) -> tuple[Hit, ...]:
        """The stored result, or the tool's.

        Raises:
            SearchError: the tool failed for good, or the cache cannot be read.
            ValueError: top_k is less than 1.
        """
        check_top_k(top_k)
        words = query_key(query)
        if not words:
            return ()
        key = CacheKey(self.name, self.version, self._kind, words, top_k)
        try:
            stored = self._store.get(key)
            if stored is not None:
                return self._read(stored)
        except (CacheError, MalformedRecord) as error:
            raise SearchError(self.name, "cache", str(error)) from error
        hits = self._tool.search(query, top_k)
        try:
            return self._read(self._store.put(key, dumps(_Entry(_SCHEMA, hits))))
        except (CacheError, MalformedRecord) as error:
            _LOG.warning("%s: a result was not stored: %s", self.name, error)
            return hits


def cached_text(tool: TextTool, store: Store) -> CachedTool[str, Snippet]:
    """A text search with a cache before it."""
    return CachedTool(tool, store, "text", _snippets)


def cached_images(tool: ImageTool, store: Store) -> CachedTool[Image.Image, ImageHit]:
    """An image search with a cache before it."""
    return CachedTool(tool, store, "image", _image_hits)
