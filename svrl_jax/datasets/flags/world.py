"""The world of flags: countries, facts about them, the snippets that a search can find.

The flags are those of flag-icons 7.5.0 (MIT), the texts the CIA World Factbook's (public domain);
`scripts/build_flags_world.py` prepared the shipped files.
"""

from __future__ import annotations

import functools
import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from svrl_jax.datasets.flags.evidence import TextIndex, head, subject
from svrl_jax.matching import holds
from svrl_jax.trajectory import Snippet

Region = Literal["Africa", "Americas", "Asia", "Europe", "Middle East", "Oceania"]

SOURCE = "The World Factbook"
"""Of every snippet."""

FLAG_WIDTH, FLAG_HEIGHT = 96, 72
"""Pixels of a stored flag."""

SHEET_COLUMNS = 16
"""Flags in a row of the shipped sheet."""


@dataclass(frozen=True)
class Country:
    """A country or territory with a flag of its own.

    Attributes:
        code: two letters, of its internet domain.
        name: short, as in the head of its snippets.
        region: where it is; settles in part which facts are known by heart.
    """

    code: str
    name: str
    region: Region


@dataclass(frozen=True)
class Fact:
    """A (country, attribute) pair with its answer.

    Attributes:
        country: its name.
        attribute: its key.
        golds: the answer as it stands in the snippet, then other accepted spellings. Each obeys
            the rule of `evidence`: long enough, and rare.
        source: id of the snippet that answers.
    """

    country: str
    attribute: str
    golds: tuple[str, ...]
    source: str

    @property
    def pair(self) -> tuple[str, str]:
        return self.country, self.attribute


@dataclass(frozen=True, eq=False)
class World:
    """All of it; never changed.

    Attributes:
        countries: [C], by code.
        facts: by country, then in the order of the attributes.
        snippets: [N], by country. Title `country | attribute`.
        flags: [C 72 96 3], in the order of the countries.
    """

    countries: tuple[Country, ...]
    facts: tuple[Fact, ...]
    snippets: tuple[Snippet, ...]
    flags: UInt8[np.ndarray, "C 72 96 3"]

    @functools.cached_property
    def country(self) -> Mapping[str, Country]:
        """By name."""
        return {country.name: country for country in self.countries}

    @functools.cached_property
    def snippet(self) -> Mapping[str, Snippet]:
        """By id."""
        return {snippet.id: snippet for snippet in self.snippets}

    @functools.cached_property
    def index(self) -> TextIndex:
        """Over the texts of the snippets; made on first use, which takes seconds."""
        return TextIndex.of([snippet.text for snippet in self.snippets])

    @functools.cached_property
    def _telling(self) -> dict[str, bool]:
        return {gold: True for fact in self.facts for gold in fact.golds}

    def is_telling(self, gold: str) -> bool:
        """Whether a gold is long and rare enough to be evidence; the facts' own golds are."""
        known = self._telling
        if gold not in known:
            known[gold] = self.index.is_telling(gold)
        return known[gold]

    def is_useful(self, snippet: Snippet, entity: str, golds: Sequence[str]) -> bool:
        """Whether a snippet is evidence: about the right country, and it holds a telling gold.

        Args:
            snippet: as it is shown: what was cut off its text does not count.
            entity: the name of the country in the picture.
            golds: the answer and its accepted spellings.
        """
        return subject(snippet.title) == entity and any(
            self.is_telling(gold) and holds(snippet.text, gold) for gold in golds
        )


@functools.cache
def load() -> World:
    """The bundled world; reading takes about half a second, a second call nothing."""
    folder = files("svrl_jax.bundled") / "flags_world"
    countries = tuple(
        Country(row["code"], row["name"], row["region"])
        for row in json.loads((folder / "countries.json").read_text(encoding="utf-8"))
    )
    names = {country.code: country.name for country in countries}
    facts = tuple(
        Fact(names[row["country"]], row["attribute"], tuple(row["golds"]), row["source"])
        for row in _lines((folder / "facts.jsonl.gz").read_bytes())
    )
    snippets = tuple(
        Snippet(f"{row['country']}-{number}", head(names[row["country"]], field), text, SOURCE)
        for row in _lines((folder / "snippets.jsonl.gz").read_bytes())
        for number, (field, text) in enumerate(row["snippets"])
    )
    with (folder / "flags.png").open("rb") as file:
        sheet = np.asarray(Image.open(file).convert("RGB"))
    return World(countries, facts, snippets, cut_sheet(sheet, len(countries)))


def _lines(packed: bytes) -> list:
    return [json.loads(line) for line in gzip.decompress(packed).decode("utf-8").splitlines()]


def cut_sheet(sheet: UInt8[np.ndarray, "height width 3"], count: int) -> np.ndarray:
    """The first `count` flags of a sheet, row by row: [count 72 96 3]."""
    rows = sheet.shape[0] // FLAG_HEIGHT
    tiles = sheet.reshape(rows, FLAG_HEIGHT, SHEET_COLUMNS, FLAG_WIDTH, 3).swapaxes(1, 2)
    flags = tiles.reshape(-1, FLAG_HEIGHT, FLAG_WIDTH, 3)[:count].copy()
    flags.setflags(write=False)
    return flags
