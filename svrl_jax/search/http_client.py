"""JSON over HTTP with time-outs, bounded retries and back-off."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypeVar
from urllib.parse import urlencode, urlsplit

import httpx2

from svrl_jax.search.answer_shape import MalformedAnswer
from svrl_jax.search.protocol import Cause, SearchError

MAX_ANSWER = 8 << 20
"""Bytes of an answer that are read; a longer one is malformed."""

Read = TypeVar("Read")


@dataclass(frozen=True)
class RetryPolicy:
    """When a call is tried again.

    Attributes:
        attempts: the most tries of one call, at least 1.
        timeout_s: seconds that connecting, and any one wait for data, may take; also the seconds
            after which an answer that is still coming in is given up.
        first_delay_s: seconds before the second try; doubled before each later one.
        max_delay_s: the most seconds of back-off before a try.
        jitter: share of a delay that is drawn at random, 0 to 1: calls that failed together do
            not come back together.
        max_retry_after_s: the most seconds that a server's Retry-After is heeded for.
        seed: of the jitter.
    """

    attempts: int = 4
    timeout_s: float = 10.0
    first_delay_s: float = 0.5
    max_delay_s: float = 8.0
    jitter: float = 0.5
    max_retry_after_s: float = 30.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.timeout_s <= 0 or not 0 <= self.jitter <= 1:
            raise ValueError(f"no such policy: {self}")


def backoff(policy: RetryPolicy, failed: int, salt: str) -> float:
    """Seconds to wait after a failed try.

    Args:
        failed: tries so far, at least 1.
        salt: the call; another one waits another time.
    """
    delay = min(policy.first_delay_s * 2 ** (failed - 1), policy.max_delay_s)
    drawn = random.Random(f"{policy.seed} {failed} {salt}").random()
    return delay * (1 - policy.jitter * drawn)


@dataclass(frozen=True)
class Call:
    """One request of a JSON API.

    Attributes:
        url: without secrets.
        parameters: of the URL's query.
        body: sent by POST as JSON, so strings, numbers, lists and objects; None for a GET.
        secret_headers, secret_parameters: hold an API key; shown nowhere.
    """

    url: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, object] | None = None
    secret_headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    secret_parameters: Mapping[str, str] = field(default_factory=dict, repr=False)


class _Failure(Exception):
    """One try that failed."""

    def __init__(self, cause: Cause, detail: str, retry_after_s: float | None = None) -> None:
        super().__init__(cause, detail)
        self.cause: Cause = cause
        self.detail = detail
        self.retry_after_s = retry_after_s


class JsonClient:
    """Makes calls for one backend; may be used from several threads."""

    def __init__(
        self,
        backend: str,
        policy: RetryPolicy,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """
        Args:
            backend: names the errors.
            policy: of retries.
            sleep: waits so many seconds.
        """
        self._backend = backend
        self._policy = policy
        self._sleep = sleep
        # a redirect could carry the key to another host
        self._client = httpx2.Client(timeout=policy.timeout_s, follow_redirects=False)

    def fetch(self, call: Call, read: Callable[[object], Read]) -> Read:
        """The answer of a call.

        What a later try may mend is tried again: no or half a connection, no answer in time, HTTP
        429 and 5xx, an answer that is no JSON or that `read` rejects.

        Args:
            read: takes what the JSON holds; raises MalformedAnswer for another shape.

        Raises:
            SearchError: the call failed for good.
        """
        salt = json.dumps([call.url, dict(call.parameters), call.body and dict(call.body)])
        failed = 0
        while True:
            try:
                return self._try(call, read)
            except _Failure as failure:
                failed += 1
                if failed == self._policy.attempts or failure.cause == "rejected":
                    tries = "1 try" if failed == 1 else f"{failed} tries"
                    detail = f"{failure.detail}; {tries}"
                    # what lies beneath may show the request, which may hold the key
                    raise SearchError(self._backend, failure.cause, detail) from None
                delay = backoff(self._policy, failed, salt)
                if failure.retry_after_s is not None:
                    delay = min(failure.retry_after_s, self._policy.max_retry_after_s)
            self._sleep(delay)

    def _try(self, call: Call, read: Callable[[object], Read]) -> Read:
        request = self._request(call)
        host = request.url.netloc.decode("ascii")
        until = time.monotonic() + self._policy.timeout_s
        content = bytearray()
        try:
            response = self._client.send(request, stream=True)
            try:
                _check_status(response)
                for piece in response.iter_bytes():
                    content += piece
                    if len(content) > MAX_ANSWER:
                        raise _Failure("malformed", f"more than {MAX_ANSWER >> 20} MB")
                    # a time-out of a read starts anew with every byte
                    if time.monotonic() > until:
                        raise _Failure("timeout", f"no whole answer from {host} in time")
            finally:
                response.close()
        except httpx2.TimeoutException:
            raise _Failure("timeout", f"no answer from {host} in time") from None
        except httpx2.ConnectError:
            raise _Failure("unreachable", f"no connection to {host}") from None
        except httpx2.DecodingError:
            raise _Failure("malformed", "not in the encoding that it names") from None
        except httpx2.TransportError:
            raise _Failure("unreachable", f"the connection to {host} broke") from None
        try:
            return read(json.loads(content, parse_constant=_no_number))
        except MalformedAnswer as error:
            raise _Failure("malformed", str(error)) from None
        except (ValueError, RecursionError):
            raise _Failure("malformed", "not JSON") from None

    def _request(self, call: Call) -> httpx2.Request:
        method = "GET" if call.body is None else "POST"
        request = self._client.build_request(
            method,
            call.url,
            params=dict(call.parameters) or None,
            json=None if call.body is None else dict(call.body),
            headers=dict(call.secret_headers),
        )
        if call.secret_parameters:
            # httpx2 logs a request's URL: the one it knows holds no key, the target sent does
            separator = b"&" if b"?" in request.url.raw_path else b"?"
            secret = urlencode(dict(call.secret_parameters)).encode("ascii")
            request.extensions["target"] = request.url.raw_path + separator + secret
        return request


def check_url(url: str) -> str:
    """The URL of an endpoint, if it is one without a user, password or key in it.

    Raises:
        ValueError: it is none; the message does not repeat it.
    """
    try:
        parsed = urlsplit(url)
        port = parsed.port
        httpx2.URL(url)
    except (ValueError, httpx2.InvalidURL):
        raise ValueError("the endpoint is no URL") from None
    if parsed.scheme not in ("http", "https") or not parsed.hostname or port == 0:
        raise ValueError("the endpoint is no URL that begins with http:// or https://")
    if "@" in parsed.netloc or parsed.query:
        raise ValueError("the endpoint's URL holds a user or a query: it would be logged")
    return url


def _check_status(response: httpx2.Response) -> None:
    code = response.status_code
    if code == 200:
        return
    retry_after = _retry_after(response.headers.get("Retry-After", ""))
    if code == 429:
        raise _Failure("rate limit", "HTTP 429", retry_after)
    if code >= 500:
        raise _Failure("server error", f"HTTP {code}", retry_after)
    raise _Failure("rejected", f"HTTP {code}")


def _retry_after(header: str) -> float | None:
    """Seconds of a Retry-After header: a number or a date (RFC 9110); None if it is neither."""
    if re.fullmatch(r"[0-9]{1,9}", header.strip()):
        return float(header)
    try:
        date = parsedate_to_datetime(header)
    except ValueError:
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return max(0.0, (date - datetime.now(UTC)).total_seconds())


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no JSON")
