"""Trajectories about flags, written out: what a base policy is taught to do.

The policy that they show searches for what it does not know, asks in several ways, marks what is
useful and copies its answer from there; a `Corruption` says how often it does otherwise. Snippets
that give a held-out pair away are never shown.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from svrl_jax.arms import Arm
from svrl_jax.datasets.flags.attributes import ATTRIBUTES, BY_KEY, Attribute
from svrl_jax.datasets.flags.evidence import head
from svrl_jax.datasets.flags.phrasings import questions_about
from svrl_jax.datasets.flags.splits import kind_of, reserved
from svrl_jax.datasets.flags.world import Fact, World
from svrl_jax.grammar import Action, FinalAnswer, ImageSearch, TextSearch, Turn, unique_queries
from svrl_jax.matching import holds
from svrl_jax.rollout import Tools
from svrl_jax.trajectory import Exchange, ImageResult, Snippet, TextResult, Trajectory

UNKNOWN = "unknown"
"""What is answered where two searches brought nothing."""

I_KNOW = "I know this."
I_GUESS = "I guess."
I_LOOK = "I look it up."
I_SEE = "What does the picture show?"
"""The thoughts before an action."""


def naming(country: str) -> str:
    """The thought that names a flag."""
    return f"This is the flag of {country}."


def wanting(country: str, attribute: Attribute) -> str:
    """The thought before marks: the head of the snippet that is looked for."""
    return f"I need {head(country, attribute.field)}."


NONE = "none"
"""The justification of a turn that believes no snippet."""


@dataclass(frozen=True)
class Corruption:
    """How often a demonstration does the wrong thing, each a probability.

    Attributes:
        needless: looks up what it knows.
        guess: answers what it does not know without looking it up.
        picture: looks the picture up first, which it could name.
        few: asks in fewer ways than it may.
        repeat: one of several queries is another's repeat.
        nameless: a query lacks the country.
        astray: a query is about another attribute.
        flipped: a mark is wrong.
    """

    needless: float = 0.0
    guess: float = 0.0
    picture: float = 0.0
    few: float = 0.0
    repeat: float = 0.0
    nameless: float = 0.0
    astray: float = 0.0
    flipped: float = 0.0


CORRUPTED = Corruption(
    needless=0.5,
    guess=0.35,
    picture=0.15,
    few=0.6,
    repeat=0.3,
    nameless=0.2,
    astray=0.15,
    flipped=0.2,
)
"""Of the base policy; fixed before any reinforcement learning."""

SOUND = Corruption()
"""Of the policy that is the ceiling."""


@dataclass(frozen=True)
class Demonstration:
    """A question with what is done about it.

    Attributes:
        question: as it is put.
        trajectory: from the first turn to the answer.
    """

    question: str
    trajectory: Trajectory


@dataclass(frozen=True)
class Shown:
    """How snippets are shown.

    Attributes:
        usual: of a search, in `usually` of the cases; else any number from 1 to `most`.
        usually: that share.
        most: of a search under a larger budget.
        swapped: share of the useful snippets in which another country's answer stands in the place
            of the right one, so that it must be read and cannot be known.
    """

    usual: int = 3
    usually: float = 0.85
    most: int = 15
    swapped: float = 0.3


@dataclass(frozen=True)
class Demonstrator:
    """Writes demonstrations about one world.

    Attributes:
        world: with its facts.
        tools: that the searches are run with; best cached.
        corruption: how often something is done wrong.
        shown: how snippets are shown.
    """

    world: World
    tools: Tools
    corruption: Corruption
    shown: Shown = Shown()

    @functools.cached_property
    def _reserved(self) -> frozenset[str]:
        return reserved(self.world)

    @functools.cached_property
    def _by_attribute(self) -> dict[str, list[Fact]]:
        facts: dict[str, list[Fact]] = {}
        for fact in self.world.facts:
            # a held-out answer is nowhere shown, not even as another country's
            if kind_of(self.world, fact) != "held_out":
                facts.setdefault(fact.attribute, []).append(fact)
        return facts

    def demonstrate(
        self,
        fact: Fact,
        picture: UInt8[np.ndarray, "64 64 3"],
        arm: Arm,
        rng: np.random.Generator,
    ) -> Demonstration:
        """What the policy does when asked about a fact.

        Args:
            fact: seen, then the policy knows it, or unseen.
            picture: of the country's flag, for an image search.
            arm: whose prompt and grammar.
            rng: advanced in place.

        Raises:
            ValueError: the pair is held out.
        """
        kind = kind_of(self.world, fact)
        if kind == "held_out":
            raise ValueError(f"{fact.pair} is held out: no training may touch it")
        texts = questions_about(fact.attribute, "training")
        question = texts[int(rng.integers(len(texts)))]
        exchanges = self._exchanges(fact, kind == "seen", picture, arm, rng)
        return Demonstration(question, Trajectory("/".join(fact.pair), exchanges, "answered"))

    def _exchanges(
        self,
        fact: Fact,
        known: bool,
        picture: UInt8[np.ndarray, "64 64 3"],
        arm: Arm,
        rng: np.random.Generator,
    ) -> tuple[Exchange, ...]:
        seen = naming(fact.country)
        searches = arm.text_searches > 0 and (
            arm.forced_search
            or rng.random() < (self.corruption.needless if known else 1 - self.corruption.guess)
        )
        if not searches:
            thought = f"{seen} {I_KNOW if known else I_GUESS}"
            answer = fact.golds[0] if known else self._other(fact, rng)
            return (Exchange(Turn(thought, None, "", FinalAnswer(answer))),)
        done: list[Exchange] = []
        if arm.image_searches and rng.random() < self.corruption.picture:
            assert self.tools.image is not None
            hits = self.tools.image.search(Image.fromarray(picture), self.shown.usual)
            titles = tuple(hit.title for hit in hits)
            done.append(Exchange(Turn(I_SEE, None, "", ImageSearch()), ImageResult(titles)))
        # where the search is forced, its thought is too, and no country stands in it
        thought = I_LOOK if arm.forced_search else f"{seen} {I_LOOK}"
        turn = Turn(thought, None, "", self._queries(fact, arm, rng))
        for left in reversed(range(arm.text_searches)):
            found = self._search(turn.action, fact, rng)
            done.append(Exchange(turn, found.result))
            turn, believes = self._judge(fact, found, arm, rng)
            if believes or not left:
                break
            turn = replace(turn, action=self._queries(fact, arm, rng))
        return (*done, Exchange(turn))

    def _other(self, fact: Fact, rng: np.random.Generator) -> str:
        """Another country's answer."""
        same = self._by_attribute[fact.attribute]
        # the one drawn, or where that is the fact's own the next
        place = int(rng.integers(len(same)))
        other = same[place] if same[place] != fact else same[place - 1]
        return other.golds[0]

    def _queries(self, fact: Fact, arm: Arm, rng: np.random.Generator) -> TextSearch:
        count = arm.queries
        if count > 1 and rng.random() < self.corruption.few:
            count = int(rng.integers(1, count))
        forms = rng.permutation(len(FORMS))[:count]
        queries = [self._query(FORMS[form], fact, rng) for form in forms]
        if count > 1 and rng.random() < self.corruption.repeat:
            queries[-1] = queries[0]
        return TextSearch(tuple(queries))

    def _query(self, form: str, fact: Fact, rng: np.random.Generator) -> str:
        attribute = BY_KEY[fact.attribute]
        if rng.random() < self.corruption.astray:
            attribute = ATTRIBUTES[int(rng.integers(len(ATTRIBUTES)))]
        country = "" if rng.random() < self.corruption.nameless else fact.country
        return " ".join(form.format(country=country, words=attribute.words).split())

    def _search(self, action: Action, fact: Fact, rng: np.random.Generator) -> _Found:
        """Runs one of the queries."""
        assert isinstance(action, TextSearch)
        queries = unique_queries(action.queries)
        query = queries[int(rng.integers(len(queries)))]
        count = self.shown.usual
        if rng.random() >= self.shown.usually:
            count = int(rng.integers(1, self.shown.most + 1))
        # some more, in the place of those that may not be shown; of two sizes, for the cache's sake
        most = self.shown.usual if count <= self.shown.usual else self.shown.most
        hits = self.tools.text.search(query, most + 5)
        hits = [hit for hit in hits if hit.id not in self._reserved][:count]
        order = [int(place) for place in rng.permutation(len(hits))]
        shown = [self._shown(hits[place], fact, rng) for place in order]
        snippets = tuple(snippet for snippet, _ in shown)
        result = TextResult(action.queries, (query,), snippets, ranks=tuple(order))
        return _Found(result, tuple(answer for _, answer in shown))

    def _shown(
        self, hit: Snippet, fact: Fact, rng: np.random.Generator
    ) -> tuple[Snippet, str | None]:
        """A hit as it is shown, with the answer that it then holds."""
        if not self.world.is_useful(hit, fact.country, fact.golds):
            return hit, None
        answer = next(gold for gold in fact.golds if holds(hit.text, gold))
        other = self._other(fact, rng)
        if rng.random() < self.shown.swapped and answer in hit.text:
            return replace(hit, text=hit.text.replace(answer, other)), other
        return hit, answer

    def _judge(
        self, fact: Fact, found: _Found, arm: Arm, rng: np.random.Generator
    ) -> tuple[Turn, bool]:
        """The turn after a search, with an answer, and whether it believes one of the snippets."""
        useful = [answer is not None for answer in found.answers]
        marks = [mark != (rng.random() < self.corruption.flipped) for mark in useful]
        marked = [place for place, mark in enumerate(marks) if mark]
        # what is useful convinces before what is only marked so
        believed = min(marked, key=lambda place: not useful[place], default=None)
        quote, answer = NONE, UNKNOWN
        if believed is not None:
            snippet = found.result.snippets[believed]
            quote = snippet.title
            answer = found.answers[believed] or " ".join(snippet.text.split()[:4])
        if not (arm.verify and marks):
            return Turn(quote, None, "", FinalAnswer(answer)), believed is not None
        wanted = wanting(fact.country, BY_KEY[fact.attribute])
        turn = Turn(wanted, tuple(marks), quote, FinalAnswer(answer))
        return turn, believed is not None


@dataclass(frozen=True)
class _Found:
    """What a search brought, with the answer that each snippet holds."""

    result: TextResult
    answers: tuple[str | None, ...]


FORMS = (
    "{country} {words}",
    "{words} of {country}",
    "what is the {words} in {country}",
    "country {country} {words}",
)
"""Ways to ask."""
