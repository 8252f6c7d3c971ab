"""A snippet as it is shown: what stands around the words of the query."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from svrl_jax.matching import normalise
from svrl_jax.trajectory import Snippet

SHOWN = 28
"""Tokens of a snippet's text that are shown in this world."""


def excerpt(
    snippet: Snippet, query: str, count: Callable[[str], int], limit: int = SHOWN
) -> Snippet:
    """A snippet whose text is cut to a run of whole words around those of the query.

    The run holds as many different words of the query as it can, and begins as early as it can;
    words that the title holds do not count, for they stand nearly everywhere in a country's
    snippets. Without any, it is the beginning. A text within the limit stays as it is.

    Args:
        snippet: as found.
        query: that found it.
        count: of a text, its length in whatever the limit is given in; grows with the text.
        limit: the most that is shown. A first word that is longer is shown all the same.
    """
    if count(snippet.text) <= limit:
        return snippet
    words = snippet.text.split()
    wanted = set(normalise(query)) - set(normalise(snippet.title))
    hits = [wanted & set(normalise(word)) for word in words]
    best = (0, 0, _end(words, 0, count, limit))
    for first in range(len(words)):
        if not hits[first]:
            continue
        end = _end(words, first, count, limit)
        found = len(set().union(*hits[first:end]))
        if found > best[0]:
            best = (found, first, end)
    _, first, end = best
    # what room is left is filled in front
    while first > 0 and count(" ".join(words[first - 1 : end])) <= limit:
        first -= 1
    return replace(snippet, text=" ".join(words[first:end]))


def _end(words: list[str], first: int, count: Callable[[str], int], limit: int) -> int:
    """Behind the last word of the longest run from `first` within the limit."""
    end = first + 1
    while end < len(words) and count(" ".join(words[first : end + 1])) <= limit:
        end += 1
    return end
