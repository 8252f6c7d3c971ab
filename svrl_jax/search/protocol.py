"""What a search tool is: text to snippets, a picture to pictures like it.

A tool is a name, a version and `search`. The result must be a function of (name, version, query
key, top_k), at least for as long as a run lasts: that is what the cache keys entries by.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeVar, runtime_checkable

from PIL import Image

from svrl_jax.search.plain_text import search_query
from svrl_jax.trajectory import Snippet

Cause = Literal[
    "timeout",
    "unreachable",
    "rate limit",
    "server error",
    "rejected",
    "malformed",
    "key",
    "cache",
]
"""Why a search failed.

timeout: no whole answer in time. unreachable: no connection, or it broke. rate limit: HTTP 429.
server error: HTTP 5xx. rejected: any other status that is no success. malformed: not JSON, or of
another shape. key: the environment holds no usable API key. cache: the cache cannot be read.
"""


class SearchError(Exception):
    """A search that brought nothing because its backend failed.

    The message names backend and cause in one line and holds no secret: a policy may read it.

    Attributes:
        backend: the tool's name.
        cause: why.
    """

    def __init__(self, backend: str, cause: Cause, detail: str) -> None:
        super().__init__(backend, cause, detail)
        self.backend = backend
        self.cause: Cause = cause
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.backend}: {self.cause} ({self.detail})"


@dataclass(frozen=True)
class ImageHit:
    """A picture that an image search found.

    Attributes:
        id: unique in its source.
        title: what it is called.
        thumbnail: where a small version is: a URL, or what the local index was given.
        source: where it is from.
    """

    id: str
    title: str
    thumbnail: str
    source: str


Query = TypeVar("Query", str, Image.Image)
QueryIn = TypeVar("QueryIn", str, Image.Image, contravariant=True)
Hit = TypeVar("Hit", Snippet, ImageHit)
HitOut = TypeVar("HitOut", Snippet, ImageHit, covariant=True)


@runtime_checkable
class SearchTool(Protocol[QueryIn, HitOut]):
    """A backend, or a cache before one."""

    @property
    def name(self) -> str:
        """Of the backend; stands in messages, never holds a secret."""
        ...

    @property
    def version(self) -> str:
        """Of all that its results depend on: corpus, index, endpoint."""
        ...

    def search(self, query: QueryIn, top_k: int) -> tuple[HitOut, ...]:
        """The best hits, best first, no id twice; may be called from several threads.

        Args:
            query: any text, read as plain words; an empty one finds nothing. Or an RGB picture.
            top_k: the most hits, at least 1.

        Raises:
            SearchError: the backend failed for good.
            ValueError: top_k is less than 1.
        """
        ...


TextTool = SearchTool[str, Snippet]
"""Text search."""

ImageTool = SearchTool[Image.Image, ImageHit]
"""Image search."""


@dataclass(frozen=True)
class Request(Generic[Query]):
    """One call of a tool.

    Attributes:
        query: text, or an RGB picture.
        top_k: the most hits, at least 1.
    """

    query: Query
    top_k: int


def query_key(query: str | Image.Image) -> str:
    """What makes two queries the same: the text as backends get it, or a digest of the pixels."""
    if isinstance(query, str):
        return search_query(query)
    size = f"{query.mode} {query.width} {query.height} ".encode()
    return hashlib.sha256(size + query.tobytes()).hexdigest()


def check_top_k(top_k: int) -> None:
    """Raises ValueError if top_k is less than 1."""
    if top_k < 1:
        raise ValueError(f"top_k is {top_k}: at least one hit must be asked for")
