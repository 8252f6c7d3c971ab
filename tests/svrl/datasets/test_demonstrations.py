"""Demonstrations keep to their grammar, show what is true, go wrong as often as stated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from svrl_jax.arms import ARMS, ArmName
from svrl_jax.datasets import flags
from svrl_jax.datasets.flags import demonstrations
from svrl_jax.datasets.flags.demonstrations import (
    CORRUPTED,
    SOUND,
    Corruption,
    Demonstration,
    Demonstrator,
    Shown,
)
from svrl_jax.grammar import FinalAnswer, ImageSearch, TextSearch, Turn, parse, render
from svrl_jax.rollout import Tools
from svrl_jax.search.local_index import LocalIndex
from svrl_jax.search.protocol import ImageHit
from svrl_jax.trajectory import TextResult

WORLD = flags.load()
INDEX = LocalIndex(WORLD.snippets)
PICTURE = np.zeros((64, 64, 3), np.uint8)
RESERVED = flags.reserved(WORLD)
PLAIN = Shown(swapped=0.0)


class Pictures:
    name, version = "pictures", "1"

    def search(self, query: Image.Image, top_k: int) -> tuple[ImageHit, ...]:
        return (ImageHit("no", "Flag of Norway", "no.png", "s"),)


TOOLS = Tools(INDEX, Pictures())


def draw(
    name: ArmName, corruption: Corruption, kind: flags.Kind, count: int, shown: Shown = PLAIN
) -> list[tuple[flags.Fact, Demonstration]]:
    demonstrator = Demonstrator(WORLD, TOOLS, corruption, shown)
    rng = np.random.default_rng(0)
    facts = flags.facts_of(WORLD, kind)
    chosen = [facts[i] for i in rng.integers(len(facts), size=count)]
    return [(fact, demonstrator.demonstrate(fact, PICTURE, ARMS[name], rng)) for fact in chosen]


def turns(demonstration: Demonstration) -> list[Turn]:
    found = [exchange.turn for exchange in demonstration.trajectory.exchanges]
    assert all(isinstance(turn, Turn) for turn in found)
    return [turn for turn in found if isinstance(turn, Turn)]


def answer(demonstration: Demonstration) -> str | None:
    return demonstration.trajectory.answer


def searches(demonstration: Demonstration) -> Sequence[TextResult]:
    return demonstration.trajectory.text_searches


@pytest.mark.parametrize("name", [name for name, arm in ARMS.items() if not arm.filtered])
@pytest.mark.parametrize("corruption", [SOUND, CORRUPTED])
def test_every_demonstration_keeps_to_its_grammar(name: ArmName, corruption: Corruption) -> None:
    arm = ARMS[name]
    for kind in ("seen", "unseen"):
        for _, shown in draw(name, corruption, kind, 30, Shown()):
            due = False
            for exchange, turn in zip(shown.trajectory.exchanges, turns(shown), strict=True):
                assert parse(render(turn), arm.queries, arm.verify and due) == turn
                result = exchange.result
                due = isinstance(result, TextResult) and bool(result.snippets)
                if isinstance(turn.action, FinalAnswer):
                    assert exchange is shown.trajectory.exchanges[-1]
                else:
                    assert result is not None
            assert len(searches(shown)) <= arm.text_searches
            images = [turn for turn in turns(shown) if isinstance(turn.action, ImageSearch)]
            assert len(images) <= arm.image_searches
            assert not arm.forced_search or isinstance(turns(shown)[0].action, TextSearch)


def test_a_sound_policy_answers_what_it_knows_and_looks_up_the_rest() -> None:
    for fact, shown in draw("full", SOUND, "seen", 40):
        (turn,) = turns(shown)
        assert turn.reason == f"This is the flag of {fact.country}. {demonstrations.I_KNOW}"
        assert answer(shown) == fact.golds[0]
    found = []
    for fact, shown in draw("full", SOUND, "unseen", 60):
        first = turns(shown)[0]
        assert isinstance(first.action, TextSearch)
        assert len(set(first.action.queries)) == ARMS["full"].queries
        assert all(fact.country in query for query in first.action.queries)
        for (search, marks), turn in zip(shown.trajectory.marks, turns(shown)[1:], strict=True):
            assert marks == turn.verify
            assert marks == tuple(
                WORLD.is_useful(snippet, fact.country, fact.golds) for snippet in search.snippets
            )
        found.append(answer(shown) in fact.golds)
        if not found[-1]:
            assert answer(shown) == demonstrations.UNKNOWN and len(searches(shown)) == 2
    assert np.mean(found) > 0.8


def test_what_is_quoted_holds_the_answer() -> None:
    quoted = 0
    for _, shown in draw("self-verification", SOUND, "unseen", 60):
        last = turns(shown)[-1]
        if answer(shown) == demonstrations.UNKNOWN:
            assert last.justification == demonstrations.NONE
            continue
        quoted += 1
        titles = {snippet.title: snippet.text for snippet in searches(shown)[-1].snippets}
        assert WORLD.is_telling(answer(shown) or "")
        assert last.justification in titles
    assert quoted > 30


def test_nothing_held_out_is_shown() -> None:
    fact = flags.facts_of(WORLD, "held_out")[0]
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="held out"):
        Demonstrator(WORLD, TOOLS, SOUND).demonstrate(fact, PICTURE, ARMS["full"], rng)
    nameless = replace(SOUND, nameless=1.0)
    for corruption in (SOUND, nameless):
        for _, shown in draw("full", corruption, "unseen", 40, Shown(usually=0.0, swapped=1.0)):
            for search in searches(shown):
                assert len(search.snippets) <= 15
                assert not RESERVED & {snippet.id for snippet in search.snippets}
    held_out = {fact.golds[0] for fact in flags.facts_of(WORLD, "held_out")}
    taught = {
        gold for kind in ("seen", "unseen") for f in flags.facts_of(WORLD, kind) for gold in f.golds
    }
    for _, shown in draw("direct", replace(SOUND, guess=1.0), "unseen", 60):
        assert answer(shown) not in held_out - taught


def test_a_swapped_answer_is_another_countrys_and_is_the_one_given() -> None:
    swapped = 0
    for fact, shown in draw("full", SOUND, "unseen", 60, Shown(swapped=1.0)):
        if answer(shown) not in (*fact.golds, demonstrations.UNKNOWN):
            swapped += 1
            texts = [s.text for search in searches(shown) for s in search.snippets]
            assert any((answer(shown) or "") in text for text in texts)
            others = {f.golds[0] for f in WORLD.facts if f.attribute == fact.attribute}
            assert answer(shown) in others
    assert swapped > 30


RATES = {
    "needless": ("seen", lambda fact, shown: bool(searches(shown))),
    "guess": ("unseen", lambda fact, shown: not searches(shown)),
    "picture": ("unseen", lambda fact, shown: isinstance(turns(shown)[0].action, ImageSearch)),
    "few": ("unseen", lambda fact, shown: len(searches(shown)[0].proposed) < 3),
    "repeat": (
        "unseen",
        lambda fact, shown: len(set(searches(shown)[0].proposed)) < 3,
    ),
    "nameless": (
        "unseen",
        lambda fact, shown: fact.country not in searches(shown)[0].run[0],
    ),
}


@pytest.mark.parametrize("rate", RATES)
def test_what_goes_wrong_goes_wrong_as_often_as_stated(rate: str) -> None:
    kind, wrong = RATES[rate]
    corruption = replace(SOUND, **{rate: 0.3})
    found = [wrong(fact, shown) for fact, shown in draw("full", corruption, kind, 300)]
    assert abs(np.mean(found) - 0.3) < 0.08
    sound = [wrong(fact, shown) for fact, shown in draw("full", SOUND, kind, 100)]
    assert not any(sound)


def test_marks_are_flipped_as_often_as_stated() -> None:
    wrong, total = 0, 0
    for fact, shown in draw("full", Corruption(flipped=0.3), "unseen", 150):
        for search, marks in shown.trajectory.marks:
            useful = [WORLD.is_useful(s, fact.country, fact.golds) for s in search.snippets]
            wrong += sum(a != b for a, b in zip(marks or (), useful, strict=True))
            total += len(useful)
    assert abs(wrong / total - 0.3) < 0.05


def test_a_query_that_goes_astray_asks_for_another_attribute() -> None:
    astray = sum(
        flags.ATTRIBUTES[[a.key for a in flags.ATTRIBUTES].index(fact.attribute)].words
        not in searches(shown)[0].run[0]
        for fact, shown in draw("full", Corruption(astray=0.5), "unseen", 300)
    )
    assert abs(astray / 300 - 0.5 * 29 / 30) < 0.09
