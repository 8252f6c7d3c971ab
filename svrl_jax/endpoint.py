"""An OpenAI-compatible endpoint that labels, or that grades answers."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from svrl_jax import prompts
from svrl_jax.oracle import Evidence, OracleError
from svrl_jax.rewards import OracleLabels
from svrl_jax.search.answer_shape import MalformedAnswer, a_text, an_array, an_object
from svrl_jax.search.api_key import api_key
from svrl_jax.search.http_client import Call, JsonClient, RetryPolicy, check_url
from svrl_jax.search.protocol import SearchError
from svrl_jax.task import Task

KEY_VARIABLE = "OPENAI_API_KEY"
"""Holds the key, if the endpoint wants one."""

WORKERS = 8
"""Calls that run at once."""

MAX_TOKENS = 512
"""Of a reply."""

Read = TypeVar("Read")
Asked = TypeVar("Asked")
Told = TypeVar("Told")


class ChatEndpoint:
    """Chat completions of one model, greedy; may be used from several threads."""

    def __init__(
        self,
        url: str,
        model: str,
        policy: RetryPolicy | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """
        Args:
            url: of the API, such as http://127.0.0.1:8000/v1.
            model: as the server calls it.
            policy: of retries.
            sleep: waits so many seconds.

        Raises:
            ValueError: no such URL.
        """
        self._url = check_url(url).rstrip("/") + "/chat/completions"
        self._model = model
        self._client = JsonClient(f"endpoint {model}", policy or RetryPolicy(), sleep)

    def ask(self, system: str, user: str, read: Callable[[Mapping[str, object]], Read]) -> Read:
        """What `read` makes of the JSON object in the reply.

        Args:
            system, user: the conversation.
            read: raises MalformedAnswer for an object of another shape; then the call is tried
                again, as often as the policy allows.

        Raises:
            SearchError: the endpoint failed for good.
        """
        body = {
            "model": self._model,
            "messages": [
                {"role": "system", "content": system},
                {"role": "user", "content": user},
            ],
            "temperature": 0,
            "max_tokens": MAX_TOKENS,
        }
        headers: dict[str, str] = {}
        if KEY_VARIABLE in os.environ:
            key = api_key(f"endpoint {self._model}", KEY_VARIABLE)
            headers["Authorization"] = f"Bearer {key}"
        call = Call(self._url, body=body, secret_headers=headers)
        return self._client.fetch(call, lambda answer: read(_reply(answer)))


def _reply(answer: object) -> Mapping[str, object]:
    """The first JSON object of the first choice's text; models like to fence it."""
    choices = an_array(an_object(answer, "the answer").get("choices"), "choices")
    if not choices:
        raise MalformedAnswer("choices is empty")
    message = an_object(an_object(choices[0], "choices[0]").get("message"), "message")
    text = a_text(message.get("content"), "content")
    start = text.find("{")
    if start < 0:
        raise MalformedAnswer("content holds no object")
    try:
        value, _ = json.JSONDecoder().raw_decode(text[start:])
    except (ValueError, RecursionError):
        raise MalformedAnswer("content holds no whole object") from None
    return an_object(value, "content")


def _marks(value: object, count: int, place: str) -> tuple[bool, ...]:
    marks = an_array(value, place)
    if len(marks) != count or any(mark not in (0, 1) for mark in marks):
        raise MalformedAnswer(f"{place} is no list of {count} zeros and ones")
    return tuple(bool(mark) for mark in marks)


def _each(
    asked: Sequence[Asked], name: Callable[[Asked], str], ask: Callable[[Asked], Told]
) -> tuple[Told | OracleError, ...]:
    """All asked at once, a failure as a value."""

    def one(item: Asked) -> Told | OracleError:
        try:
            return ask(item)
        except SearchError as error:
            return OracleError(f"{name(item)}: {error}")

    with ThreadPoolExecutor(WORKERS, thread_name_prefix="oracle") as pool:
        return tuple(pool.map(one, asked))


class EndpointOracle:
    """An oracle that is a language model behind an endpoint."""

    def __init__(self, endpoint: ChatEndpoint) -> None:
        self._endpoint = endpoint

    def label(self, evidence: Sequence[Evidence]) -> tuple[OracleLabels | OracleError, ...]:
        """One call per trajectory; one that fails for good is an OracleError in its place."""
        return _each(evidence, lambda one: one.task.question.id, self._label)

    def _label(self, evidence: Evidence) -> OracleLabels:
        lines = [
            prompts.snippet_text(s.title, s.text) for snippets in evidence.shown for s in snippets
        ]

        def read(reply: Mapping[str, object]) -> OracleLabels:
            queries = _marks(reply.get("queries"), len(evidence.queries), "queries")
            flat = iter(_marks(reply.get("snippets"), len(lines), "snippets"))
            return OracleLabels(
                queries,
                tuple(tuple(next(flat) for _ in snippets) for snippets in evidence.shown),
            )

        request = prompts.oracle_request(
            evidence.task.question.text, evidence.task.golds, evidence.queries, lines
        )
        return self._endpoint.ask(prompts.ORACLE, request, read)


class EndpointGrader:
    """Grades answers by a language model behind an endpoint (LLM-as-judge)."""

    def __init__(self, endpoint: ChatEndpoint) -> None:
        self._endpoint = endpoint

    def __call__(
        self, answers: Sequence[tuple[Task, str | None]]
    ) -> tuple[float | OracleError, ...]:
        """1 or 0 for each answer; no answer is 0 without a call."""
        return _each(answers, lambda pair: pair[0].question.id, self._grade)

    def _grade(self, pair: tuple[Task, str | None]) -> float:
        task, answer = pair
        if answer is None:
            return 0.0

        def read(reply: Mapping[str, object]) -> float:
            (correct,) = _marks([reply.get("correct")], 1, "correct")
            return float(correct)

        request = prompts.grader_request(task.question.text, task.golds, answer)
        return self._endpoint.ask(prompts.GRADER, request, read)
