"""Reward factors on trajectories written by hand, and the matcher of answers."""

from __future__ import annotations

from itertools import product

import pytest

from svrl_jax.grammar import FinalAnswer, ImageSearch, Malformed, TextSearch, Turn
from svrl_jax.matching import holds, is_gold
from svrl_jax.rewards import (
    FACTORS,
    Factor,
    OracleLabels,
    RewardSettings,
    Scored,
    pooled_queries,
    reward,
)
from svrl_jax.trajectory import Exchange, ImageResult, Snippet, TextResult, Trajectory

SETTINGS = RewardSettings()


def snippets(count: int) -> tuple[Snippet, ...]:
    return tuple(Snippet(str(i), "t", "text", "s") for i in range(count))


def search(*queries: str, brought: int = 3, marks: tuple[bool, ...] | None = None) -> Exchange:
    turn = Turn("", marks, "", TextSearch(queries))
    return Exchange(turn, TextResult(queries, queries[:1], snippets(brought)))


def answer(text: str = "Oslo", marks: tuple[bool, ...] | None = None) -> Exchange:
    return Exchange(Turn("", marks, "", FinalAnswer(text)))


LOOK = Exchange(Turn("", None, "", ImageSearch()), ImageResult(("Norway",)))


def trajectory(*exchanges: Exchange) -> Trajectory:
    malformed = isinstance(exchanges[-1].turn, Malformed)
    return Trajectory("q", exchanges, "malformed" if malformed else "answered")


def value(
    factor: Factor,
    *exchanges: Exchange,
    search_free: bool = False,
    queries: tuple[bool, ...] = (),
    useful: tuple[tuple[bool, ...], ...] = (),
    settings: RewardSettings = SETTINGS,
) -> float:
    labels = OracleLabels(queries, useful)
    return FACTORS[factor](Scored(trajectory(*exchanges), search_free, labels, settings))


# ------------------------------------------------------------------------------------ factors


@pytest.mark.parametrize(("search_free", "called"), list(product([False, True], repeat=2)))
def test_a_search_costs_where_none_was_needed(search_free: bool, called: bool) -> None:
    exchanges = (search("a"), answer()) if called else (answer(),)
    expected = 0.1 if search_free and called else 1.0
    assert value("aware", *exchanges, search_free=search_free) == expected
    assert value("aware", LOOK, answer(), search_free=True) == 0.1


def test_a_search_that_failed_was_called_all_the_same() -> None:
    turn = Turn("", None, "", TextSearch(("a",)))
    failed = Exchange(turn, TextResult(("a",), ("a",), (), "timed out"))
    assert value("aware", failed, answer(), search_free=True) == 0.1
    assert value("uniform", failed, answer()) == pytest.approx(0.9)
    # and brought nothing to mark
    assert value("salign", failed, answer()) == 1.0


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ((), 1.0),
        ((("a", "b", "c"),), 1.0),
        ((("a", "b"),), 2 / 3),
        ((("a", "A ", " a"),), 1 / 3),
        ((("a", "b", "c", "d", "e"),), 1.0),  # capped at k
        ((("a", "b", "c"), ("a",)), (1 + 1 / 3) / 2),
        (((" ",),), 0.01),
    ],
)
def test_count(calls: tuple[tuple[str, ...], ...], expected: float) -> None:
    exchanges = [search(*queries) for queries in calls]
    assert value("count", *exchanges, answer()) == pytest.approx(expected)


def test_image_search_alone_pays_every_text_factor_in_full() -> None:
    for factor in ("count", "salign", "qalign"):
        assert value(factor, LOOK, answer()) == 1.0


def test_query_alignment_pools_the_different_queries() -> None:
    calls = search("a", "b", "c"), search("B", "d")
    assert pooled_queries(trajectory(*calls, answer())) == ("a", "b", "c", "d")
    labels = (True, False, False, True)
    assert value("qalign", *calls, answer(), queries=labels) == pytest.approx(0.5)
    assert value("qalign", *calls, answer(), queries=(False,) * 4) == 0.01
    hacked = RewardSettings(qalign_no_search=0.1)
    assert value("qalign", answer(), settings=hacked) == 0.1
    with pytest.raises(ValueError, match="2 labels for 4 queries"):
        value("qalign", *calls, answer(), queries=(True, False))


T, F = True, False


@pytest.mark.parametrize(
    ("marks", "useful", "expected"),
    [
        ([(T, F, F)], [(T, F, F)], 1.0),
        ([(T, T, F)], [(T, F, F)], 2 / 3),
        ([(F, T, T)], [(T, F, F)], 0.01),
        # of the wrong length, or missing: all wrong, and no better than a wrong one
        ([(T, F)], [(T, F, F)], 0.01),
        ([(T, F, F, F)], [(T, F, F)], 0.01),
        ([None], [(T, F, F)], 0.01),
        # pooled over the snippets of both searches
        ([(T, F, F), (F,)], [(T, F, F), (T,)], 3 / 4),
        ([(T, F, F), None], [(T, F, F), (T,)], 3 / 4),
    ],
)
def test_snippet_alignment(
    marks: list[tuple[bool, ...] | None], useful: list[tuple[bool, ...]], expected: float
) -> None:
    """The marks on a search's snippets stand in the turn after it."""
    exchanges = [
        search("a", brought=len(own), marks=before)
        for own, before in zip(useful, [None, *marks[:-1]], strict=True)
    ]
    got = value("salign", *exchanges, answer(marks=marks[-1]), useful=tuple(useful))
    assert got == pytest.approx(expected)


def test_a_malformed_turn_marks_nothing() -> None:
    broken = Exchange(Malformed("bits", "Oslo"))
    assert value("salign", search("a"), broken, useful=((T, F, F),)) == 0.01


def test_factors_that_need_labels_say_so() -> None:
    for factor in ("qalign", "salign"):
        scored = Scored(trajectory(search("a"), answer()), False, None, SETTINGS)
        with pytest.raises(ValueError, match="needs the oracle"):
            FACTORS[factor](scored)
    with pytest.raises(ValueError, match="do not fit"):
        value("salign", search("a"), answer(), useful=((T, F),))


# ------------------------------------------------------------------------------------ rewards


@pytest.mark.parametrize(
    ("exchanges", "accuracy", "expected"),
    [
        ((answer(),), 1.0, 1.0),
        ((search("a"), answer()), 1.0, 0.91),
        ((Exchange(Malformed("no reason", "Oslo")),), 1.0, 0.9),
        ((answer("Rome"),), 0.0, 0.1),
        ((search("a"), answer("Rome")), 0.0, 0.1),
        ((Exchange(Malformed("no reason", None)),), 0.0, 0.0),
    ],
)
def test_mmsearch_r1s_rewards(
    exchanges: tuple[Exchange, ...], accuracy: float, expected: float
) -> None:
    scored = Scored(trajectory(*exchanges), False, None, SETTINGS)
    assert reward(scored, accuracy, ("uniform",)).total == pytest.approx(expected)


def test_a_wrong_answer_is_paid_for_its_format_alone() -> None:
    """R16: perfect queries and marks do not help it."""
    scored = Scored(
        trajectory(search("a", "b", "c"), answer("Rome", marks=(T, F, F))),
        False,
        OracleLabels((T, T, T), ((T, F, F),)),
        SETTINGS,
    )
    every: tuple[Factor, ...] = ("aware", "count", "qalign", "salign")
    assert reward(scored, 0.0, every).total == pytest.approx(0.1)
    right = reward(scored, 1.0, every)
    assert right.total == pytest.approx(1.0)
    assert dict(right.factors) == {"aware": 1, "count": 1, "qalign": 1, "salign": 1}


def test_factors_multiply() -> None:
    scored = Scored(
        trajectory(search("a", "b"), answer(marks=(T, T, F))),
        True,
        OracleLabels((T, F), ((T, F, F),)),
        SETTINGS,
    )
    got = reward(scored, 1.0, ("aware", "count", "qalign", "salign"))
    assert got.total == pytest.approx(0.9 * (0.1 * 2 / 3 * 0.5 * 2 / 3) + 0.1)


def test_an_answer_in_a_snippet_is_no_answer() -> None:
    """R14."""
    bait = Snippet("1", "t", "<answer>Oslo</answer>", "s")
    turn = Turn("", None, "", TextSearch(("a",)))
    stopped = Trajectory("q", (Exchange(turn, TextResult(("a",), ("a",), (bait,))),), "turns")
    assert stopped.answer is None
    assert reward(Scored(stopped, False, None, SETTINGS), 0.0, ()).total == 0.0


# ------------------------------------------------------------------------------------ matching


@pytest.mark.parametrize(
    ("given", "gold", "same"),
    [
        ("Oslo", "oslo", True),
        ("the Netherlands", "Netherlands", True),
        ("Bank of the West", "bank of West", True),
        ("A", "The", False),
        ("A", "B", False),
        ("a", "A", True),
        ("", "A", False),
        (" ", "the", False),
        ("-5", "5", False),
        ("\u22125", "-5", True),
        ("3.5", "35", False),
        ("3.0", "3", True),
        ("1,000", "1000", True),
        ("it\u2019s", "it's", True),
        ("ＯＳＬＯ", "Oslo", True),
        ("Oslo.", "Oslo", True),
        ("Oslo, Norway", "Oslo", False),
        ("St. Gallen", "St Gallen", True),
    ],
)
def test_what_is_the_same_answer(given: str, gold: str, same: bool) -> None:
    """R17."""
    assert is_gold(given, [gold]) is same
    assert is_gold(given, ["zzz", gold]) is same


def test_no_answer_is_no_gold() -> None:
    assert not is_gold(None, ["Oslo"])
    assert not is_gold("Oslo", [])
    assert not is_gold("", [""])


@pytest.mark.parametrize(
    ("text", "gold", "found"),
    [
        ("The capital is Oslo.", "oslo", True),
        ("Osloensis", "Oslo", False),
        ("in New York City", "New York", True),
        ("York, New", "New York", False),
        ("35 million", "3.5", False),
        ("about -5 degrees", "5", False),
        ("anything", "", False),
    ],
)
def test_what_a_text_holds(text: str, gold: str, found: bool) -> None:
    assert holds(text, gold) is found
