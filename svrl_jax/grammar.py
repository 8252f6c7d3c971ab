"""The grammar of a turn, with its one parser for rollout, reward and evaluation.

    turn         = reason [evidence] action          ; whitespace only between blocks
    reason       = "<reason>" text "</reason>"
    evidence     = "<verify>" bit {"," bit} "</verify>" justification
    action       = text_search | image_search | answer
    text_search  = "<text_search>" query {newline query} "</text_search>"
    image_search = "<search><img></search>"
    answer       = "<answer>" text "</answer>"

Evidence stands exactly where the turn before brought text snippets and the arm verifies. No text
holds a tag. The tags are MMSearch-R1's, verify is the paper's.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

IMAGE_SEARCH = "<search><img></search>"

Fault = Literal[
    "no reason",
    "no verify",
    "verify not due",
    "bits",
    "no action",
    "no query",
    "too many queries",
    "empty answer",
    "text outside",
    "tag in text",
    "not closed",
    "after the action",
]
"""In what way a turn breaks the grammar; the first one from the left."""


@dataclass(frozen=True)
class TextSearch:
    """Candidate queries, one of which is run.

    Attributes:
        queries: as written, without surrounding blanks; repeats stay.
    """

    queries: tuple[str, ...]


@dataclass(frozen=True)
class ImageSearch:
    """A search for what the question's picture shows."""


@dataclass(frozen=True)
class FinalAnswer:
    """Ends the trajectory."""

    text: str


Action = TextSearch | ImageSearch | FinalAnswer


@dataclass(frozen=True)
class Turn:
    """A turn that keeps to the grammar.

    Attributes:
        reason: the text of the reason block.
        verify: a mark per snippet, True for useful; None where the turn holds no evidence. Its
            length is not checked here: the reward pays for a wrong one.
        justification: what follows the marks.
        action: how it ends.
    """

    reason: str
    verify: tuple[bool, ...] | None
    justification: str
    action: Action


@dataclass(frozen=True)
class Malformed:
    """A turn that breaks the grammar.

    Attributes:
        fault: how.
        answer: the text of its one whole answer block, if there is exactly one: it may be right.
    """

    fault: Fault
    answer: str | None


_NAMES = ("reason", "verify", "text_search", "search", "answer", "information")
# the whole image search comes first: its parts are tags only where they stand apart
_TAG = re.compile(
    "|".join(
        [re.escape(IMAGE_SEARCH), "<img>", *(f"</?{name}>" for name in _NAMES)],
    )
)
_BITS = re.compile(r"\s*[01]\s*(?:,\s*[01]\s*)*")


class _Broken(Exception):
    def __init__(self, fault: Fault) -> None:
        super().__init__(fault)
        self.fault: Fault = fault


class _Reader:
    """Walks over a turn: text, tag, text, tag, ..., text."""

    def __init__(self, turn: str) -> None:
        self.texts: list[str] = []
        self.tags: list[str] = []
        start = 0
        for match in _TAG.finditer(turn):
            self.texts.append(turn[start : match.start()])
            self.tags.append(match[0])
            start = match.end()
        self.texts.append(turn[start:])
        self.place = 0

    @property
    def next_tag(self) -> str | None:
        return self.tags[self.place] if self.place < len(self.tags) else None

    def blank(self) -> None:
        """Only whitespace stands before the next tag."""
        if self.texts[self.place].strip():
            raise _Broken("text outside")

    def skip(self) -> str:
        """The text before the next tag, which is passed."""
        text = self.texts[self.place]
        self.place += 1
        return text

    def block(self, name: str) -> str:
        """The text of a block that opens here."""
        self.skip()
        if self.next_tag is None:
            raise _Broken("not closed")
        if self.next_tag != f"</{name}>":
            raise _Broken("tag in text")
        return self.skip()


def parse(turn: str, k: int, verify: bool) -> Turn | Malformed:
    """Reads one turn of the model; never raises.

    Args:
        turn: what the model wrote, decoded, without its end-of-turn token.
        k: the most queries that a search may propose.
        verify: whether evidence is due.
    """
    reader = _Reader(turn)
    try:
        return _turn(reader, k, verify)
    except _Broken as broken:
        return Malformed(broken.fault, _only_answer(reader))


def _turn(reader: _Reader, k: int, verify: bool) -> Turn:
    if reader.next_tag != "<reason>":
        raise _Broken("no reason")
    reader.blank()
    reason = reader.block("reason").strip()
    marks, justification = None, ""
    if reader.next_tag == "<verify>":
        if not verify:
            raise _Broken("verify not due")
        reader.blank()
        bits = reader.block("verify")
        if not _BITS.fullmatch(bits):
            raise _Broken("bits")
        marks = tuple(bit == "1" for bit in bits if bit in "01")
        justification = reader.texts[reader.place].strip()
    elif verify:
        raise _Broken("no verify")
    else:
        if reader.next_tag is not None:
            reader.blank()
    action = _action(reader, k)
    if reader.next_tag is not None or reader.texts[reader.place].strip():
        raise _Broken("after the action")
    return Turn(reason, marks, justification, action)


def _action(reader: _Reader, k: int) -> Action:
    match reader.next_tag:
        case "<text_search>":
            lines = reader.block("text_search").splitlines()
            queries = tuple(line.strip() for line in lines if line.strip())
            if not queries:
                raise _Broken("no query")
            if len(queries) > k:
                raise _Broken("too many queries")
            return TextSearch(queries)
        case tag if tag == IMAGE_SEARCH:
            reader.skip()
            return ImageSearch()
        case "<answer>":
            answer = reader.block("answer").strip()
            if not answer:
                raise _Broken("empty answer")
            return FinalAnswer(answer)
        case None:
            raise _Broken("no action")
        case _:
            raise _Broken("tag in text")


def _only_answer(reader: _Reader) -> str | None:
    if reader.tags.count("<answer>") != 1:
        return None
    opened = reader.tags.index("<answer>")
    if reader.tags[opened + 1 : opened + 2] != ["</answer>"]:
        return None
    return reader.texts[opened + 1].strip() or None


def defuse(text: str) -> str:
    """A tool's text in which no tag of the grammar stands: its angle brackets become round."""
    return _TAG.sub(lambda tag: tag[0].replace("<", "(").replace(">", ")"), text)


def render(turn: Turn) -> str:
    """The turn as the model writes it; `parse` reads it back if no text holds a tag."""
    parts = [f"<reason>{turn.reason}</reason>"]
    if turn.verify is not None:
        marks = ",".join("1" if mark else "0" for mark in turn.verify)
        parts.append(f"<verify>{marks}</verify>{turn.justification}")
    match turn.action:
        case TextSearch(queries):
            lines = "\n".join(queries)
            parts.append(f"<text_search>{lines}</text_search>")
        case ImageSearch():
            parts.append(IMAGE_SEARCH)
        case FinalAnswer(text):
            parts.append(f"<answer>{text}</answer>")
    return "\n".join(parts)


def normalize_query(query: str) -> str:
    """The form in which queries are compared: NFKC, case folded, blanks collapsed."""
    return " ".join(unicodedata.normalize("NFKC", query).casefold().split())


def unique_queries(queries: Iterable[str]) -> tuple[str, ...]:
    """The valid queries, the first of those that are the same; empty ones are not valid."""
    first: dict[str, str] = {}
    for query in queries:
        if key := normalize_query(query):
            first.setdefault(key, query)
    return tuple(first.values())
