"""Text search by a retrieval server that speaks Search-R1's `/retrieve`.

Request: {"queries": [query], "topk": k, "return_scores": true}. Answer: {"result": [hits]}, one
list a query. A hit is {"document": {"contents": "\\"Title\\"\\ntext"}, "score": number}, or the
document itself from a server that gives no scores. Source: PeterGriffinJin/Search-R1,
search_r1/search/retrieval_server.py.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from itertools import groupby

from svrl_jax.search.answer_shape import MalformedAnswer, a_text, an_array, an_object
from svrl_jax.search.http_client import Call, JsonClient, RetryPolicy, check_url
from svrl_jax.search.plain_text import search_query
from svrl_jax.search.protocol import check_top_k
from svrl_jax.search.ranking import unique
from svrl_jax.trajectory import Snippet

NAME = "retriever"

_NO_NEIGHBOUR = 3.4e38
"""FAISS pads a short list with index -1 and the largest float: the server's document for it is its
last one, which nobody asked for (Search-R1 issue 79)."""


class HttpRetriever:
    """Text search by a retrieval server.

    Equal scores are ordered by id. A document without an id has a digest of its contents for one.

    Attributes:
        name: of the backend.
        version: as given.
    """

    def __init__(
        self,
        url: str,
        version: str,
        policy: RetryPolicy | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """
        Args:
            url: of the endpoint, with its path.
            version: of the server's corpus and index, which the server does not tell.
            policy: of retries.
            sleep: waits so many seconds.

        Raises:
            ValueError: no URL, or one with a user or a query in it.
        """
        self.name = NAME
        self.version = version
        self._url = check_url(url)
        self._client = JsonClient(NAME, policy or RetryPolicy(), sleep)

    def search(self, query: str, top_k: int) -> tuple[Snippet, ...]:
        """The best documents.

        Raises:
            SearchError: the server failed for good.
            ValueError: top_k is less than 1.
        """
        check_top_k(top_k)
        words = search_query(query)
        if not words:
            return ()
        body = {"queries": [words], "topk": top_k, "return_scores": True}
        return self._client.fetch(
            Call(self._url, body=body), lambda answer: unique(_snippets(answer), top_k)
        )


def _snippets(answer: object) -> list[Snippet]:
    result = an_array(an_object(answer, "$").get("result"), "$.result")
    if len(result) != 1:
        raise MalformedAnswer("$.result holds another number of lists than queries")
    hits = [
        hit
        for rank, value in enumerate(an_array(result[0], "$.result[0]"))
        if (hit := _hit(value, f"$.result[0][{rank}]")) is not None
    ]
    ordered: list[Snippet] = []
    # only neighbours: whether a higher score is better is the server's affair
    for score, tied in groupby(hits, key=lambda hit: hit[0]):
        snippets = [snippet for _, snippet in tied]
        ordered += snippets if score is None else sorted(snippets, key=lambda s: s.id)
    return ordered


def _hit(value: object, place: str) -> tuple[float | None, Snippet] | None:
    """Score with document; None for what stands where no document was found."""
    if value is None:
        return None
    item = an_object(value, place)
    if "document" not in item:
        return None, _snippet(item, place)
    score = _score(item.get("score"), f"{place}.score")
    padded = score is not None and abs(score) >= _NO_NEIGHBOUR
    if padded or item["document"] is None:
        return None
    return score, _snippet(an_object(item["document"], f"{place}.document"), f"{place}.document")


def _score(value: object, place: str) -> float | None:
    if value is None:
        return None
    # JSON's true is an int to Python, no score
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise MalformedAnswer(f"{place} is no number")
    try:
        return float(value)
    except OverflowError:
        raise MalformedAnswer(f"{place} is no number of 64 bits") from None


def _snippet(fields: Mapping[str, object], place: str) -> Snippet:
    contents = a_text(fields.get("contents"), f"{place}.contents")
    title, _, text = contents.partition("\n")
    title = title.strip()
    if len(title) > 1 and title[0] == title[-1] == '"':
        title = title[1:-1]
    key = fields.get("id")
    if type(key) is int:
        key = str(key)
    elif key is None:
        key = hashlib.sha256(contents.encode()).hexdigest()[:16]
    return Snippet(a_text(key, f"{place}.id"), title, text.strip(), NAME)
