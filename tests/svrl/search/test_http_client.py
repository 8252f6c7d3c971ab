"""Calls of a JSON API against a real server that misbehaves."""

from __future__ import annotations

import logging
import socket
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from svrl_jax.search.answer_shape import an_object
from svrl_jax.search.http_client import (
    MAX_ANSWER,
    Call,
    JsonClient,
    RetryPolicy,
    backoff,
    check_url,
)
from svrl_jax.search.protocol import SearchError

from .local_server import HANGS_UP, Answer, as_json, serve

POLICY = RetryPolicy(attempts=3, timeout_s=20.0)
IMPATIENT = RetryPolicy(attempts=20, timeout_s=0.2)
GOOD = as_json({"a": 1})
SECRET = "s3cr3t-key"


def read(value: object) -> object:
    return an_object(value, "$").get("a")


def client(slept: list[float]) -> JsonClient:
    return JsonClient("backend", POLICY, slept.append)


MENDABLE: list[tuple[Answer, str]] = [
    (Answer(429), "rate limit"),
    (Answer(500), "server error"),
    (Answer(503), "server error"),
    (Answer(body=b"{"), "malformed"),
    (Answer(body=b""), "malformed"),
    (Answer(body=b"\xff\xfe"), "malformed"),
    (Answer(body=b'{"a": NaN}'), "malformed"),
    (Answer(body=b"[" * 100_000), "malformed"),
    (Answer(body=b"<html>busy</html>"), "malformed"),
    (as_json([1]), "malformed"),
    (Answer(body=b"no gzip", headers=(("Content-Encoding", "gzip"),)), "malformed"),
    (Answer(body=b" " * (MAX_ANSWER + 1)), "malformed"),
    (HANGS_UP, "unreachable"),
    (Answer(body=b'{"a": 1}', sent=3), "unreachable"),
]
LATE = [Answer(body=b'{"a": 1}', wait_s=0.4), Answer(body=b'{"a": 1}', trickle=True)]


@pytest.mark.parametrize(("bad", "cause"), MENDABLE)
def test_a_fault_that_passes_is_tried_again(bad: Answer, cause: str) -> None:
    slept: list[float] = []
    with serve(bad, GOOD) as server:
        assert client(slept).fetch(Call(server.url), read) == 1
        assert len(server.seen) == 2
    assert len(slept) == 1


@pytest.mark.parametrize(("bad", "cause"), MENDABLE)
def test_a_fault_that_stays_is_one_error(bad: Answer, cause: str) -> None:
    slept: list[float] = []
    with serve(bad) as server, pytest.raises(SearchError) as raised:
        client(slept).fetch(Call(server.url), read)
    assert (raised.value.backend, raised.value.cause) == ("backend", cause)
    assert str(raised.value).startswith(f"backend: {cause} (")
    assert str(raised.value).endswith("; 3 tries)")
    assert "\n" not in str(raised.value)
    assert len(server.seen) == 3
    assert len(slept) == 2


@pytest.mark.parametrize("status", [301, 302, 400, 401, 403, 404, 414])
def test_what_no_later_try_mends_is_not_tried_again(status: int) -> None:
    slept: list[float] = []
    elsewhere = (("Location", "http://127.0.0.1:9/"),)
    with serve(Answer(status, headers=elsewhere), GOOD) as server:
        with pytest.raises(SearchError, match=rf"rejected \(HTTP {status}; 1 try\)"):
            client(slept).fetch(Call(server.url), read)
        assert len(server.seen) == 1
    assert not slept


def test_no_server() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        slept: list[float] = []
        with pytest.raises(SearchError, match=rf"unreachable \(no connection to 127.0.0.1:{port}"):
            client(slept).fetch(Call(f"http://127.0.0.1:{port}"), read)
        assert len(slept) == 2


def test_a_server_that_dies_between_two_calls() -> None:
    slept: list[float] = []
    caller = client(slept)
    with serve(GOOD) as server:
        assert caller.fetch(Call(server.url), read) == 1
    with pytest.raises(SearchError) as raised:
        caller.fetch(Call(server.url), read)
    assert raised.value.cause == "unreachable"


def after(seconds: float) -> str:
    return format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)


@pytest.mark.parametrize(
    ("header", "least", "most"),
    [
        (lambda: "7", 7, 7),
        (lambda: "0", 0, 0),
        (lambda: "86400", 30, 30),
        (lambda: after(9), 7, 9),
        (lambda: after(-60), 0, 0),
        # nonsense: as if it was not there
        (lambda: "-3", 0.25, 0.5),
        (lambda: "soon", 0.25, 0.5),
        (lambda: "1e3", 0.25, 0.5),
        (lambda: "٣", 0.25, 0.5),
        (lambda: "", 0.25, 0.5),
    ],
)
@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_is_heeded_up_to_a_bound(
    status: int, header: Callable[[], str], least: float, most: float
) -> None:
    slept: list[float] = []
    sent = header().encode().decode("latin-1")
    with serve(Answer(status, headers=(("Retry-After", sent),)), GOOD) as server:
        client(slept).fetch(Call(server.url), read)
    assert least <= slept[0] <= most


def test_back_off_doubles_up_to_a_bound() -> None:
    policy = RetryPolicy(first_delay_s=1.0, max_delay_s=5.0, jitter=0.0)
    assert [backoff(policy, failed, "q") for failed in (1, 2, 3, 4, 50)] == [1, 2, 4, 5, 5]


def test_jitter_is_seeded_per_call() -> None:
    policy = RetryPolicy(first_delay_s=1.0, jitter=0.5)
    delays = [backoff(policy, 1, f"call {i}") for i in range(200)]
    assert delays == [backoff(policy, 1, f"call {i}") for i in range(200)]
    assert len(set(delays)) == 200
    assert min(delays) < 0.55 and max(delays) > 0.95
    assert all(0.5 <= delay <= 1 for delay in delays)
    assert delays[0] != backoff(RetryPolicy(first_delay_s=1.0, seed=1), 1, "call 0")


@pytest.mark.parametrize(
    "policy",
    [{"attempts": 0}, {"timeout_s": 0.0}, {"jitter": 1.5}, {"jitter": -0.1}],
)
def test_a_policy_that_cannot_be(policy: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        RetryPolicy(**policy)  # type: ignore[arg-type]


@pytest.mark.parametrize("late", LATE)
def test_an_answer_that_is_late(late: Answer) -> None:
    slept: list[float] = []
    with serve(late, GOOD) as server:
        patient = JsonClient("backend", IMPATIENT, slept.append)
        assert patient.fetch(Call(server.url), read) == 1
    assert slept
    once = JsonClient("backend", RetryPolicy(attempts=1, timeout_s=0.2))
    with serve(late) as server, pytest.raises(SearchError, match=r"timeout \(.*; 1 try\)"):
        once.fetch(Call(server.url), read)


def test_a_trickling_server_is_given_up_in_time() -> None:
    once = JsonClient("backend", RetryPolicy(attempts=1, timeout_s=0.2))
    # whole after 10 s, with never more than 0.05 s between two bytes
    with serve(Answer(body=b" " * 200, trickle=True)) as server:
        started = time.monotonic()
        with pytest.raises(SearchError, match="timeout"):
            once.fetch(Call(server.url), read)
        assert time.monotonic() - started < 5


SECRET_CALLS = [
    {"secret_parameters": {"api_key": SECRET}},
    {"secret_parameters": {"api_key": SECRET}, "parameters": {"q": "a b&c"}},
    {"secret_headers": {"X-API-KEY": SECRET}, "body": {"q": "a"}},
]


@pytest.mark.parametrize("secrets", SECRET_CALLS)
@pytest.mark.parametrize("bad", [Answer(401), Answer(500), HANGS_UP, Answer(body=b"{")])
def test_a_key_is_sent_and_shown_nowhere(
    secrets: dict[str, dict[str, str]], bad: Answer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    logging.getLogger("httpcore2").setLevel(logging.DEBUG)
    with serve(bad) as server:
        call = Call(server.url + "/search", **secrets)  # type: ignore[arg-type]
        with pytest.raises(SearchError) as raised:
            client([]).fetch(call, read)
    first = server.seen[0]
    assert SECRET in first.path + first.headers.get("X-API-KEY", "")
    told = "".join(traceback.format_exception(raised.value))
    assert SECRET not in told + str(raised.value) + repr(raised.value) + repr(call)
    assert "127.0.0.1" in caplog.text
    assert SECRET not in caplog.text


def test_parameters_arrive_beside_the_key() -> None:
    with serve(GOOD) as server:
        call = Call(
            f"{server.url}/s.json",
            parameters={"q": "a b&c=d 国"},
            secret_parameters={"api_key": SECRET},
        )
        client([]).fetch(call, read)
    assert server.seen[0].method == "GET"
    path, _, query = server.seen[0].path.partition("?")
    assert path == "/s.json"
    assert query in (
        f"q=a+b%26c%3Dd+%E5%9B%BD&api_key={SECRET}",
        f"q=a%20b%26c%3Dd%20%E5%9B%BD&api_key={SECRET}",
    )


@pytest.mark.parametrize(
    "url",
    ["", "localhost:8000", "ftp://host/x", "http://", f"http://me:{SECRET}@host/",
     f"http://host/?key={SECRET}", "http://[", "http://host:port/"],
)  # fmt: skip
def test_a_url_that_is_none_or_holds_a_secret(url: str) -> None:
    with pytest.raises(ValueError) as raised:
        check_url(url)
    assert SECRET not in "".join(traceback.format_exception(raised.value))
