"""Image search on the web: Google Lens by Serper's API, by SerpApi's API.

Both take the address of a picture that their servers can load, not the picture. Serper: POST
{"url"} with the header X-API-KEY; answer {"organic": [{"title", "link", "thumbnailUrl"}]}. SerpApi:
GET with engine=google_lens, url, api_key; answer {"visual_matches": [{"title", "link",
"thumbnail"}]} (serpapi.com/google-lens-api). A hit's link is its id.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from PIL import Image

from svrl_jax.search.answer_shape import a_text, an_array, an_object
from svrl_jax.search.api_key import api_key
from svrl_jax.search.http_client import Call, JsonClient, RetryPolicy, check_url
from svrl_jax.search.protocol import ImageHit, check_top_k
from svrl_jax.search.ranking import unique
from svrl_jax.search.web import SERPAPI_KEY, SERPAPI_URL, SERPER_KEY, serpapi_results

_VERSION = "lens 1"


class SerperLens:
    """Image search by Serper.

    Attributes:
        name: of the backend.
        version: of the request and of what is read from the answer.
    """

    def __init__(
        self,
        address: Callable[[Image.Image], str],
        policy: RetryPolicy | None = None,
        sleep: Callable[[float], None] = time.sleep,
        url: str = "https://google.serper.dev/lens",
    ) -> None:
        """
        Args:
            address: publishes a picture and gives its URL; raises SearchError if it cannot.
            policy: of retries.
            sleep: waits so many seconds.
            url: of the endpoint.

        Raises:
            SearchError: the environment holds no key.
            ValueError: no URL, or one with a user or a query in it.
        """
        self.name = "serper lens"
        self.version = _VERSION
        self._address = address
        self._url = check_url(url)
        self._client = JsonClient(self.name, policy or RetryPolicy(), sleep)
        # not kept: a run must not start without one
        api_key(self.name, SERPER_KEY)

    def search(self, query: Image.Image, top_k: int) -> tuple[ImageHit, ...]:
        """The pages with the most similar pictures.

        Raises:
            SearchError: the API failed for good.
            ValueError: top_k is less than 1.
        """
        check_top_k(top_k)
        call = Call(
            self._url,
            body={"url": self._address(query)},
            secret_headers={"X-API-KEY": api_key(self.name, SERPER_KEY)},
        )
        return self._client.fetch(call, lambda answer: unique(_serper_hits(answer), top_k))


class SerpApiLens:
    """Image search by SerpApi.

    Attributes:
        name: of the backend.
        version: of the request and of what is read from the answer.
    """

    def __init__(
        self,
        address: Callable[[Image.Image], str],
        policy: RetryPolicy | None = None,
        sleep: Callable[[float], None] = time.sleep,
        url: str = SERPAPI_URL,
    ) -> None:
        """
        Args:
            address: publishes a picture and gives its URL; raises SearchError if it cannot.
            policy: of retries.
            sleep: waits so many seconds.
            url: of the endpoint.

        Raises:
            SearchError: the environment holds no key.
            ValueError: no URL, or one with a user or a query in it.
        """
        self.name = "serpapi lens"
        self.version = _VERSION
        self._address = address
        self._url = check_url(url)
        self._client = JsonClient(self.name, policy or RetryPolicy(), sleep)
        # not kept: a run must not start without one
        api_key(self.name, SERPAPI_KEY)

    def search(self, query: Image.Image, top_k: int) -> tuple[ImageHit, ...]:
        """The pages with the most similar pictures.

        Raises:
            SearchError: the API failed for good.
            ValueError: top_k is less than 1.
        """
        check_top_k(top_k)
        call = Call(
            self._url,
            parameters={"engine": "google_lens", "url": self._address(query)},
            secret_parameters={"api_key": api_key(self.name, SERPAPI_KEY)},
        )
        return self._client.fetch(call, lambda answer: unique(_serpapi_hits(answer), top_k))


def _serper_hits(answer: object) -> list[ImageHit]:
    results = an_array(an_object(answer, "$").get("organic"), "$.organic")
    return _hits(results, "thumbnailUrl", "serper lens")


def _serpapi_hits(answer: object) -> list[ImageHit]:
    return _hits(serpapi_results(answer, "visual_matches"), "thumbnail", "serpapi lens")


def _hits(results: Sequence[object], thumbnail: str, source: str) -> list[ImageHit]:
    hits = []
    for rank, result in enumerate(results):
        place = f"result {rank}"
        fields = an_object(result, place)
        link = a_text(fields.get("link"), f"{place}: link")
        title = a_text(fields.get("title"), f"{place}: title")
        # some matches come without a small version
        small = a_text(fields.get(thumbnail, ""), f"{place}: {thumbnail}")
        hits.append(ImageHit(link, title, small, source))
    return hits
