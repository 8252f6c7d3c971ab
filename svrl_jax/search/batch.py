"""The searches of a batch, run concurrently."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from svrl_jax.search.protocol import Hit, Query, Request, SearchError, SearchTool, query_key

WORKERS = 8
"""Searches that run at once."""


def search_all(
    tool: SearchTool[Query, Hit], requests: Sequence[Request[Query]], workers: int = WORKERS
) -> tuple[tuple[Hit, ...] | SearchError, ...]:
    """One result per request, in the order of the requests; a failed search is its error.

    Requests that agree in query key and top_k run once.

    Args:
        tool: called from several threads.
        requests: of one batch.
        workers: the most searches at once.

    Raises:
        ValueError: a request's top_k, or `workers`, is less than 1.
    """
    keys = [(query_key(request.query), request.top_k) for request in requests]
    distinct = dict(zip(reversed(keys), reversed(requests), strict=True))

    def run(request: Request[Query]) -> tuple[Hit, ...] | SearchError:
        try:
            return tool.search(request.query, request.top_k)
        except SearchError as error:
            return error

    with ThreadPoolExecutor(workers, thread_name_prefix="search") as pool:
        found = dict(zip(distinct, pool.map(run, distinct.values()), strict=True))
    return tuple(found[key] for key in keys)
