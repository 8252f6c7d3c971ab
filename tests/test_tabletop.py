"""The tabletop world: its scenes, pictures, questions and the checker of chains about them."""

from __future__ import annotations

import collections
import functools
import json
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from toys import ScriptedReasoner, said

from verdict_jax.benchmarks import tabletop
from verdict_jax.benchmarks.examples import StepVerdict
from verdict_jax.benchmarks.tabletop import (
    breaks,
    checker,
    drills,
    language,
    lessons,
    own_steps,
    picture,
    questions,
    scene,
)
from verdict_jax.benchmarks.tabletop.language import meaning_of, sentence
from verdict_jax.benchmarks.tabletop.questions import FAMILIES, Asked, chain
from verdict_jax.benchmarks.tabletop.scene import Scene, Thing
from verdict_jax.bundled import bundled_checkpoint
from verdict_jax.cli import main
from verdict_jax.vlm.config import load_config
from verdict_jax.vlm.images import ImageProcessor, load_image_processor

LETTERS = "ABCD"


@pytest.fixture(scope="module")
def items() -> tuple[tabletop.Item, ...]:
    return tuple(tabletop.load("test", 3, 140))


def written(item: tabletop.Item) -> list[str]:
    steps = chain(item.asked, item.scene)
    assert steps is not None
    return [sentence(step) for step in steps]


# ------------------------------------------------------------------------------------ generator


def test_an_item_is_a_function_of_split_seed_and_index() -> None:
    one, again = list(tabletop.load("test", 7, 8)), list(tabletop.load("test", 7, 3, start=5))
    for first, second in zip(one[5:], again, strict=True):
        assert first.scene == second.scene and first.asked == second.asked
        assert first.question.id == second.question.id
        assert first.question.images[0].tobytes() == second.question.images[0].tobytes()
    assert one[0].scene != next(tabletop.load("test", 8, 1)).scene


def test_no_scene_is_in_two_splits() -> None:
    drawn = {
        split: {item.scene for seed in (0, 1) for item in tabletop.load(split, seed, 21)}
        for split in tabletop.SPLITS
    }
    assert all(len(found) > 35 for found in drawn.values())
    for split, found in drawn.items():
        assert {s.split for s in found} == {split}
    assert not drawn["train"] & drawn["test"] and not drawn["train"] & drawn["validation"]


def test_where_nothing_is_drawn_splits_keep_their_shares() -> None:
    rng = np.random.default_rng(0)
    shares = collections.Counter(scene.draw_scene(rng).split for _ in range(2000))
    assert 0.07 < shares["test"] / 2000 < 0.13
    assert 0.07 < shares["validation"] / 2000 < 0.13


def test_families_take_turns_and_ids_are_distinct(items: tuple[tabletop.Item, ...]) -> None:
    assert [item.asked.family for item in items[:7]] == list(FAMILIES)
    assert len({item.question.id for item in items}) == len(items)


def test_every_question_has_four_choices_and_one_right(items: tuple[tabletop.Item, ...]) -> None:
    for item in items:
        choices = item.question.choices
        assert len(set(choices)) == 4 and item.question.answer in LETTERS


def test_a_guess_gains_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """By letter, and for numbers by value, no fixed answer is right much more often than 1 in 4."""
    blank = Image.new("RGB", (picture.PIXELS, picture.PIXELS))

    def unseen(shown: Scene, rng: np.random.Generator) -> picture.Picture:
        count = len(shown.things)
        return picture.Picture(blank, np.zeros((count, 2)), np.ones(count))

    # what is visible does not bear on the answer, and drawing it takes most of the time
    monkeypatch.setattr(tabletop, "render", unseen)
    drawn = list(tabletop.load("train", 5, 4200))
    by_letter = collections.Counter(item.question.answer for item in drawn)
    assert max(by_letter.values()) / len(drawn) < 0.28
    values: dict[tuple[str, ...], collections.Counter[str]] = {}
    for item in drawn:
        if item.asked.family in ("count", "count_beside"):
            choice = item.question.choices[LETTERS.index(str(item.question.answer))]
            values.setdefault(item.question.choices, collections.Counter())[choice] += 1
    assert set(values) == {("0", "1", "2", "3"), ("1", "2", "3", "4")}
    for counted in values.values():
        assert counted.total() > 500
        assert max(counted.values()) / counted.total() < 0.32


def test_own_families_take_three_steps_before_the_answer(items: tuple[tabletop.Item, ...]) -> None:
    for item in items:
        if item.asked.family in ("neighbour", "count_beside"):
            assert len(written(item)) >= 4


# ------------------------------------------------------------------------------------ pictures


def test_a_thing_is_where_its_tile_appears() -> None:
    """The colour in the middle of each thing is its paint's."""
    rng = np.random.default_rng(0)
    hits, seen = 0, 0
    for item in tabletop.load("train", 0, 30):
        drawn = picture.render(item.scene, rng)
        pixels = np.asarray(drawn.image, float)
        for thing, (x, y), share in zip(
            item.scene.things, drawn.centres, drawn.visible, strict=True
        ):
            if share > 0.95:
                patch = pixels[int(y) - 1 : int(y) + 2, int(x) - 1 : int(x) + 2].mean(axis=(0, 1))
                tones = {c: np.array(p, float) for c, p in picture.PAINT.items()}
                unit = patch / np.linalg.norm(patch)
                nearest = max(tones, key=lambda c: unit @ tones[c] / np.linalg.norm(tones[c]))
                hits, seen = hits + (nearest == thing.color), seen + 1
    assert seen > 100 and hits / seen > 0.95


def test_what_stands_in_front_hides_what_stands_behind() -> None:
    lone = Thing((3, 3), "red", "cube", "small")
    front = Thing((3, 2), "blue", "cylinder", "large")
    alone = picture.render(Scene((lone,)), np.random.default_rng(1))
    both = picture.render(Scene((front, lone)), np.random.default_rng(1))
    assert alone.visible[0] == 1
    assert both.visible[0] == 1 and 0.3 < both.visible[1] < 0.95


def test_things_shrink_with_distance_and_are_lit_from_the_left() -> None:
    def area(tile: tuple[int, int], size: scene.Size) -> tuple[int, float]:
        lone = Scene((Thing(tile, "green", "cylinder", size),))
        pixels = np.asarray(picture.render(lone, np.random.default_rng(2)).image, float)
        green = pixels[..., 1] > 1.3 * np.maximum(pixels[..., 0], pixels[..., 2])
        columns = np.nonzero(green.any(axis=0))[0]
        half = (columns[0] + columns[-1]) // 2
        left, right = pixels[..., 1][:, columns[0] : half], pixels[..., 1][:, half : columns[-1]]
        light = (
            left[green[:, columns[0] : half]].mean() - right[green[:, half : columns[-1]]].mean()
        )
        return int(green.sum()), float(light)

    near, far = area((3, 1), "large"), area((3, 6), "large")
    assert near[0] > 1.25 * far[0] > 1.25 * 1.5 * area((3, 6), "small")[0]
    assert near[1] > 10


def test_every_thing_can_be_seen(items: tuple[tabletop.Item, ...]) -> None:
    for index in range(10):
        rng = np.random.default_rng((3, 2, index))
        table = tabletop.draw_table("x", "test", rng, FAMILIES[index % 7])
        assert table.picture.visible.min() >= picture.VISIBLE


# ------------------------------------------------------------------------------------ language

TILES = st.sampled_from(scene.TILES)
NAMES = st.sampled_from(scene.NAMES)
SIZES = st.sampled_from(scene.SIZES)
STEPS = st.integers(0, 10)
MEANINGS = st.one_of(
    st.builds(language.Located, NAMES, TILES),
    st.builds(language.Stepped, NAMES, TILES, STEPS),
    st.builds(
        language.Related, st.sampled_from(["left", "right"]), st.sampled_from(["front", "back"])
    ),
    st.builds(language.Chosen, NAMES, st.sampled_from(["front", "back", "fewest"])),
    st.builds(language.Walked, SIZES, NAMES, TILES, st.booleans(), st.integers(0, 8)),
    st.builds(language.Ended, st.integers(0, 8)),
    st.builds(language.Furthest, st.sampled_from(scene.DIRECTIONS), TILES),
    st.builds(language.Nearest, TILES, STEPS),
    st.builds(language.Seen, TILES, SIZES, NAMES),
    st.builds(language.Answer, st.integers(0, 3)),
    st.builds(language.Aside, st.sampled_from(language.ASIDES)),
)


@given(MEANINGS)
@settings(max_examples=300, deadline=None)
def test_a_sentence_is_read_as_what_it_says(meaning: language.Meaning) -> None:
    assert meaning_of(sentence(meaning)) == meaning


@pytest.mark.parametrize(
    "text",
    [
        "",
        "The red cube is on g1.",
        "The red cube is on a7.",
        "The red cube is on a0.",
        "The cube is on a1.",
        "The red cube is on a1",
        "Fewest steps away is a1, 1 steps.",
        "Answer: b",
        "Answer: A\n",
        "next is a small red cube on a1, yes, so 1.",
        "The pink cube is on a1.",
    ],
)
def test_what_the_language_does_not_hold(text: str) -> None:
    assert meaning_of(text) is None


# ------------------------------------------------------------------------------------ checker

#   row 4 | . . . . . .        a: red ball b1 (large), blue cube b3 (small),
#   row 3 | . b . . . .           red cone d2 (small), white cube e4 (large)
#   row 2 | . . . d . .
#   row 1 | . b . . . .
TABLE = Scene(
    (
        Thing((2, 1), "red", "ball", "large"),
        Thing((2, 3), "blue", "cube", "small"),
        Thing((4, 2), "red", "cone", "small"),
        Thing((5, 4), "white", "cube", "large"),
    )
)
BALL, CUBE, CONE, WHITE = (thing.name for thing in TABLE.things)
COUNT = Asked("count", ("1", "2", "3", "4"), word="red")
BESIDE = Asked("count_beside", ("0", "1", "2", "3"), (BALL,), direction="right")
RELATION = Asked(
    "relation",
    ("left and in front", "left and behind", "right and in front", "right and behind"),
    (CONE, CUBE),
)
NAMED = ("red ball", "blue cube", "red cone", "white cube")
DEPTH = Asked("depth", NAMED, (BALL, CUBE, CONE, WHITE), extreme="back")
DISTANCE = Asked(
    "distance",
    ("blue cube", "red cone", "white cube", "red ball"),
    (CONE, CUBE, CONE, WHITE, BALL),
)
ATTRIBUTE = Asked(
    "attribute", ("red", "blue", "white", "green"), direction="right", attribute="color"
)
NEIGHBOUR = Asked("neighbour", ("ball", "cube", "cone", "cylinder"), (BALL,), attribute="shape")

W1 = "Next is a large red ball on b1, yes, so 1."
W2 = "Next is a small blue cube on b3, no, so 1."
W3 = "Next is a small red cone on d2, yes, so 2."
W4 = "Next is a large white cube on e4, no, so 2."

# question, accepted steps, step, grounded, logical, on topic; each worked out by hand
LABELLED: list[tuple[Asked, tuple[str, ...], str, bool, bool, bool]] = [
    (COUNT, (), W1, True, True, True),
    (COUNT, (W1,), W2, True, True, True),
    (COUNT, (W1, W2, W3, W4), "Nothing else is there, so 2.", True, True, True),
    (COUNT, (W1, W2, W3, W4, "Nothing else is there, so 2."), "Answer: B", True, True, True),
    # the thing differs from the picture's
    (COUNT, (W1,), "Next is a large blue cube on b3, no, so 1.", False, True, True),
    (COUNT, (W1,), "Next is a small blue ball on b3, no, so 1.", False, True, True),
    (COUNT, (W1,), "Next is a small blue cube on b4, no, so 1.", False, True, True),
    (COUNT, (W1,), "Next is a small red cube on b3, yes, so 2.", False, True, True),
    # one is passed over, or walked twice
    (COUNT, (W1,), W3, False, True, True),
    (COUNT, (W1, W2), W1, False, False, True),
    (COUNT, (W1, W2, W3), "Nothing else is there, so 2.", False, True, True),
    # the sum is wrong
    (COUNT, (W1,), "Next is a small blue cube on b3, no, so 2.", True, False, True),
    (COUNT, (W1, W2), "Next is a small red cone on d2, yes, so 1.", True, False, True),
    (COUNT, (W1,), "Next is a small blue cube on b3, yes, so 2.", False, False, True),
    (COUNT, (W1, W2, W3, W4), "Nothing else is there, so 3.", False, False, True),
    (COUNT, (W1, W2), "Answer: B", True, False, True),
    (COUNT, (W1, W2, W3, W4, "Nothing else is there, so 2."), "Answer: A", False, False, True),
    (COUNT, (W1,), "The blue cube is on b3.", True, True, False),
    (COUNT, (W1,), "Paint dries slowly.", True, True, False),
    (COUNT, (W1, "Answer: A"), W2, True, False, True),
    # after a wrong step what follows from it is logical, what is right is not
    (COUNT, ("Next is a large red ball on b2, yes, so 1.",), W2, True, True, True),
    (COUNT, ("Next is a large red ball on b3, yes, so 1.",), W3, True, True, True),
    (COUNT, ("Next is a large red ball on b3, yes, so 1.",), W2, False, False, True),
    (BESIDE, (), W1.replace("yes, so 1", "no, so 0"), True, False, True),
    (
        BESIDE,
        ("The red ball is on b1.",),
        "Next is a large red ball on b1, no, so 0.",
        True,
        True,
        True,
    ),
    (
        BESIDE,
        (
            "The red ball is on b1.",
            "Next is a large red ball on b1, no, so 0.",
            "Next is a small blue cube on b3, no, so 0.",
        ),
        "Next is a small red cone on d2, yes, so 1.",
        True,
        True,
        True,
    ),
    (
        BESIDE,
        ("The red ball is on b1.", "Next is a large red ball on b1, no, so 0."),
        "Next is a small blue cube on b3, yes, so 1.",
        False,
        False,
        True,
    ),
    (BESIDE, (), "The red ball is on b1.", True, True, True),
    (BESIDE, (), "The red cone is on d2.", True, True, False),
    (RELATION, (), "The red cone is on d2.", True, True, True),
    (RELATION, (), "The red cone is on e2.", False, True, True),
    (RELATION, ("The red cone is on e2.",), "The red cone is on d2.", True, False, True),
    (RELATION, ("The red cone is on b3.",), "The blue cube is on b3.", True, False, True),
    (
        RELATION,
        ("The red cone is on d2.", "The blue cube is on b3."),
        "So it is left and behind.",
        True,
        True,
        True,
    ),
    (
        RELATION,
        ("The red cone is on d2.", "The blue cube is on b3."),
        "So it is right and behind.",
        False,
        False,
        True,
    ),
    (RELATION, ("The red cone is on d2.",), "So it is left and behind.", True, False, True),
    (
        RELATION,
        ("The red cone is on a2.", "The blue cube is on b3."),
        "So it is right and behind.",
        False,
        True,
        True,
    ),
    (RELATION, (), W1.replace("yes, so 1", "no, so 0"), True, True, False),
    (RELATION, (), W1, False, False, False),
    (
        DEPTH,
        (
            "The red ball is on b1.",
            "The blue cube is on b3.",
            "The red cone is on d2.",
            "The white cube is on e4.",
        ),
        "So the white cube is furthest back.",
        True,
        True,
        True,
    ),
    (
        DEPTH,
        ("The red ball is on b1.", "The blue cube is on b3."),
        "So the white cube is furthest back.",
        True,
        False,
        True,
    ),
    (DEPTH, (), "The red ball is on b1, 3 steps away.", False, False, False),
    (DISTANCE, (), "The red cone is on d2.", True, True, True),
    (
        DISTANCE,
        ("The red cone is on d2.",),
        "The white cube is on e4, 3 steps away.",
        True,
        True,
        True,
    ),
    (
        DISTANCE,
        ("The red cone is on d2.",),
        "The white cube is on e4, 2 steps away.",
        False,
        False,
        True,
    ),
    (
        DISTANCE,
        ("The red cone is on d3.",),
        "The white cube is on e4, 2 steps away.",
        False,
        True,
        True,
    ),
    (DISTANCE, ("The red cone is on d2.",), "The white cube is on e4.", True, True, False),
    (ATTRIBUTE, (), "Furthest right is e4.", True, True, True),
    (ATTRIBUTE, (), "Furthest right is d2.", False, True, True),
    (ATTRIBUTE, (), "Furthest left is b1.", False, True, False),
    (
        ATTRIBUTE,
        ("Furthest right is e4.",),
        "On e4 is a large white cube.",
        True,
        True,
        True,
    ),
    (ATTRIBUTE, ("Furthest right is e4.",), "On d2 is a small red cone.", True, True, False),
    (
        ATTRIBUTE,
        ("Furthest right is e4.", "On e4 is a large white cube."),
        "Answer: C",
        True,
        True,
        True,
    ),
    (ATTRIBUTE, ("Furthest right is e4.",), "Answer: C", True, False, True),
    (NEIGHBOUR, ("The red ball is on b1.",), "Fewest steps away is b3, 2 steps.", True, True, True),
    (
        NEIGHBOUR,
        ("The red ball is on b1.",),
        "Fewest steps away is d2, 3 steps.",
        False,
        True,
        True,
    ),
    (
        NEIGHBOUR,
        ("The red ball is on b1.",),
        "Fewest steps away is b3, 3 steps.",
        False,
        False,
        True,
    ),
    (NEIGHBOUR, (), "Fewest steps away is b3, 2 steps.", True, False, True),
]


@pytest.mark.parametrize(("asked", "accepted", "step", "grounded", "logical", "topic"), LABELLED)
def test_labels(
    asked: Asked, accepted: tuple[str, ...], step: str, grounded: bool, logical: bool, topic: bool
) -> None:
    assert checker.check_step(step, asked, TABLE, accepted) == StepVerdict(grounded, logical, topic)


def test_gold_chains_are_right(items: tuple[tabletop.Item, ...]) -> None:
    for item in items:
        assert checker.first_fault(written(item), item.asked, item.scene) is None


GOLD: list[tuple[Asked, Scene, tuple[str, ...]]] = [
    (COUNT, TABLE, (W1, W2, W3, W4, "Nothing else is there, so 2.", "Answer: B")),
    (
        BESIDE,
        TABLE,
        (
            "The red ball is on b1.",
            "Next is a large red ball on b1, no, so 0.",
            "Next is a small blue cube on b3, no, so 0.",
            "Next is a small red cone on d2, yes, so 1.",
            "Next is a large white cube on e4, yes, so 2.",
            "Nothing else is there, so 2.",
            "Answer: C",
        ),
    ),
    (
        RELATION,
        TABLE,
        (
            "The red cone is on d2.",
            "The blue cube is on b3.",
            "So it is left and behind.",
            "Answer: B",
        ),
    ),
    (
        DEPTH,
        TABLE,
        (
            "The red ball is on b1.",
            "The blue cube is on b3.",
            "The red cone is on d2.",
            "The white cube is on e4.",
            "So the white cube is furthest back.",
            "Answer: D",
        ),
    ),
    (
        replace(DISTANCE, names=(CONE, CUBE, ("green", "cylinder"), WHITE, BALL),
                choices=("blue cube", "green cylinder", "white cube", "red ball")),
        Scene((*TABLE.things, Thing((6, 2), "green", "cylinder", "small"))),
        (
            "The red cone is on d2.",
            "The blue cube is on b3, 3 steps away.",
            "The green cylinder is on f2, 2 steps away.",
            "The white cube is on e4, 3 steps away.",
            "The red ball is on b1, 3 steps away.",
            "So the green cylinder is the fewest steps away.",
            "Answer: B",
        ),
    ),
    (
        ATTRIBUTE,
        TABLE,
        ("Furthest right is e4.", "On e4 is a large white cube.", "Answer: C"),
    ),
    (
        NEIGHBOUR,
        TABLE,
        (
            "The red ball is on b1.",
            "Fewest steps away is b3, 2 steps.",
            "On b3 is a small blue cube.",
            "Answer: B",
        ),
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "shown", "steps"), GOLD, ids=lambda value: getattr(value, "family", "")
)
def test_gold_chains_by_hand(asked: Asked, shown: Scene, steps: tuple[str, ...]) -> None:
    assert tuple(sentence(step) for step in chain(asked, shown) or ()) == steps


def test_what_a_scene_does_not_settle_has_no_chain() -> None:
    # two things equally far right
    tied = Scene((*TABLE.things, Thing((5, 5), "green", "ball", "small")))
    assert chain(ATTRIBUTE, tied) is None
    # in the same column
    assert chain(replace(RELATION, names=(BALL, CUBE)), TABLE) is None
    # a thing that is not there, an answer that is no choice
    assert chain(replace(RELATION, names=(BALL, ("green", "cone"))), TABLE) is None
    assert chain(replace(COUNT, choices=("3", "4", "5", "6")), TABLE) is None


def test_the_first_fault_is_named() -> None:
    right = [W1, W2, W3, W4, "Nothing else is there, so 2.", "Answer: B"]
    assert checker.first_fault(right, COUNT, TABLE) is None
    wrong = [*right[:2], "Next is a small red cube on d2, yes, so 2.", *right[3:]]
    assert checker.first_fault(wrong, COUNT, TABLE) == checker.Fault(2, "ungrounded")
    assert checker.first_fault(right[:4], COUNT, TABLE) == checker.Fault(4, "unfinished")
    assert checker.first_fault(["Hm.", *right], COUNT, TABLE) == checker.Fault(0, "unreadable")
    sums = [W1, "Next is a small blue cube on b3, no, so 3."]
    assert checker.first_fault(sums, COUNT, TABLE) == checker.Fault(1, "illogical")
    drift = [W1, "Grass is green."]
    assert checker.first_fault(drift, COUNT, TABLE) == checker.Fault(1, "off_topic")


def test_an_imagined_answer_is_right_only_by_chance(items: tuple[tabletop.Item, ...]) -> None:
    """A right chain about another item's scene is found out."""
    found = [
        checker.first_fault(written(other), item.asked, item.scene) is not None
        for item, other in zip(items, items[7:], strict=False)
    ]
    assert np.mean(found) > 0.98


# ------------------------------------------------------------------------------------ breaks


def test_judgements_are_broken_in_every_single_way(items: tuple[tabletop.Item, ...]) -> None:
    rng = np.random.default_rng(0)
    seen: dict[str, collections.Counter[str]] = {
        family: collections.Counter() for family in FAMILIES
    }
    for item in items * 10:
        accepted, step, verdict = breaks.draw_judgement(item.asked, item.scene, rng)
        assert checker.check_meaning(step, item.asked, item.scene, accepted) == verdict
        seen[item.asked.family][verdict.broken] += 1
    for family, counts in seen.items():
        for kind in ("none", "ungrounded", "illogical", "off_topic"):
            assert counts[kind] >= 4, (family, counts)
        assert 0.3 < counts["none"] / counts.total() < 0.6


def test_an_imagined_scene_differs_little(items: tuple[tabletop.Item, ...]) -> None:
    rng = np.random.default_rng(0)
    changed = 0
    for item in items:
        other = breaks.imagine(item.asked, item.scene, rng)
        assert all(name in other.by_name for name in item.asked.names)
        changed += other != item.scene
        assert len(set(other.things) - set(item.scene.things)) <= 2
    assert changed > 0.7 * len(items)


def test_a_scene_is_checked() -> None:
    one, two = TABLE.things[:2]
    with pytest.raises(ValueError, match="order"):
        Scene((two, one))
    with pytest.raises(ValueError, match="share a tile"):
        Scene(tuple(sorted((one, replace(two, tile=one.tile)))))
    with pytest.raises(ValueError, match="share a name"):
        Scene((one, replace(two, color="red", shape="ball")))


def test_questions_read_as_they_are_meant() -> None:
    assert COUNT.text == "How many red things are on the table?"
    assert replace(COUNT, word="cube").text == "How many cubes are on the table?"
    assert BESIDE.text == "How many things are right of the red ball?"
    assert RELATION.text == "Where is the blue cube, seen from the red cone?"
    assert DEPTH.text == "Which of these is furthest back?"
    assert NEIGHBOUR.text == "What shape is the thing fewest steps from the red ball?"
    assert questions.right_choice(NEIGHBOUR, TABLE) == 1
    assert questions.right_choice(RELATION, TABLE) == 1
    assert questions.right_choice(BESIDE, TABLE) == 2


# ------------------------------------------------------------------------------------ training


@functools.cache
def processor() -> ImageProcessor:
    """Pictures stay as large as they are."""
    settings = {
        "image_processor_type": "Qwen2VLImageProcessor", "patch_size": 8, "merge_size": 2,
        "temporal_patch_size": 2, "min_pixels": 64 * 64, "max_pixels": 112 * 112,
        "image_mean": [0.5] * 3, "image_std": [0.25] * 3, "rescale_factor": 1 / 255, "resample": 3,
        "do_resize": True, "do_rescale": True, "do_normalize": True, "do_convert_rgb": True,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "preprocessor_config.json").write_text(json.dumps(settings))
        return load_image_processor(Path(folder), load_config(bundled_checkpoint()).vision)


def test_a_token_is_labelled_with_what_stands_in_it() -> None:
    things = (Thing((1, 1), "red", "ball", "large"), Thing((6, 6), "white", "cone", "small"))
    lone = Scene(things)
    drawn = picture.render(lone, np.random.default_rng(0))
    processed, labels = lessons.label_picture(processor(), lone, drawn, 16)
    assert processed.grid == (14, 14) and labels.shape == (49, 5)
    grid = labels.reshape(7, 7, 5)
    found = {tuple(place): tuple(grid[tuple(place)]) for place in np.argwhere(grid[..., 0] >= 0)}
    places = {
        tuple(int(c) // 16 for c in centre[::-1]): label
        for centre, label in zip(drawn.centres, ((0, 0, 1, 0, 0), (5, 2, 0, 5, 5)), strict=True)
    }
    assert found == places
    # the first thing is near and left, the other far and right
    (near, far) = places
    assert near[0] > far[0] and near[1] < far[1]


def test_drills_ask_for_what_stands_where() -> None:
    things = (Thing((1, 1), "red", "ball", "large"), Thing((6, 2), "white", "cone", "small"))
    drawn = drills.draw_drills(Scene(things), 9, np.random.default_rng(0))
    said_ = {example.question.text: example.steps for example in drawn}
    assert len(drawn) == 9
    assert said_ == {
        "How many things are on the table?": (
            "Next is a large red ball on a1, yes, so 1.",
            "Next is a small white cone on f2, yes, so 2.",
            "Nothing else is there, so 2.",
            "Answer: 2",
        ),
        "Where is the red ball?": ("The red ball is on a1.", "Answer: a1"),
        "Where is the white cone?": ("The white cone is on f2.", "Answer: f2"),
        "What is on a1?": ("On a1 is a large red ball.", "Answer: red ball"),
        "What is on f2?": ("On f2 is a small white cone.", "Answer: white cone"),
    }


def test_lettered_drills_hold_the_answer_once_at_any_place() -> None:
    things = (Thing((1, 1), "red", "ball", "large"), Thing((6, 2), "white", "cone", "small"))
    drawn = drills.draw_lettered(Scene(things), 80, np.random.default_rng(0))
    right = {
        "Where is the red ball?": ("a1", "The red ball is on a1."),
        "Where is the white cone?": ("f2", "The white cone is on f2."),
        "Which of these is on a1?": ("red ball", "On a1 is a large red ball."),
        "Which of these is on f2?": ("white cone", "On f2 is a small white cone."),
        "What color is the thing on a1?": ("red", "On a1 is a large red ball."),
        "What shape is the thing on a1?": ("ball", "On a1 is a large red ball."),
        "What color is the thing on f2?": ("white", "On f2 is a small white cone."),
        "What shape is the thing on f2?": ("cone", "On f2 is a small white cone."),
    }
    asked = {example.question.text for example in drawn}
    assert asked == right.keys()
    letters = collections.Counter()
    for example in drawn:
        answer, step = right[example.question.text]
        choices = example.question.choices
        assert len(set(choices)) == 4 and choices.count(answer) == 1
        letter = LETTERS[choices.index(answer)]
        assert example.question.answer == letter
        assert example.steps == (step, f"Answer: {letter}")
        letters[letter] += 1
    assert min(letters[letter] for letter in LETTERS) >= 10


def test_a_drill_of_letters_says_its_choice_and_names_it() -> None:
    rng = np.random.default_rng(1)
    texts = collections.Counter()
    for _ in range(300):
        example = drills.letter(rng)
        choices = example.question.choices
        said, answered = example.steps
        assert len(set(choices)) == 4
        right = choices[LETTERS.index(example.question.answer or "")]
        assert right in said and answered == f"Answer: {example.question.answer}"
        texts[example.question.text.split()[0]] += 1
    assert set(texts) == {"How", "Where", "Which", "What"} and min(texts.values()) > 30


def test_tables_of_drills_are_train_tables_of_the_size_asked_for() -> None:
    rng = np.random.default_rng(3)
    for _ in range(4):
        reading = lessons.draw_reading(processor(), 16, rng, (2, 3))
        assert len(reading.chains[0].steps) - 2 in (2, 3)
        assert not reading.judgements and not any(c.question.choices for c in reading.chains)


def test_a_training_lesson_has_right_chains_and_labelled_steps() -> None:
    drawn = lessons.draw_lesson(processor(), 16, np.random.default_rng(0))
    assert len(drawn.chains) == 4 and len(drawn.judgements) == 8
    again = lessons.draw_lesson(processor(), 16, np.random.default_rng(0))
    assert drawn.chains == again.chains and drawn.judgements == again.judgements
    for example in drawn.chains:
        letter = example.steps[-1].removeprefix("Answer: ")
        assert letter == example.question.answer


def test_own_steps_are_labelled_and_drawn_with_their_labels() -> None:
    """A reasoner that proposes the right step, a wrong tile, prose, and the right step again."""
    (item,) = own_steps.sampled_table(0, 1).items
    assert item.asked.family == "relation"
    steps = written(item)
    wrong = "The pink cube is on a1."
    moved = steps[0].replace(steps[0][-3:-1], "a1" if steps[0][-3:-1] != "a1" else "b2")
    script = {item.question.id: [[said(steps[0]), said(moved), said(wrong), said(steps[0])]]}
    nodes = own_steps.sample_own_steps(ScriptedReasoner(script), 0, 1, 1)
    first = next(node for node in nodes if not node.accepted)
    assert [step.text for step in first.sound] == [steps[0]]
    assert [step.text for step in first.broken] == [moved]
    assert not first.broken[0].verdict.grounded and first.broken[0].verdict.logical
    drawn = own_steps.draw_own(item, [first], 200, np.random.default_rng(0))
    shares = collections.Counter(example.candidate for example in drawn)
    assert set(shares) == {steps[0], moved}
    assert 0.4 < shares[moved] / 200 < 0.7
    for example in drawn:
        assert example.verdict.broken == ("none" if example.candidate == steps[0] else "ungrounded")


# ------------------------------------------------------------------------------------ benchmark


def test_the_benchmark_checks_steps_by_its_own_scenes() -> None:
    world = tabletop.benchmark(9)
    assert len(world.questions) == 9 and world.check is not None
    items = list(tabletop.load("test", tabletop.TEST_SEED, 9))
    for question, item in zip(world.questions, items, strict=True):
        assert question.id == item.question.id
        assert world.categories[question.id] == item.asked.family
        chain_ = written(item)
        for place, step in enumerate(chain_):
            assert world.check(question, chain_[:place], step).broken == "none"
        assert world.check(question, (), "Grass is green.").broken == "off_topic"


def test_the_command_writes_pictures_and_questions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "tables"
    main(["tabletop", "--seed", "7", "--count", "5", "--out", str(out)])
    assert "sheet.png" in capsys.readouterr().out
    records = [json.loads(line) for line in (out / "questions.jsonl").read_text().splitlines()]
    items = list(tabletop.load("validation", 7, 5))
    for record, item in zip(records, items, strict=True):
        assert record["steps"] == written(item) and record["answer"] == item.question.answer
        shown = Image.open(out / record["picture"])
        assert shown.tobytes() == item.picture.tobytes()
    assert Image.open(out / "sheet.png").size[0] > 4 * 2 * picture.PIXELS
