"""The world of flags: what is asked is evidence, splits are apart, questions name no country."""

from __future__ import annotations

import io
import itertools
import json
import re
import typing
from collections import Counter
from importlib.resources import files

import numpy as np
import pytest
from PIL import Image

from svrl_jax.datasets import flags
from svrl_jax.datasets.flags import phrasings, pictures
from svrl_jax.datasets.flags.attributes import BY_KEY
from svrl_jax.datasets.flags.evidence import COMMONEST, SHORTEST, TextIndex, subject
from svrl_jax.matching import holds, is_gold, normalise
from svrl_jax.trajectory import Snippet

WORLD = flags.load()
KINDS = typing.get_args(flags.Kind)


def snippet(title: str, text: str) -> Snippet:
    return Snippet("x", title, text, "s")


# What is shipped


def test_the_files_are_small() -> None:
    folder = files("svrl_jax.bundled") / "flags_world"
    assert sum(len(path.read_bytes()) for path in folder.iterdir()) < 5e6


def test_sizes_of_the_world() -> None:
    assert len(WORLD.countries) == len({c.name for c in WORLD.countries}) == 231
    assert WORLD.flags.shape == (231, 72, 96, 3)
    assert len(WORLD.snippets) == len(WORLD.snippet) >= 20_000
    assert len(WORLD.facts) == len({fact.pair for fact in WORLD.facts}) >= 2_500
    assert len({fact.attribute for fact in WORLD.facts}) == len(BY_KEY) == 30


def test_no_two_flags_are_the_same_picture() -> None:
    flat = WORLD.flags.reshape(len(WORLD.flags), -1).astype(np.int16)
    for place, flag in enumerate(flat[:-1]):
        assert np.abs(flat[place + 1 :] - flag).mean(1).min() > 5


def test_no_snippet_describes_a_flag() -> None:
    about = re.compile(r"\bflags?\b|\bensign\b|\bsaltire\b|national colou?r|coat of arms -", re.I)
    assert not [s for s in WORLD.snippets if about.search(f"{s.title} {s.text}")]


def test_no_markup_is_left() -> None:
    markup = re.compile(r"<[a-z/]|&[a-z]+;|&#|\\u|https?:|;;|\s\s|^\s|\s$")
    assert not [s for s in WORLD.snippets if markup.search(s.text) or not s.text]
    assert not [s for s in WORLD.snippets if s.text.lower() in ("na", "n/a", "none")]


def test_heads_name_country_and_attribute() -> None:
    assert WORLD.snippet[WORLD.facts[0].source].title.count(" | ") == 1
    assert {subject(s.title) for s in WORLD.snippets} == {c.name for c in WORLD.countries}


# Golds


def test_every_gold_is_evidence_by_the_rule() -> None:
    """Measured again on the shipped texts: the world itself takes its own golds on trust."""
    golds = {gold for fact in WORLD.facts for gold in fact.golds}
    assert not [gold for gold in golds if not WORLD.index.is_telling(gold)]
    assert not [gold for gold in golds if len("".join(normalise(gold))) < SHORTEST]
    for gold in sorted(golds)[::97]:
        assert len(WORLD.index.holding(gold)) < COMMONEST * len(WORLD.snippets)


def test_every_answer_stands_in_its_snippet() -> None:
    for fact in WORLD.facts:
        source = WORLD.snippet[fact.source]
        assert WORLD.is_useful(source, fact.country, fact.golds)
        assert holds(source.text, fact.golds[0])
        field = BY_KEY[fact.attribute].field
        assert source.title.removeprefix(f"{fact.country} | ").startswith(field)


def test_an_answer_is_short_and_does_not_name_the_country() -> None:
    for fact in WORLD.facts:
        for gold in fact.golds:
            assert len(gold.split()) <= 7
            assert not holds(gold, fact.country)


def test_no_pair_gives_another_of_its_country_away() -> None:
    """No gold stands in a gold of another pair; padded words, for `holds` is slow on a million."""
    for _, facts in itertools.groupby(WORLD.facts, key=lambda fact: fact.country):
        golds = [[f" {' '.join(normalise(g))} " for g in fact.golds] for fact in facts]
        for one, other in itertools.permutations(golds, 2):
            assert not any(b in a for a in one for b in other), (one, other)


def test_evidence_is_about_the_country_and_holds_a_telling_gold() -> None:
    capital = snippet("Norway | Capital - name", "Oslo")
    assert WORLD.is_useful(capital, "Norway", ("Oslo",))
    assert not WORLD.is_useful(capital, "Sweden", ("Oslo",))
    assert not WORLD.is_useful(capital, "Norway", ("Bergen",))
    # too short, and in too many texts
    assert not WORLD.is_useful(snippet("Norway | Area", "26 km"), "Norway", ("26",))
    assert not WORLD.is_useful(snippet("Norway | Area", "a parliament"), "Norway", ("parliament",))


def test_the_index_finds_what_reading_finds() -> None:
    texts = ("Oslo is a city", "the city", "3.0 km, 1,000 m", "km 3")
    index = TextIndex.of(texts)
    for gold in ("city", "a city", "3 km", "1000 m", "is city", "absent", "km"):
        assert index.holding(gold) == tuple(i for i, t in enumerate(texts) if holds(t, gold))


# Distractors


def test_there_are_distractors_of_every_kind() -> None:
    split = [s.title.split(" | ") for s in WORLD.snippets]
    by_country = Counter(country for country, _ in split)
    by_field = Counter(field for _, field in split)
    years = Counter((country, re.sub(r" \d{4}$", "", field)) for country, field in split)
    for fact in WORLD.facts:
        field = BY_KEY[fact.attribute].field
        assert by_country[fact.country] > 10
        if not BY_KEY[fact.attribute].yearly:
            assert by_field[field] > 50
    yearly = [f for f in WORLD.facts if BY_KEY[f.attribute].yearly]
    outdated = sum(years[f.country, BY_KEY[f.attribute].field] > 1 for f in yearly)
    assert outdated / len(yearly) > 0.9


# Splits


def test_kinds_are_apart_and_large_enough() -> None:
    by_kind = {kind: {f.pair for f in flags.facts_of(WORLD, kind)} for kind in KINDS}
    assert sum(len(pairs) for pairs in by_kind.values()) == len(WORLD.facts)
    for one, other in itertools.combinations(by_kind.values(), 2):
        assert not one & other
    assert min(len(pairs) for pairs in by_kind.values()) > 1000


def test_no_training_touches_what_is_held_out() -> None:
    pools = {
        split: [{fact.pair for fact in pool} for pool in flags.asked(WORLD, split)]
        for split in flags.SPLITS
    }
    held_out = {fact.pair for fact in flags.facts_of(WORLD, "held_out")}
    assert not set().union(*pools["pretrain"], *pools["train"]) & held_out
    assert not pools["validation"][1] & pools["test"][1]
    assert pools["validation"][1] | pools["test"][1] == held_out
    assert pools["pretrain"][0] == pools["test"][0] == pools["validation"][0] == pools["train"][0]


def test_whether_a_fact_is_seen_can_be_learnt() -> None:
    """Attribute and region tell it but for the noise; neither does alone."""
    seen = {fact.pair for fact in flags.facts_of(WORLD, "seen")}
    right = sum(flags.known_by_rule(WORLD, f) == (f.pair in seen) for f in WORLD.facts)
    assert right / len(WORLD.facts) == pytest.approx(0.9, abs=0.015)
    for name in ("capital", "symbol", "independence", "coastline"):
        rule = {flags.known_by_rule(WORLD, f) for f in WORLD.facts if f.attribute == name}
        assert rule == ({True} if name == "capital" else {True, False})


def test_reserved_snippets_hold_every_held_out_answer() -> None:
    reserved = flags.reserved(WORLD)
    assert {fact.source for fact in flags.facts_of(WORLD, "held_out")} <= reserved
    # other pairs can be taught all the same
    others = [f for f in WORLD.facts if flags.kind_of(WORLD, f) != "held_out"]
    assert sum(fact.source in reserved for fact in others) < 20


# Questions


@pytest.mark.parametrize("split", flags.SPLITS)
def test_an_item_is_a_function_of_split_seed_and_index(split: flags.Split) -> None:
    first = list(flags.questions(WORLD, split, 3, 4))
    (again,) = flags.questions(WORLD, split, 3, 1, start=2)
    assert (again.id, again.text, again.fact) == (first[2].id, first[2].text, first[2].fact)
    assert np.array_equal(again.picture, first[2].picture)
    others = list(flags.questions(WORLD, split, 4, 4))
    assert [i.fact for i in others] != [i.fact for i in first]


def test_the_test_questions() -> None:
    items = list(flags.questions(WORLD, "test", flags.TEST_SEED, 100))
    assert flags.TEST_QUESTIONS >= 500
    assert Counter(item.kind for item in items) == {"seen": 50, "held_out": 50}
    pools = flags.asked(WORLD, "test")
    assert min(len(pool) for pool in pools) >= flags.TEST_QUESTIONS // 2
    assert len({item.fact.pair for item in items}) == 100


def test_rows_have_fvqa_s_schema() -> None:
    (item,) = flags.questions(WORLD, "train", 0, 1)
    row = item.row()
    assert row["prompt"] == [{"content": item.text, "role": "user"}]
    picture = Image.open(io.BytesIO(row["images"][0]["bytes"]))
    assert np.array_equal(np.asarray(picture), item.picture)
    candidates = json.loads(row["reward_model"]["candidate_answers"])
    assert (row["reward_model"]["ground_truth"], *candidates) == item.fact.golds
    assert is_gold(item.fact.golds[-1], item.fact.golds)
    assert (row["data_id"], row["category"]) == ("flags/train/0/0", item.fact.attribute)


def test_training_and_test_share_no_phrasing_but_the_words_that_tell() -> None:
    assert set(phrasings.PHRASINGS) == set(BY_KEY)
    known = {word for f in phrasings.FRAMES["training"] for word in normalise(f)}
    for key in BY_KEY:
        training = set(flags.questions_about(key, "training"))
        unseen = set(flags.questions_about(key, "unseen"))
        assert len(training) >= 7 and len(unseen) >= 4
        assert not training & unseen
        telling = {word for text in training for word in normalise(text)} - known
        for name in phrasings.PHRASINGS[key].unseen:
            words = {word.removesuffix("'s").rstrip("'") for word in normalise(name)}
            assert telling & words, name


def test_no_question_names_a_country() -> None:
    names = [f" {' '.join(normalise(country.name))} " for country in WORLD.countries]
    for key in BY_KEY:
        for use in typing.get_args(phrasings.Use):
            for text in flags.questions_about(key, use):
                padded = f" {' '.join(normalise(text))} "
                assert not [name for name in names if name in padded]


def test_every_attribute_s_questions_differ_from_every_other_s() -> None:
    texts = [t for key in BY_KEY for t in flags.questions_about(key, "training")]
    assert len(texts) == len(set(texts))


# Pictures


def test_test_pictures_range_further_than_training_s() -> None:
    narrow, wide = pictures.TRAINING, pictures.UNSEEN
    assert wide.crop > narrow.crop and wide.turn > narrow.turn
    for one, other in ((narrow.scale, wide.scale), (narrow.light, wide.light)):
        assert other[0] < one[0] and other[1] >= one[1]
    assert wide.noise[1] > narrow.noise[1]


def test_a_picture_shows_its_flag_large_or_small() -> None:
    flag = np.zeros((72, 96, 3), np.uint8)
    flag[..., 1] = 255
    for scale in (0.62, 1.0):
        ranges = pictures.Ranges((scale, scale), 0.0, 0.0, (1.0, 1.0), (0.0, 0.0))
        picture = flags.draw(flag, ranges, np.random.default_rng(1))
        green = (picture == (0, 255, 0)).all(-1).sum()
        assert green == round(64 * scale) * round(64 * scale * 0.75)


def test_light_and_noise_change_a_picture() -> None:
    flag = WORLD.flags[5]
    plain = pictures.Ranges((0.8, 0.8), 0.0, 0.0, (1.0, 1.0), (0.0, 0.0))
    dark = pictures.Ranges((0.8, 0.8), 0.0, 0.0, (0.5, 0.5), (0.0, 0.0))
    noisy = pictures.Ranges((0.8, 0.8), 0.0, 0.0, (1.0, 1.0), (9.0, 9.0))
    one, half, rough = (flags.draw(flag, r, np.random.default_rng(2)) for r in (plain, dark, noisy))
    assert np.abs(half.astype(float) - one / 2).max() <= 1
    spread = (
        rough.astype(float)[one == 128] - 128 if (one == 128).any() else rough - one.astype(float)
    )
    assert 4 < spread.std() < 10


# Excerpts


def words(text: str) -> int:
    return len(text.split())


def test_an_excerpt_stands_around_the_query() -> None:
    long = snippet("Chad | Background", "one two three four five six seven lake eight nine ten")
    assert flags.excerpt(long, "lake", words, 3).text == "lake eight nine"
    assert flags.excerpt(long, "the lake five", words, 4).text == "five six seven lake"
    assert flags.excerpt(long, "ten", words, 3).text == "eight nine ten"
    # what the head holds pulls nothing, nor does what is not there
    assert flags.excerpt(long, "Chad background", words, 2).text == "one two"
    assert flags.excerpt(long, "lake", words, 11) == long


def test_an_excerpt_keeps_to_its_limit_however_it_is_counted() -> None:
    for long in sorted(WORLD.snippets, key=lambda s: -len(s.text))[:5]:
        cut = flags.excerpt(long, "government in 1960", len, 90)
        assert len(cut.text) <= 90 and cut.text in long.text
        assert (cut.id, cut.title) == (long.id, long.title)
