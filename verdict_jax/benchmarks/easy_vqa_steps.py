"""Training examples from easy-vqa, drawn by an explicit generator.

What a picture shows is derived from the published questions about it, never from its pixels:
every answer rules out some of the 24 possible pictures. Pictures that stay ambiguous (about one
in ten) are left out.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, Int

from verdict_jax.benchmarks.easy_vqa import Split, load
from verdict_jax.benchmarks.easy_vqa_language import (
    ASIDES,
    CONTENTS,
    EVERYTHING,
    MEANINGS,
    Answer,
    Aside,
    Asked,
    Comparison,
    Conclusion,
    Content,
    Focus,
    Meaning,
    Observation,
    Restatement,
    Worlds,
    answered,
    attribute_of,
    context,
    fits,
    is_grounded,
    is_on_topic,
    paraphrases,
    parse_question,
)
from verdict_jax.benchmarks.examples import JudgeExample, ReasonerExample, StepVerdict
from verdict_jax.protocols import Question


@dataclass(frozen=True)
class Item:
    """A question whose picture is known.

    Attributes:
        question: as published.
        asked: what it asks.
        content: what its picture shows.
    """

    question: Question
    asked: Asked
    content: Content


def picture_of(question: Question) -> Path:
    """The one picture of an easy-vqa question."""
    (image,) = question.images
    assert isinstance(image, Path)
    return image


def picture_contents(questions: Sequence[Question]) -> dict[Path, Content]:
    """What each picture shows, for the pictures on which the questions leave one possibility.

    Raises:
        ValueError: the answers about one picture contradict each other.
    """
    possible: dict[Path, Worlds] = {}
    for question in questions:
        picture = picture_of(question)
        allowed = answered(parse_question(question.text), question.answer)
        possible[picture] = possible.get(picture, EVERYTHING) & allowed
    impossible = [picture for picture, worlds in possible.items() if not worlds]
    if impossible:
        raise ValueError(f"{impossible[0]}: its questions contradict each other")
    return {picture: min(w, key=repr) for picture, w in possible.items() if len(w) == 1}


@functools.cache
def items(split: Split) -> tuple[Item, ...]:
    """The questions of a split whose pictures are known, in published order."""
    questions = load(split)
    contents = picture_contents(questions)
    pictured = ((question, contents.get(picture_of(question))) for question in questions)
    return tuple(
        Item(question, parse_question(question.text), content)
        for question, content in pictured
        if content is not None
    )


@functools.cache
def by_picture(split: Split) -> dict[Path, tuple[Item, ...]]:
    """The items of a split under their pictures: a batch reads a picture once for all of them."""
    groups: dict[Path, list[Item]] = {}
    for item in items(split):
        groups.setdefault(picture_of(item.question), []).append(item)
    return {picture: tuple(group) for picture, group in groups.items()}


def _word(meaning: Meaning, rng: np.random.Generator) -> str:
    sentences = paraphrases(meaning)
    return sentences[rng.integers(len(sentences))]


def draw_meanings(asked: Asked, content: Content, rng: np.random.Generator) -> tuple[Meaning, ...]:
    """What a right chain of 2-4 steps says, the answer last.

    Args:
        asked: the question.
        content: the picture, or an imagined one that the question allows for.
        rng: advanced in place.
    """
    value = asked.target or asked.answer(content)
    seen = content.color if asked.attribute == "color" else content.shape
    restatement = Restatement(asked.attribute, asked.target, asked.negated)
    extras: list[Meaning] = [restatement, Conclusion(value, content.has(value))]
    if asked.target is not None:
        extras.insert(1, Focus(value) if seen == value else Comparison(seen, value, False))
    # a negated question answered straight from the observation is where small models fail
    count = rng.choice(3, p=(0.0, 0.45, 0.55) if asked.negated else (0.15, 0.4, 0.45))
    chosen = [extras[i] for i in sorted(rng.choice(len(extras), size=count, replace=False))]
    observation = Observation(content.color, content.shape)
    if rng.random() < 0.2:
        partial = (seen, None) if asked.attribute == "color" else (None, seen)
        observation = Observation(*partial)
    first = [restatement] if restatement in chosen and rng.random() < 0.5 else []
    rest = [meaning for meaning in chosen if meaning not in first]
    return (*first, observation, *rest, Answer(asked.answer(content)))


def draw_chain(item: Item, rng: np.random.Generator) -> ReasonerExample:
    """A right chain for an item, in random words."""
    meanings = draw_meanings(item.asked, item.content, rng)
    return ReasonerExample(item.question, tuple(_word(meaning, rng) for meaning in meanings))


VERDICT_WEIGHTS: dict[StepVerdict, float] = {
    StepVerdict(True, True, True): 0.36,
    StepVerdict(False, True, True): 0.18,
    StepVerdict(True, False, True): 0.18,
    StepVerdict(True, True, False): 0.14,
    # a reasoner's own slips, such as the wrong answer to right steps, are broken in two ways
    StepVerdict(False, False, True): 0.10,
    StepVerdict(False, True, False): 0.02,
    StepVerdict(True, False, False): 0.01,
    StepVerdict(False, False, False): 0.01,
}
"""How often each combination of labels is drawn where a position offers them all."""

_VERDICTS = tuple(VERDICT_WEIGHTS)
_WEIGHTS = np.array(tuple(VERDICT_WEIGHTS.values()))
_LABELS = np.array([(v.grounded, v.logical, v.on_topic) for v in _VERDICTS])
_IMAGINED = 0.4
_ASIDE_ACCEPTED = 0.1


@functools.cache
def sayable(asked: Asked) -> tuple[Meaning, ...]:
    """What a step about this question may say: all but the comparisons that are far from it."""
    return tuple(
        meaning
        for meaning in MEANINGS
        if not isinstance(meaning, Comparison)
        or attribute_of(meaning.asked) == asked.attribute
        and (meaning.asked == asked.target or not meaning.same)
    )


# Labels depend on little, so that one table per question, picture or context serves all draws.
@functools.cache
def _grounded(asked: Asked, content: Content) -> Bool[np.ndarray, " said"]:
    return np.array([is_grounded(meaning, asked, content) for meaning in sayable(asked)])


@functools.cache
def _fitting(asked: Asked, possible: Worlds) -> Bool[np.ndarray, " said"]:
    return np.array([fits(meaning, asked, possible) for meaning in sayable(asked)])


@functools.cache
def _on_topic(asked: Asked) -> Bool[np.ndarray, " said"]:
    return np.array([is_on_topic(meaning, asked) for meaning in sayable(asked)])


@functools.cache
def _row(asked: Asked) -> dict[Meaning, int]:
    return {meaning: row for row, meaning in enumerate(sayable(asked))}


def labels(
    asked: Asked, content: Content, accepted: tuple[Meaning, ...]
) -> Bool[np.ndarray, "said 3"]:
    """`judge_meaning` of everything sayable as the next step: grounded, logical, on topic.

    Args:
        asked: the question.
        content: the picture.
        accepted: the steps before, all sayable, without an answer.
    """
    logical = _fitting(asked, context(asked, accepted)).copy()
    for meaning in accepted:
        logical[_row(asked)[meaning]] = False
    return np.stack([_grounded(asked, content), logical, _on_topic(asked)], axis=-1)


_KINDS = (Observation, Restatement, Focus, Comparison, Conclusion, Answer, Aside)
# observations and answers are what a chain cannot do without
_KIND_WEIGHTS = np.array((2.0, 1.0, 1.0, 1.0, 1.0, 2.0, 1.0))


@functools.cache
def _kinds(asked: Asked) -> Int[np.ndarray, " said"]:
    return np.array([_KINDS.index(type(meaning)) for meaning in sayable(asked)])


def _nearness(meaning: Meaning, content: Content) -> float:
    """Weight of a sentence: three times as much for each part that an observation gets right."""
    if not isinstance(meaning, Observation):
        return 1.0
    return 3.0 ** sum(word is not None and content.has(word) for word in meaning.words)


@functools.cache
def _near(asked: Asked, content: Content) -> Float[np.ndarray, " said"]:
    return np.array([_nearness(meaning, content) for meaning in sayable(asked)])


def _pick(item: Item, offered: Bool[np.ndarray, " said"], rng: np.random.Generator) -> Meaning:
    """One of the offered sentences: first its kind, then near misses of the picture more often."""
    kinds = _kinds(item.asked)
    kind_weights = _KIND_WEIGHTS * np.isin(np.arange(len(_KINDS)), kinds[offered])
    kind = rng.choice(len(_KINDS), p=kind_weights / kind_weights.sum())
    weights = _near(item.asked, item.content) * (offered & (kinds == kind))
    return sayable(item.asked)[rng.choice(len(weights), p=weights / weights.sum())]


def _imagine(item: Item, rng: np.random.Generator) -> Content:
    others = [c for c in CONTENTS if c in item.asked.presupposed and c != item.content]
    weights = np.array([_nearness(Observation(c.color, c.shape), item.content) for c in others])
    return others[rng.choice(len(others), p=weights / weights.sum())]


def draw_judgement(item: Item, rng: np.random.Generator) -> JudgeExample:
    """A step to judge after a random number of accepted ones, labelled by the language's rules.

    The accepted steps are a right chain's, of the picture or (two in five) of an imagined one
    that the question allows for, one time in ten with an aside among them.

    Args:
        item: the question.
        rng: advanced in place.
    """
    imagined = rng.random() < _IMAGINED
    basis = _imagine(item, rng) if imagined else item.content
    chain = draw_meanings(item.asked, basis, rng)
    accepted = list(chain[: rng.integers(len(chain))])
    if rng.random() < _ASIDE_ACCEPTED:
        aside = Aside(ASIDES[rng.integers(len(ASIDES))])
        accepted.insert(rng.integers(len(accepted) + 1), aside)
    said = labels(item.asked, item.content, tuple(accepted))
    matches = (said[None] == _LABELS[:, None]).all(axis=-1)
    weights = _WEIGHTS * matches.any(axis=-1)
    drawn = rng.choice(len(weights), p=weights / weights.sum())
    return JudgeExample(
        question=item.question,
        accepted=tuple(_word(meaning, rng) for meaning in accepted),
        candidate=_word(_pick(item, matches[drawn], rng), rng),
        verdict=_VERDICTS[drawn],
    )


def examples(split: Split, seed: int) -> Iterator[tuple[ReasonerExample, JudgeExample]]:
    """A chain with a step to judge for every item of a split, once through in random order."""
    rng = np.random.default_rng(seed)
    for index in rng.permutation(len(items(split))):
        item = items(split)[index]
        yield draw_chain(item, rng), draw_judgement(item, rng)
