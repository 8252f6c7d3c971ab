"""API keys, read from the environment where one is used, held nowhere."""

from __future__ import annotations

import os

from svrl_jax.search.protocol import SearchError


def api_key(backend: str, variable: str) -> str:
    """The key in an environment variable.

    Raises:
        SearchError: it is not set, or it holds what no header can; the message does not show it.
    """
    key = os.environ.get(variable, "").strip()
    if not key:
        raise SearchError(backend, "key", f"the environment variable {variable} is not set")
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise SearchError(backend, "key", f"the environment variable {variable} holds no key")
    return key
