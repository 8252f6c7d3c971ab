"""Final answers: what a chain declares, which choice that is, whether it is right.

An answer is read from a declaration ("Answer: ...", "The answer is ...", "I choose ...",
`\\boxed{...}`, `<answer>...</answer>`), the last one counting, and never from the prose around it.
What cannot be read is None: no letter is ever guessed. All of it takes time linear in the text.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from verdict_jax.prompts import LETTERS

MAX_CONTENT = 2000
"""Characters of a declaration that are read."""

MAX_PROSE_WORDS = 12
"""A longer sentence after "the answer is" explains, it does not declare."""

# Quantifiers are bounded wherever two of them could share a character: nothing backtracks.
_TAG = re.compile(r"<(/?)answer>", re.IGNORECASE)
_BOXED = re.compile(r"\\boxed ?\{")
_KIND = r"(?:final|correct|right|best|short|most likely)\s{1,3}"
_LABEL = re.compile(
    rf"\b(?:{_KIND})?answer[*_]{{0,3}}[ \t]{{0,3}}(?:is[ \t]{{0,3}})?[:：=][*_]{{0,3}}"
    r"|^[#*_ ]{1,8}(?:final )?answer[#*_ ]{0,4}$",
    re.IGNORECASE | re.MULTILINE,
)
_PROSE = re.compile(
    rf"\b(?:(?:the|my|our)\s{{1,3}}(?:{_KIND})?answer|{_KIND}(?:answer|option|choice))[*_]{{0,3}}"
    r"\s{1,3}(?:is|must\s{1,3}be|should\s{1,3}be|has\s{1,3}to\s{1,3}be)\b(?![ \t]{0,3}[:：])",
    re.IGNORECASE,
)
_CHOOSE = re.compile(
    r"\bI(?:\s{1,3}(?:would|will|shall)|['’](?:d|ll))?\s{1,3}"
    r"(?:choose|pick|select|answer|go\s{1,3}with)\b"
)
_STOP = re.compile(r"[.!?](?=[\s*_)\"”’\]]|$)")
_ABBREVIATIONS = frozenset(("mr", "mrs", "ms", "dr", "st", "prof", "vs", "etc", "approx"))
# From here on a clause gives reasons, and these may name other letters.
_REASON = re.compile(
    r"[,;]?\s(?:because|since|so\s{1,3}that|given|due\s|whereas|while|although|though|as)\b"
    r"|\s[-–—]{1,2}\s|;\s",
    re.IGNORECASE,
)
_CONDITION = re.compile(r"\b(?:if|whether|unless|suppose|assuming)\b", re.IGNORECASE)
# "The answer is consistent with the picture" declares nothing.
_NO_DECLARATION = re.compile(
    r"(?:not|unclear|uncertain|consistent|based|determined|given|found|obtained|supported|shown|"
    r"visible|clear|obvious|straightforward|likely|probably|possibly|perhaps|either\s{1,3}of|"
    r"to\s{1,3}be)\s{1,3}\S",
    re.IGNORECASE,
)
_NEGATION = re.compile(r"\b(?:not|never|neither|nor|without|cannot)\b|n['’]t\b", re.IGNORECASE)
_TEX = re.compile(r"\\(?:text|mathrm|mathbf|textbf)\{([^{}]{0,200})\}")
_BARE = re.compile(r"(?:(?:option|choice)\s{1,3})?([A-Z])", re.IGNORECASE)
_LEAD = re.compile(r"(?:(?:option|choice)\s{1,3})?[(\[*_\"“]{0,4}([A-Z])[)\]*_\"”]{0,4}[.:,)]?")
# A letter standing alone; not the article of "A dog", nor the pronoun "I".
_LETTER = re.compile(
    r"(?<![\w'’])(?:([B-HJ-Z])|([AI])(?!\s(?!(?:or|and|is|was|but|nor|not|rather|instead)\b)\w))"
    r"(?![\w'’])"
)
_REJECTED_BEFORE = re.compile(
    r"\b(?:not|than|instead of)\s(?:(?:option|choice)\s)?[(*\"“]{0,3}([A-Z])(?![\w'’])"
)
_REJECTED_AFTER = re.compile(
    r"(?<![\w'’])([A-Z])[)*\"”]{0,3}\s(?:is|was)\s(?:not\b|incorrect|wrong|false|ruled\sout)"
)
_TOKEN = re.compile(r"(?<![\w.])[-−]?\d+(?:[.,:/]\d+)*%?|[^\W_]+(?:'[^\W_]+)*")
_THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+")
_ARTICLES = ("a", "an", "the")
_WRAPPING = string.whitespace + "*_`\"'“”‘’$"


_Form = Literal["mark", "prose", "choose"]


@dataclass(frozen=True)
class _Declaration:
    """A span of text that says what the answer is.

    Attributes:
        form: "mark" for a label, a box or a tag; "prose" for a sentence; "choose" for "I choose".
        content: what follows, up to the end of its line (of the next line if the label stands
            alone), its closing mark or the next declaration. Never blank.
    """

    form: _Form
    content: str


_Reading = str | Literal["nothing", "unclear"]


def final_answer(text: str) -> str | None:
    """The last answer that a text declares, without decoration; None if it declares none.

    "Answer: no. It is red." gives "no", "The answer is **B**." gives "B", "\\boxed{\\text{7}}"
    gives "7". A condition ("If it is red, the answer is yes") and a retraction ("The answer is not
    B") declare nothing.
    """
    for declaration in reversed(_declarations(text)):
        content = declaration.content
        answer = _undecorated(_first_sentence(content))
        if declaration.form == "mark" and answer:
            return answer
        if declaration.form == "prose" and answer:
            if re.match(r"not\b", answer):
                return None
            if not _NO_DECLARATION.match(answer) and len(answer.split()) <= MAX_PROSE_WORDS:
                return answer
        if declaration.form == "choose" and _BARE.fullmatch(_undecorated(_clause(content))):
            return _undecorated(_clause(content))
    return None


def extract_choice(text: str, choices: Sequence[str]) -> str | None:
    """The letter of the choice that a text declares, None if that cannot be told.

    The last declaration that names a letter or a choice's text decides. Two letters in one
    declaration, a letter that no choice has, a label followed by something else than a choice, a
    negation: None. A text without any declaration is read only if its last line is nothing but a
    letter or a choice ("B", "(B) left of the car", "left of the car").

    Args:
        text: a chain or its last step.
        choices: option texts in order, lettered A, B, ...; never changed.

    Raises:
        ValueError: no choice, or more than there are letters.
    """
    keys = _choice_tokens(choices)
    for declaration in reversed(_declarations(text)):
        reading = _read(declaration.content, keys)
        if reading == "unclear" or (reading == "nothing" and declaration.form == "mark"):
            return None
        if reading != "nothing":
            return reading
    last_line = text.rstrip().rsplit("\n", 1)[-1]
    reading = _read_whole(last_line if len(last_line) <= MAX_CONTENT else "", keys)
    return reading if reading not in ("nothing", "unclear") else None


def declares(text: str, choices: Sequence[str] = ()) -> bool:
    """Whether a text declares a final answer, so that a chain may end with it.

    Without choices: `final_answer` finds one. With choices prose must name one of them ("The
    correct answer is the one closest to the camera." explains, a chain goes on from it), be it
    that it names two; a label, a box or a tag declares whatever it holds. A retraction ("The
    answer is not B") declares nothing.

    Raises:
        ValueError: more choices than there are letters.
    """
    if not choices:
        return final_answer(text) is not None
    keys = _choice_tokens(choices)
    for declaration in reversed(_declarations(text)):
        reading = _read(declaration.content, keys)
        if declaration.form == "mark":
            return True
        if reading == "unclear":
            return not _NEGATION.search(_clause(declaration.content))
        if reading != "nothing":
            return True
    return False


def is_correct(answer: str | None, gold: str, choices: Sequence[str] = ()) -> bool:
    """Whether a chain's answer is the gold one. None, for none that can be read, is wrong.

    With choices the letters are compared, and the gold answer is a letter ("B", "(B)") or the text
    of a choice. Without, the texts are: letter case, punctuation, a leading article and the
    spelling of a number (3.0, 1,000) do not count; a sign and a decimal point do.

    Args:
        answer: `Trace.answer`: what `extract_choice` gives of a finished chain if there are
            choices, else what `final_answer` gives.
        gold: the gold answer.
        choices: option texts in order, lettered A, B, ...

    Raises:
        ValueError: the gold answer is none of the choices, or there are too many of them.
    """
    if not choices:
        return answer is not None and compared_tokens(answer) == compared_tokens(gold)
    letter = _read_whole(gold, _choice_tokens(choices))
    if letter in ("nothing", "unclear"):
        raise ValueError(f"the gold answer {gold!r} is none of the choices {tuple(choices)}")
    return answer == letter


def _choice_tokens(choices: Sequence[str]) -> list[tuple[str, ...]]:
    if not 1 <= len(choices) <= len(LETTERS):
        raise ValueError(f"expected 1 to 26 choices, got {len(choices)}")
    return [compared_tokens(choice) for choice in choices]


def _declarations(text: str) -> list[_Declaration]:
    """All declarations in the order of the text."""
    spans: list[tuple[int, int, int | None, _Form]] = []
    tags = list(_TAG.finditer(text))
    for opening, closing in zip(tags, tags[1:], strict=False):
        if not opening[1] and closing[1]:
            spans.append((opening.start(), opening.end(), closing.start(), "mark"))
    closed = _braces(text)
    for match in _BOXED.finditer(text):
        end = closed.get(match.end() - 1)
        if end is not None:
            spans.append((match.start(), match.end(), end, "mark"))
    for match in _LABEL.finditer(text):
        spans.append((match.start(), match.end(), None, "mark"))
    for match in _PROSE.finditer(text):
        sentence = _STOP.split(text[max(0, match.start() - 200) : match.start()])[-1]
        if not _CONDITION.search(sentence.rsplit("\n", 1)[-1]):
            spans.append((match.start(), match.end(), None, "prose"))
    for match in _CHOOSE.finditer(text):
        spans.append((match.start(), match.end(), None, "choose"))
    spans.sort(key=lambda span: span[0])

    borders = sorted([span[0] for span in spans] + [tag.start() for tag in tags])
    declarations, border = [], 0
    for _, begin, end, form in spans:
        while border < len(borders) and borders[border] < begin:
            border += 1
        limit = borders[border] if border < len(borders) else len(text)
        limit = min(limit if end is None else min(end, limit), begin + MAX_CONTENT)
        content = text[begin:limit].strip(_WRAPPING)
        if content:
            content = content if end is not None else content.split("\n", 1)[0]
            declarations.append(_Declaration(form, content))
    return declarations


def _braces(text: str) -> dict[int, int]:
    """The place of the closing brace of every opening one that is closed."""
    opened, closed = [], {}
    for match in re.finditer(r"[{}]", text):
        if match[0] == "{":
            opened.append(match.start())
        elif opened:
            closed[opened.pop()] = match.start()
    return closed


def _first_sentence(content: str) -> str:
    for stop in _STOP.finditer(content):
        before = content[max(0, stop.start() - 20) : stop.start()].split()
        word = before[-1].lstrip("(\"'*") if before else ""
        if word.lower() in _ABBREVIATIONS or re.fullmatch(r"[^\W\d](?:\.[^\W\d])+", word):
            continue
        # "J. K. Rowling": one of several initials.
        after = content[stop.end() : stop.end() + 3]
        several = re.match(r"\s[A-Z]\.", after) or (before[-2:-1] and before[-2][1:] == ".")
        if not (len(word) == 1 and several):
            return content[: stop.start()]
    return content


def _clause(content: str) -> str:
    """The first sentence up to where it begins to give reasons."""
    return _REASON.split(_first_sentence(content), maxsplit=1)[0]


def _undecorated(text: str) -> str:
    """Without markup, quotes, brackets around the whole, and punctuation at the ends."""
    text = _TEX.sub(r"\1", text)
    while True:
        shorter = text.strip(_WRAPPING).rstrip(".,;:!?").strip(_WRAPPING)
        if shorter[:1] + shorter[-1:] in ("()", "[]", "{}") and len(shorter) > 1:
            inner = shorter[1:-1]
            if not set("()[]{}") & set(inner):
                shorter = inner
        if shorter == text:
            return text
        text = shorter


def compared_tokens(text: str) -> tuple[str, ...]:
    """What is compared of a text: its words and numbers, without a leading article."""
    plain = unicodedata.normalize("NFKC", text).casefold().replace("’", "'").replace("−", "-")
    tokens = [_number(token) for token in _TOKEN.findall(plain)]
    if len(tokens) > 1 and tokens[0] in _ARTICLES:
        tokens = tokens[1:]
    # Signs alone ("+", "?") are compared as they stand.
    return tuple(tokens) or (plain.strip(),)


def _number(token: str) -> str:
    """3.0 as 3 and 1,000 as 1000; anything else as it is."""
    if _THOUSANDS.fullmatch(token):
        return token.replace(",", "")
    whole, point, decimals = token.partition(".")
    if point and decimals.isdigit():
        return f"{whole}.{decimals}".rstrip("0").rstrip(".")
    return token


def _read_whole(text: str, choices: Sequence[tuple[str, ...]]) -> _Reading:
    """The choice that a text is, nothing else: a letter, a choice's text, or both."""
    plain = _undecorated(text)
    if not plain:
        return "nothing"
    letters = LETTERS[: len(choices)]
    named = {letters[i] for i, choice in enumerate(choices) if choice == compared_tokens(plain)}
    bare = _BARE.fullmatch(plain)
    if bare:
        named.add(bare[1].upper())
    lead = _LEAD.match(plain)
    if lead and not bare and lead[1] in letters:
        rest = plain[lead.end() :]
        if compared_tokens(rest) == choices[letters.index(lead[1])]:
            return lead[1]
    if len(named) > 1 or not named <= set(letters):
        return "unclear"
    return named.pop() if named else "nothing"


def _read(content: str, choices: Sequence[tuple[str, ...]]) -> _Reading:
    """The choice that the content of a declaration names."""
    sentence = _first_sentence(content)
    for text in (content, sentence, _clause(content)):
        reading = _read_whole(text, choices)
        if reading != "nothing":
            return reading
    clause = _TEX.sub(r"\1", _clause(content)).strip(_WRAPPING)
    found = {match[1] or match[2] for match in _LETTER.finditer(clause)}
    rejected = set(_REJECTED_BEFORE.findall(clause)) | set(_REJECTED_AFTER.findall(clause))
    letters = LETTERS[: len(choices)]
    if found:
        kept = found - rejected
        return kept.pop() if len(kept) == 1 and kept <= set(letters) else "unclear"
    if _NEGATION.search(clause):
        return "unclear"
    named = _contained(compared_tokens(clause), choices)
    if len(named) > 1:
        return "unclear"
    return letters[named.pop()] if named else "nothing"


def _contained(words: tuple[str, ...], choices: Sequence[tuple[str, ...]]) -> set[int]:
    """Choices whose words stand in a row among these; a longer one hides those inside it."""
    free = [True] * len(words)
    named: set[int] = set()
    for index in sorted(range(len(choices)), key=lambda i: -len(choices[i])):
        width = len(choices[index])
        for start in range(len(words) - width + 1):
            stop = start + width
            if words[start:stop] == choices[index] and all(free[start:stop]):
                free[start:stop] = [False] * width
                named.add(index)
    return named
