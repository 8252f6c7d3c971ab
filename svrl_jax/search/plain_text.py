"""Text that no index, encoder or wire format trips over."""

from __future__ import annotations

import re

from svrl_jax.grammar import normalize_query

MAX_QUERY = 2048
"""Characters of a query that reach a backend: what Google's search box takes."""

# control characters but tab, line feed and carriage return; lone surrogates have no UTF-8 form
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


def plain(text: str) -> str:
    """The text with a blank for every control character and every lone surrogate."""
    return _UNPRINTABLE.sub(" ", text)


def search_query(query: str) -> str:
    """The query as every backend gets it: `normalize_query`'s form, plain, at most `MAX_QUERY`.

    Backends get this form and not the policy's spelling, so that a result is a function of the
    cache's key. Applying it again changes nothing.
    """
    # case folding can undo NFKC, so one round is not always a fixed point
    once = normalize_query(plain(query))
    return normalize_query(once)[:MAX_QUERY].rstrip()
