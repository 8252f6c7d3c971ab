"""Flags: questions about the country whose flag a picture shows, with a corpus that answers them.

Both are needed, knowing the flag and finding the fact: a question never names the country, and a
search without its name finds other countries' facts.
"""

from svrl_jax.datasets.flags.attributes import ATTRIBUTES, Attribute
from svrl_jax.datasets.flags.excerpts import SHOWN, excerpt
from svrl_jax.datasets.flags.phrasings import questions_about
from svrl_jax.datasets.flags.pictures import TRAINING, UNSEEN, Ranges, draw
from svrl_jax.datasets.flags.questions import (
    TEST_QUESTIONS,
    TEST_SEED,
    FvqaRow,
    Item,
    questions,
    test_questions,
)
from svrl_jax.datasets.flags.splits import (
    SPLITS,
    Kind,
    Split,
    asked,
    facts_of,
    kind_of,
    known_by_rule,
    reserved,
)
from svrl_jax.datasets.flags.world import Country, Fact, World, load

__all__ = [
    "ATTRIBUTES",
    "SHOWN",
    "SPLITS",
    "TEST_QUESTIONS",
    "TEST_SEED",
    "TRAINING",
    "UNSEEN",
    "Attribute",
    "Country",
    "Fact",
    "FvqaRow",
    "Item",
    "Kind",
    "Ranges",
    "Split",
    "World",
    "asked",
    "draw",
    "excerpt",
    "facts_of",
    "kind_of",
    "known_by_rule",
    "load",
    "questions",
    "questions_about",
    "reserved",
    "test_questions",
]
