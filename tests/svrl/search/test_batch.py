"""The searches of a batch."""

from __future__ import annotations

import threading

import pytest
from PIL import Image

from svrl_jax.search.batch import search_all
from svrl_jax.search.protocol import ImageHit, Request, SearchError
from svrl_jax.trajectory import Snippet


class Echo:
    """Finds the query itself, as many times as are asked for; counts its calls."""

    name = "echo"
    version = "1"

    def __init__(self, together: int = 1) -> None:
        """`together` calls must be under way at once before the first one ends."""
        self.calls: list[tuple[str, int]] = []
        self.barrier = threading.Barrier(together, timeout=20)

    def search(self, query: str, top_k: int) -> tuple[Snippet, ...]:
        self.calls.append((query, top_k))
        self.barrier.wait()
        if query.startswith("bad"):
            raise SearchError(self.name, "timeout", query)
        return tuple(Snippet(f"{query} {rank}", "", "", "echo") for rank in range(top_k))


class Colour:
    name = "colour"
    version = "1"

    def __init__(self) -> None:
        self.calls = 0

    def search(self, query: Image.Image, top_k: int) -> tuple[ImageHit, ...]:
        self.calls += 1
        return (ImageHit(str(query.getpixel((0, 0))), "", "", ""),)


def test_results_stand_in_the_order_of_the_requests() -> None:
    requests = [Request(f"q{i}", 1 + i % 3) for i in range(40)]
    results = search_all(Echo(), requests)
    assert [[hit.id for hit in result] for result in results if isinstance(result, tuple)] == [
        [f"q{i} {rank}" for rank in range(1 + i % 3)] for i in range(40)
    ]


def test_a_failure_is_a_value_in_its_place() -> None:
    results = search_all(Echo(), [Request("a", 1), Request("bad", 1), Request("b", 1)])
    assert isinstance(results[1], SearchError)
    assert str(results[1]) == "echo: timeout (bad)"
    assert isinstance(results[0], tuple) and isinstance(results[2], tuple)


def test_equal_requests_run_once() -> None:
    tool = Echo()
    requests = [Request("a", 1), Request(" A ", 1), Request("a", 2), Request("bad", 1)]
    results = search_all(tool, [*requests, *requests])
    assert sorted(tool.calls) == [("a", 1), ("a", 2), ("bad", 1)]
    assert results[0] == results[1] == results[4] == results[5]
    assert results[2] != results[0]
    assert results[3] is results[7]


def test_searches_run_at_once_up_to_the_bound() -> None:
    # each waits for four to be there: with fewer at once this would break
    assert len(search_all(Echo(together=4), [Request(f"{i}", 1) for i in range(8)], 4)) == 8
    alone = Echo()
    running = threading.Lock()
    search = alone.search

    def checked(query: str, top_k: int) -> tuple[Snippet, ...]:
        assert running.acquire(blocking=False)
        try:
            return search(query, top_k)
        finally:
            running.release()

    alone.search = checked
    assert len(search_all(alone, [Request(f"{i}", 1) for i in range(20)], workers=1)) == 20


def test_pictures_are_the_same_if_their_pixels_are() -> None:
    tool = Colour()
    red, blue = (Image.new("RGB", (2, 3), name) for name in ("red", "blue"))
    turned = Image.new("RGB", (3, 2), "red")
    results = search_all(tool, [Request(image, 1) for image in (red, blue, red.copy(), turned)])
    assert tool.calls == 3
    assert results[0] == results[2] == results[3] != results[1]


def test_no_requests() -> None:
    assert search_all(Echo(), []) == ()


def test_what_is_no_search_error_is_not_hidden() -> None:
    class Broken(Echo):
        def search(self, query: str, top_k: int) -> tuple[Snippet, ...]:
            raise LookupError(query)

    with pytest.raises(LookupError):
        search_all(Broken(), [Request("a", 1)])
