"""Every prompt of the package."""

from __future__ import annotations

import json
from collections.abc import Sequence
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


FORCED_SEARCH = "<reason>I look it up.</reason>\n<text_search>"
"""How the first turn begins where a search is forced; the policy goes on with the query."""

INFORMATION = "<information>\n{}\n</information>"
"""What a tool says, between the tags that no tool's text can hold."""

NO_HITS = "Nothing was found."

LIMIT = "No more searches of this kind are allowed."


def snippet_text(title: str, text: str) -> str:
    """One piece of evidence, as policy, judges and endpoints read it."""
    return f"{title}: {text}" if title else text


def snippet_line(number: int, title: str, text: str) -> str:
    """`snippet_text` in the policy's list, numbered from 1."""
    return f"{number}. {snippet_text(title, text)}"


def failure(message: str) -> str:
    """A search that failed, as the policy reads it."""
    return f"The search failed: {message}"


SNIPPET_RUBRICS = {
    "visual": "Judge by the image alone: is the last line about what the picture shows?",
    "logical": "Judge by the answer alone: does the last line say it?",
    "contextual": "Judge by the question alone: is the last line about what it asks?",
}
"""What each judge of a snippet is asked, without how to reply; the snippet is the last line."""


def snippet_question(question: str, gold: str | None) -> str:
    """A question as the judges of a snippet read it.

    Args:
        question: as it was put to the policy.
        gold: the answer, shown in training; None at test time, where nobody knows it.
    """
    return question if gold is None else f"{question} The answer is {gold}."


ORACLE = (
    "You label what a search agent did. Given a question, its right answers, the agent's queries "
    "and the snippets it read, say which queries are fit to find the answer and which snippets are "
    "evidence for it: about the right thing, and holding a right answer. Reply with JSON alone: "
    '{"queries": [0 or 1 for each query], "snippets": [0 or 1 for each snippet]}.'
)
"""System prompt of an endpoint that labels queries and snippets."""

GRADER = (
    "You grade an answer. Given a question, its right answers and the answer of an agent, reply "
    'with JSON alone: {"correct": 1} if it means the same as a right answer, else {"correct": 0}.'
)
"""System prompt of an endpoint that grades answers."""


def oracle_request(
    question: str, golds: Sequence[str], queries: Sequence[str], snippets: Sequence[str]
) -> str:
    """What the endpoint is asked about one trajectory, as JSON: no text can break out of it."""
    asked = {"question": question, "answers": golds, "queries": queries, "snippets": snippets}
    return json.dumps(asked, ensure_ascii=False)


def grader_request(question: str, golds: Sequence[str], answer: str) -> str:
    """What the endpoint is asked about one answer, as JSON."""
    asked = {"question": question, "answers": golds, "answer": answer}
    return json.dumps(asked, ensure_ascii=False)
