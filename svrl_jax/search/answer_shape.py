"""Checked reading of what a server's JSON holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from svrl_jax.search.plain_text import plain


class MalformedAnswer(ValueError):
    """An answer of another shape; the message names the place, never what stands there."""


def an_object(value: object, place: str) -> Mapping[str, object]:
    """The value as a JSON object. Raises MalformedAnswer."""
    if not isinstance(value, dict):
        raise MalformedAnswer(f"{place} is no object")
    return value


def an_array(value: object, place: str) -> Sequence[object]:
    """The value as a JSON array. Raises MalformedAnswer."""
    if not isinstance(value, list):
        raise MalformedAnswer(f"{place} is no array")
    return value


def a_text(value: object, place: str) -> str:
    """The value as plain text. Raises MalformedAnswer."""
    if not isinstance(value, str):
        raise MalformedAnswer(f"{place} is no text")
    return plain(value)
