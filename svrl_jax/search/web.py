"""Text search on the web: Serper's API, SerpApi's API.

Serper: POST {"q", "num"} with the header X-API-KEY; answer {"organic": [{"title", "link",
"snippet"}]} (serper.dev). SerpApi: GET with engine, q, num, api_key; answer {"organic_results":
[...]} (serpapi.com/search-api). A hit's link is its id.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from svrl_jax.search.answer_shape import a_text, an_array, an_object
from svrl_jax.search.api_key import api_key
from svrl_jax.search.http_client import Call, JsonClient, RetryPolicy, check_url
from svrl_jax.search.plain_text import search_query
from svrl_jax.search.protocol import check_top_k
from svrl_jax.search.ranking import unique
from svrl_jax.trajectory import Snippet

SERPER_KEY = "SERPER_API_KEY"
"""The environment variable of Serper's key."""

SERPAPI_KEY = "SERPAPI_API_KEY"
"""The environment variable of SerpApi's key."""

SERPAPI_URL = "https://serpapi.com/search.json"

_VERSION = "google 1"


class SerperSearch:
    """Text search by Serper.

    Attributes:
        name: of the backend.
        version: of the request and of what is read from the answer.
    """

    def __init__(
        self,
        policy: RetryPolicy | None = None,
        sleep: Callable[[float], None] = time.sleep,
        url: str = "https://google.serper.dev/search",
    ) -> None:
        """
        Args:
            policy: of retries.
            sleep: waits so many seconds.
            url: of the endpoint.

        Raises:
            SearchError: the environment holds no key.
            ValueError: no URL, or one with a user or a query in it.
        """
        self.name = "serper"
        self.version = _VERSION
        self._url = check_url(url)
        self._client = JsonClient(self.name, policy or RetryPolicy(), sleep)
        # not kept: a run must not start without one
        api_key(self.name, SERPER_KEY)

    def search(self, query: str, top_k: int) -> tuple[Snippet, ...]:
        """The best pages.

        Raises:
            SearchError: the API failed for good.
            ValueError: top_k is less than 1.
        """
        check_top_k(top_k)
        words = search_query(query)
        if not words:
            return ()
        call = Call(
            self._url,
            body={"q": words, "num": top_k},
            secret_headers={"X-API-KEY": api_key(self.name, SERPER_KEY)},
        )
        return self._client.fetch(call, lambda answer: unique(_serper_pages(answer), top_k))


class SerpApiSearch:
    """Text search by SerpApi.

    Attributes:
        name: of the backend.
        version: of the request and of what is read from the answer.
    """

    def __init__(
        self,
        policy: RetryPolicy | None = None,
        sleep: Callable[[float], None] = time.sleep,
        url: str = SERPAPI_URL,
    ) -> None:
        """
        Args:
            policy: of retries.
            sleep: waits so many seconds.
            url: of the endpoint.

        Raises:
            SearchError: the environment holds no key.
            ValueError: no URL, or one with a user or a query in it.
        """
        self.name = "serpapi"
        self.version = _VERSION
        self._url = check_url(url)
        self._client = JsonClient(self.name, policy or RetryPolicy(), sleep)
        # not kept: a run must not start without one
        api_key(self.name, SERPAPI_KEY)

    def search(self, query: str, top_k: int) -> tuple[Snippet, ...]:
        """The best pages.

        Raises:
            SearchError: the API failed for good.
            ValueError: top_k is less than 1.
        """
        check_top_k(top_k)
        words = search_query(query)
        if not words:
            return ()
        call = Call(
            self._url,
            parameters={"engine": "google", "q": words, "num": str(top_k)},
            secret_parameters={"api_key": api_key(self.name, SERPAPI_KEY)},
        )
        return self._client.fetch(call, lambda answer: unique(_serpapi_pages(answer), top_k))


def serpapi_results(answer: object, name: str) -> Sequence[object]:
    """The list of results in an answer of SerpApi; () where it says that there are none.

    Raises:
        MalformedAnswer: no such list.
    """
    fields = an_object(answer, "$")
    nothing = fields.get("error")
    # SerpApi tells an empty list as an error with status 200
    if name not in fields and isinstance(nothing, str) and "hasn't returned any results" in nothing:
        return ()
    return an_array(fields.get(name), f"$.{name}")


def _serper_pages(answer: object) -> list[Snippet]:
    return _pages(an_array(an_object(answer, "$").get("organic"), "$.organic"), "serper")


def _serpapi_pages(answer: object) -> list[Snippet]:
    return _pages(serpapi_results(answer, "organic_results"), "serpapi")


def _pages(results: Sequence[object], source: str) -> list[Snippet]:
    pages = []
    for rank, result in enumerate(results):
        place = f"result {rank}"
        fields = an_object(result, place)
        link = a_text(fields.get("link"), f"{place}: link")
        title = a_text(fields.get("title"), f"{place}: title")
        # a page without a description has none
        text = a_text(fields.get("snippet", ""), f"{place}: snippet")
        pages.append(Snippet(link, title, text, source))
    return pages
