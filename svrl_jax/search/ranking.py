"""Orders of hits: duplicates out, several lists into one, a seeded shuffle."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from itertools import chain, islice, zip_longest

from svrl_jax.search.protocol import Hit
from svrl_jax.trajectory import Snippet

MAX_SNIPPETS = 15
"""Snippets that one turn may bring under a larger budget."""


def unique(hits: Iterable[Hit], limit: int) -> tuple[Hit, ...]:
    """The first hit of each id, at most `limit`."""
    first: dict[str, Hit] = {}
    for hit in hits:
        first.setdefault(hit.id, hit)
    return tuple(islice(first.values(), limit))


def interleave(
    results: Sequence[Sequence[Snippet]], limit: int = MAX_SNIPPETS
) -> tuple[Snippet, ...]:
    """The results of several queries as one list: all firsts, all seconds, and so on.

    Args:
        results: a list per query, best first.
        limit: the most snippets; a snippet that several queries found counts once.
    """
    ranks = zip_longest(*results)
    return unique((hit for hit in chain.from_iterable(ranks) if hit is not None), limit)


def shuffle(snippets: Sequence[Snippet], seed: int) -> tuple[Snippet, ...]:
    """The snippets in an order drawn with the seed, the same on every platform."""
    # of `random` only random() itself is promised to repeat across versions of Python
    draw = random.Random(seed)
    keyed = [(draw.random(), index) for index in range(len(snippets))]
    return tuple(snippets[index] for _, index in sorted(keyed))
