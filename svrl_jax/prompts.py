"""Every prompt of the package."""

from __future__ import annotations

from typing import Literal

PromptKind = Literal["answer", "rag", "tags", "react", "queries", "verify"]
"""answer: no tools. rag: one search is forced. tags: MMSearch-R1's search tags. react: reason
before every action. queries: react with k queries a search. verify: that with marks on the
snippets."""

_REASON = "Begin every turn with <reason> your thoughts </reason>."
_ANSWER = "Answer with <answer> a few words </answer>."
_IMAGE = "To find out what the picture shows, write <search><img></search>."
_ONE_QUERY = "To look something up, write <text_search> a query </text_search>."
_QUERIES = (
    "To look something up, write <text_search> up to {k} different queries, one a line "
    "</text_search>; one of them is run."
)
_ONLY_IF = "Search only if you do not know."
_MARKS = (
    "After search results, write behind your thoughts <verify> for each snippet 1 if it is useful, "
    "else 0, with commas </verify> and say in a few words why; then go on."
)

_PARTS: dict[PromptKind, tuple[str, ...]] = {
    "answer": (_REASON, _ANSWER),
    "rag": (_REASON, _ONE_QUERY, _ANSWER),
    "tags": (_REASON, _IMAGE, _ONE_QUERY, _ONLY_IF, _ANSWER),
    "react": (
        "Work in turns: think, act, look at what came back.",
        _REASON, _IMAGE, _ONE_QUERY, _ONLY_IF, _ANSWER,
    ),
    "queries": (
        "Work in turns: think, act, look at what came back.",
        _REASON, _IMAGE, _QUERIES, _ONLY_IF, _ANSWER,
    ),
    "verify": (
        "Work in turns: think, act, look at what came back.",
        _REASON, _IMAGE, _QUERIES, _ONLY_IF, _MARKS, _ANSWER,
    ),
}  # fmt: skip


def system(kind: PromptKind, k: int) -> str:
    """The system prompt of an arm.

    Args:
        kind: which.
        k: queries that a search may propose, where it may propose several.
    """
    return " ".join(_PARTS[kind]).replace("{k}", str(k))
