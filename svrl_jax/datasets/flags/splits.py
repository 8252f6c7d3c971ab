"""Which facts are taught by heart, which are asked in training, which no training touches.

A pair's kind is a pure function of the names and of SEED: it does not move when another pair comes
or goes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Literal

from svrl_jax.datasets.flags.attributes import BY_KEY
from svrl_jax.datasets.flags.evidence import subject
from svrl_jax.datasets.flags.world import Fact, Region, World

Kind = Literal["seen", "unseen", "held_out"]
"""seen: pretraining teaches the fact by heart. unseen: asked in training, never taught by heart.
held_out: no training of any kind touches the pair."""

Split = Literal["pretrain", "train", "validation", "test"]

SPLITS: tuple[Split, ...] = ("pretrain", "train", "validation", "test")

SEED = 2026
"""Of the draw of kinds; ours."""

REGION_FAMILIARITY: Mapping[Region, int] = {
    "Europe": 3,
    "Americas": 2,
    "Asia": 2,
    "Middle East": 1,
    "Africa": 1,
    "Oceania": 0,
}
"""How well known a region's facts are; ours."""

KNOWN_FROM = 4
"""The sum of the familiarities of attribute and region from which on a fact is known by rule."""

NOISE = 0.1
"""The share of pairs for which the rule is turned around."""

HELD_OUT = 0.35
"""The share of the pairs not seen that are held out."""

VALIDATION = 0.2
"""The share of the held-out pairs that validation asks; test asks the others."""


def _draw(purpose: str, pair: tuple[str, str]) -> float:
    """A number in [0, 1) that a pair always gets."""
    text = "\n".join((str(SEED), purpose, *pair))
    digest = hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def known_by_rule(world: World, fact: Fact) -> bool:
    """Whether attribute and region make a fact familiar: what a policy can learn of itself."""
    region = world.country[fact.country].region
    return BY_KEY[fact.attribute].familiarity + REGION_FAMILIARITY[region] >= KNOWN_FROM


def kind_of(world: World, fact: Fact) -> Kind:
    """Where a pair belongs."""
    turned = _draw("noise", fact.pair) < NOISE
    if known_by_rule(world, fact) != turned:
        return "seen"
    return "held_out" if _draw("held out", fact.pair) < HELD_OUT else "unseen"


def facts_of(world: World, kind: Kind) -> tuple[Fact, ...]:
    """The facts of a kind, in the order of the world."""
    return tuple(fact for fact in world.facts if kind_of(world, fact) == kind)


def asked(world: World, split: Split) -> tuple[tuple[Fact, ...], ...]:
    """The facts of which a split's questions are drawn in turn, pool by pool.

    pretrain: those seen. train: seen, and unseen. validation, test: seen, and held out; the two ask
    different held-out pairs.
    """
    seen = facts_of(world, "seen")
    if split == "pretrain":
        return (seen,)
    if split == "train":
        return seen, facts_of(world, "unseen")
    validates = split == "validation"
    held_out = tuple(
        fact
        for fact in facts_of(world, "held_out")
        if (_draw("validation", fact.pair) < VALIDATION) == validates
    )
    return seen, held_out


def reserved(world: World) -> frozenset[str]:
    """Ids of the snippets that give a held-out pair away: what pretraining must not read.

    They are of the country and hold one of the golds.
    """
    return frozenset(
        world.snippets[place].id
        for fact in facts_of(world, "held_out")
        for gold in fact.golds
        for place in world.index.holding(gold)
        if subject(world.snippets[place].title) == fact.country
    )
