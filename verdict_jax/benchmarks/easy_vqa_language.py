"""The controlled language in which the bundled model reasons about easy-vqa pictures.

A picture shows one shape, so there are 24 possible pictures (8 colours x 3 shapes). What a
sentence says about the picture is the set of pictures in which it is true; accepted steps are
the intersection of their sets. `check_step` needs nothing else.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from verdict_jax.benchmarks.examples import StepVerdict
from verdict_jax.prompts import ANSWER_PREFIX

COLORS = ("black", "blue", "brown", "gray", "green", "red", "teal", "yellow")
SHAPES = ("circle", "rectangle", "triangle")
WORDS = COLORS + SHAPES

Attribute = Literal["color", "shape"]


def attribute_of(word: str) -> Attribute:
    """Which attribute a word of WORDS is a value of."""
    return "color" if word in COLORS else "shape"


@dataclass(frozen=True)
class Content:
    """What one picture shows."""

    color: str
    shape: str

    def has(self, word: str) -> bool:
        """True where the shape's colour or kind is `word`."""
        return word in (self.color, self.shape)


CONTENTS = tuple(Content(color, shape) for color, shape in itertools.product(COLORS, SHAPES))
Worlds = frozenset[Content]
EVERYTHING: Worlds = frozenset(CONTENTS)
_SHOWING = {word: frozenset(c for c in CONTENTS if c.has(word)) for word in WORDS}


@dataclass(frozen=True)
class Asked:
    """What a question asks.

    Attributes:
        attribute: what it is about.
        target: the value whose presence it asks for; None where it asks for the value itself.
        negated: True for "is there no ...".
        given: a value that the question takes for granted ("what color is the circle?").
    """

    attribute: Attribute
    target: str | None = None
    negated: bool = False
    given: str | None = None

    def answer(self, content: Content) -> str:
        """The right answer for a picture."""
        if self.target is None:
            return content.color if self.attribute == "color" else content.shape
        return "yes" if content.has(self.target) != self.negated else "no"

    @property
    def answers(self) -> tuple[str, ...]:
        """The answers of the right kind."""
        if self.target is not None:
            return ("yes", "no")
        return COLORS if self.attribute == "color" else SHAPES

    @property
    def presupposed(self) -> Worlds:
        """The pictures that the question allows for."""
        return EVERYTHING if self.given is None else _SHOWING[self.given]


@functools.cache
def answered(asked: Asked, answer: str | None) -> Worlds:
    """The pictures for which this is the right answer."""
    return frozenset(c for c in asked.presupposed if asked.answer(c) == answer)


_TARGET = r"(?P<target>\w+)(?: shape)?"
_PRESENCE = re.compile(
    rf"(?:does the image (?P<not1>not )?contain a {_TARGET}"
    rf"|is (?:a|(?P<not2>no)) {_TARGET.replace('target', 'target2')} present"
    rf"|is there (?P<not3>not )?a {_TARGET.replace('target', 'target3')}(?: in the image)?)\?"
)
_COLOR = re.compile(r"what (?:color is|is the color of) the (?P<given>\w+)\?")
_SHAPE = re.compile(r"what (?:shape [a-z ]+|is the (?P<given>\w+) shape)\?")


@functools.cache
def parse_question(text: str) -> Asked:
    """What one of easy-vqa's questions asks.

    Raises:
        ValueError: the text has none of the published forms.
    """
    if match := _PRESENCE.fullmatch(text):
        target = match["target"] or match["target2"] or match["target3"]
        if target in WORDS:
            negated = any(match[name] for name in ("not1", "not2", "not3"))
            return Asked(attribute_of(target), target, negated)
    elif match := _COLOR.fullmatch(text):
        if match["given"] in ("shape", *SHAPES):
            return Asked("color", given=None if match["given"] == "shape" else match["given"])
    elif match := _SHAPE.fullmatch(text):
        if match["given"] in (None, *COLORS):
            return Asked("shape", given=match["given"])
    raise ValueError(f"not a question of easy-vqa: {text!r}")


@dataclass(frozen=True)
class Observation:
    """Says what is seen; a part may be left out, not both."""

    color: str | None
    shape: str | None

    @property
    def words(self) -> tuple[str | None, str | None]:
        return self.color, self.shape


@dataclass(frozen=True)
class Restatement:
    """Says what the question asks."""

    attribute: Attribute
    target: str | None
    negated: bool


@dataclass(frozen=True)
class Focus:
    """Says which value the question names."""

    word: str


@dataclass(frozen=True)
class Comparison:
    """Compares the value seen with the value asked for, as words."""

    seen: str
    asked: str
    same: bool


@dataclass(frozen=True)
class Conclusion:
    """Concludes that a value is present or absent."""

    word: str
    present: bool


@dataclass(frozen=True)
class Answer:
    """Ends the chain."""

    value: str


@dataclass(frozen=True)
class Aside:
    """Says something harmless that no question asks."""

    text: str


Meaning = Observation | Restatement | Focus | Comparison | Conclusion | Answer | Aside

ASIDES = (
    "The background is pale.",
    "The picture is small.",
    "Grass is green.",
    "Bananas are yellow.",
    "Fresh snow is white.",
    "A triangle has three sides.",
    "A circle has no corners.",
    "A rectangle has four corners.",
    "Shapes are fun to draw.",
    "Paint dries slowly.",
    "Cats like to sleep.",
    "It may rain later.",
    "Paris is a big city.",
    "Two plus two is four.",
    "Music makes people happy.",
    "Computers store pictures as numbers.",
)


def _noun(word: str) -> str:
    return f"{word} shape" if word in COLORS else word


def _subject(word: str) -> str:
    return word if word in COLORS else f"a {word}"


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def paraphrases(meaning: Meaning) -> tuple[str, ...]:
    """Every sentence with this meaning. No sentence has two meanings."""
    match meaning:
        case Observation(None, shape):
            return f"The shape is a {shape}.", f"I see a {shape}."
        case Observation(color, None):
            return f"The shape is {color}.", f"I see a {color} shape."
        case Observation(color, shape):
            seen = f"a {color} {shape}"
            return (
                f"The picture shows {seen}.",
                f"There is {seen} in the picture.",
                f"I see {seen}.",
            )
        case Restatement(attribute, target, negated):
            if target is None:
                return f"The question asks for the {attribute}.", f"We must name the {attribute}."
            sought = f"{'no' if negated else 'a'} {_noun(target)}"
            return (
                f"The question asks whether there is {sought}.",
                f"We must check if there is {sought}.",
            )
        case Focus(word):
            return (
                f"{_capital(_subject(word))} is the {attribute_of(word)} asked about.",
                f"The question names {_subject(word)}.",
            )
        case Comparison(seen, asked, same):
            kinds = f"{attribute_of(seen)}s" if not same else f"{attribute_of(seen)}"
            pair = f"{_capital(_subject(seen))} and {_subject(asked)} are"
            if same:
                return (
                    f"{_capital(_subject(seen))} is the same as {_subject(asked)}.",
                    f"{pair} the same {kinds}.",
                )
            return (
                f"{_capital(_subject(seen))} is not {_subject(asked)}.",
                f"{pair} different {kinds}.",
            )
        case Conclusion(word, present):
            some = "a" if present else "no"
            negation = "" if present else "not "
            return (
                f"So there is {some} {_noun(word)}.",
                f"So the {attribute_of(word)} is {negation}{_subject(word)}.",
                f"Hence {some} {_noun(word)} is present.",
            )
        case Answer(value):
            return (f"{ANSWER_PREFIX}{value}",)
        case Aside(text):
            return (text,)


def _all_meanings() -> Iterator[Meaning]:
    for color, shape in itertools.product((None, *COLORS), (None, *SHAPES)):
        if color or shape:
            yield Observation(color, shape)
    attributes: tuple[Attribute, ...] = ("color", "shape")
    for attribute in attributes:
        yield Restatement(attribute, None, False)
    for word in WORDS:
        yield Focus(word)
        for negated in (False, True):
            yield Restatement(attribute_of(word), word, negated)
            yield Conclusion(word, not negated)
    for values in (COLORS, SHAPES):
        for seen, asked in itertools.permutations(values, 2):
            yield Comparison(seen, asked, False)
            yield Comparison(seen, asked, True)
    for value in ("yes", "no", *WORDS):
        yield Answer(value)
    for text in ASIDES:
        yield Aside(text)


MEANINGS: tuple[Meaning, ...] = tuple(_all_meanings())
"""Everything that can be said."""

SENTENCES: dict[str, Meaning] = {
    sentence: meaning for meaning in MEANINGS for sentence in paraphrases(meaning)
}
"""Every sentence of the language."""


@functools.cache
def worlds(meaning: Observation | Conclusion) -> Worlds:
    """The pictures in which a statement is true."""
    if isinstance(meaning, Observation):
        return frozenset.intersection(*(_SHOWING[word] for word in meaning.words if word))
    showing = _SHOWING[meaning.word]
    return showing if meaning.present else EVERYTHING - showing


def context(asked: Asked, accepted: tuple[Meaning, ...]) -> Worlds:
    """The pictures that the question and the accepted steps leave possible."""
    possible = asked.presupposed
    for meaning in accepted:
        if isinstance(meaning, Observation | Conclusion):
            possible &= worlds(meaning)
    return possible


def is_grounded(meaning: Meaning, asked: Asked, content: Content) -> bool:
    """True unless the step, or the answer it gives, claims what the picture does not show."""
    match meaning:
        case Observation() | Conclusion():
            return content in worlds(meaning)
        case Answer(value):
            if value in asked.answers:
                return asked.answer(content) == value
            return value not in WORDS or content.has(value)
        case Restatement() | Focus() | Comparison() | Aside():
            return True


def fits(meaning: Meaning, asked: Asked, possible: Worlds) -> bool:
    """True where a step contradicts nothing so far and what it concludes follows.

    Args:
        meaning: what the step says.
        asked: what the question asks.
        possible: the pictures that the accepted steps leave possible.
    """
    match meaning:
        case Observation():
            return not possible.isdisjoint(worlds(meaning))
        case Conclusion():
            return bool(possible) and possible <= worlds(meaning)
        case Comparison(seen, asked_word, same):
            follows = bool(possible) and possible <= _SHOWING[seen]
            return follows and same == (seen == asked_word)
        case Answer(value):
            return {asked.answer(content) for content in possible} == {value}
        case Restatement() | Focus() | Aside():
            return True


def is_on_topic(meaning: Meaning, asked: Asked) -> bool:
    """True where a step is about the attribute, and the value if any, that is asked about."""
    match meaning:
        case Observation(color, shape):
            return (color if asked.attribute == "color" else shape) is not None
        case Restatement(attribute, target, negated):
            return (attribute, target, negated) == (asked.attribute, asked.target, asked.negated)
        case Focus(word):
            return word == asked.target
        case Comparison(_, asked_word, _):
            return asked_word == asked.target
        case Conclusion(word, present):
            return attribute_of(word) == asked.attribute and (present or word == asked.target)
        case Answer(value):
            return value in asked.answers
        case Aside():
            return False


def judge_meaning(
    meaning: Meaning, asked: Asked, content: Content, accepted: tuple[Meaning, ...]
) -> StepVerdict:
    """The labels of a step.

    Grounded goes by the picture alone and logical by the accepted steps alone: after a wrong
    accepted step the right answer is grounded but illogical, and the wrong one that follows is
    logical but ungrounded. A step that claims nothing about the picture is grounded.

    Args:
        meaning: what the step says.
        asked: what the question asks.
        content: what the picture shows.
        accepted: what the accepted steps say.
    """
    finished = any(isinstance(step, Answer) for step in accepted)
    new = meaning not in accepted and not finished
    return StepVerdict(
        grounded=is_grounded(meaning, asked, content),
        logical=new and fits(meaning, asked, context(asked, accepted)),
        on_topic=is_on_topic(meaning, asked),
    )


def check_step(
    step: str, question: str, content: Content, accepted: Sequence[str]
) -> StepVerdict | None:
    """The labels of a step that was written as text; None where the language has no such sentence.

    Accepted steps outside the language claim nothing.

    Args:
        step: the step without its delimiter.
        question: the question's text.
        content: what the picture shows.
        accepted: the steps before it.

    Raises:
        ValueError: no question of easy-vqa.
    """
    meaning = SENTENCES.get(step)
    if meaning is None:
        return None
    known = tuple(SENTENCES[earlier] for earlier in accepted if earlier in SENTENCES)
    return judge_meaning(meaning, parse_question(question), content, known)
