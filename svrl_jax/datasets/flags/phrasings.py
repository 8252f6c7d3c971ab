"""How a question is put: a frame around a name of the attribute, others in test than in training.

A test phrasing is new as a whole; the word that says which attribute is meant stands in a training
phrasing too, for a model that learnt its words here could not know it else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Use = Literal["training", "unseen"]


@dataclass(frozen=True)
class Phrasing:
    """The words for an attribute.

    Attributes:
        asks: the question's first word.
        training: names of the attribute that training uses.
        unseen: names that validation and test use.
    """

    asks: Literal["What", "Who"]
    training: tuple[str, ...]
    unseen: tuple[str, ...]

    def names(self, use: Use) -> tuple[str, ...]:
        return self.training if use == "training" else self.unseen


FRAMES: Mapping[Use, tuple[str, ...]] = {
    "training": (
        "{asks} is {name} of the country whose flag this is?",
        "{asks} is {name} of the country that flies this flag?",
        "{asks} is {name} of the country with this flag?",
        "This is the flag of a country. {asks} is {name} of it?",
        "Look at the flag. {asks} is {name} of that country?",
        "Tell me {name} of the country whose flag you see.",
        "You see a flag. Name {name} of its country.",
    ),
    "unseen": (
        "{asks} is {name} of the country that this flag belongs to?",
        "The picture shows a flag. {asks} is {name} of the country?",
        "Here is the flag of a country. Tell me {name} of it.",
        "Name {name} of the country whose flag is in the picture.",
    ),
}


def _what(training: tuple[str, ...], unseen: tuple[str, ...]) -> Phrasing:
    return Phrasing("What", training, unseen)


def _who(training: tuple[str, ...], unseen: tuple[str, ...]) -> Phrasing:
    return Phrasing("Who", training, unseen)


PHRASINGS: Mapping[str, Phrasing] = {
    "capital": _what(
        ("the capital", "the capital city"), ("the city that is the capital", "the capital's name")
    ),
    "currency": _what(
        ("the currency", "the name of the currency"), ("the national currency", "the currency unit")
    ),
    "highest point": _what(
        ("the highest point", "the highest place"),
        ("the name of the highest point", "the highest elevation's name"),
    ),
    "lowest point": _what(
        ("the lowest point", "the lowest place"),
        ("the name of the lowest point", "the lowest elevation's name"),
    ),
    "mean elevation": _what(
        ("the mean elevation", "the mean height"), ("the mean elevation of the land",)
    ),
    "anthem": _what(
        ("the national anthem", "the title of the national anthem"),
        ("the name of the anthem", "the anthem's title"),
    ),
    "anthem author": _who(
        ("the author of the national anthem", "the writer of the anthem"),
        ("the author of the anthem", "the writer of the national anthem"),
    ),
    "symbol": _what(
        ("the national symbol", "the symbol"), ("a symbol", "the first national symbol")
    ),
    "independence": _what(
        ("the date of independence", "the day of independence"),
        ("the independence date", "the first day of independence"),
    ),
    "holiday": _what(
        ("the date of the national holiday", "the day of the national holiday"),
        ("the national holiday's date", "the calendar day of the national holiday"),
    ),
    "legislature": _what(
        ("the legislature", "the name of the legislature"),
        ("the legislature's name", "the national legislature"),
    ),
    "chief of state": _who(
        ("the chief of state", "the head of state"), ("the present chief of state",)
    ),
    "head of government": _who(
        ("the head of government", "the head of the government"),
        ("the present head of government",),
    ),
    "ambassador": _who(
        ("the ambassador to the US", "the chief of mission in the US"),
        ("the present ambassador to the US",),
    ),
    "local name": _what(
        ("the local name", "the name in the local language"), ("the short local name",)
    ),
    "former name": _what(
        ("the former name", "a former name"), ("one former name", "the first former name")
    ),
    "population": _what(
        ("the population", "the total population"),
        ("the number of people in the population", "the size of the population"),
    ),
    "area": _what(("the area", "the total area"), ("the size of the total area", "the whole area")),
    "coastline": _what(
        ("the coastline", "the length of the coastline"), ("the coastline's total length",)
    ),
    "land boundaries": _what(
        ("the length of the land boundaries", "the total of the land boundaries"),
        ("the land boundaries' total length",),
    ),
    "life expectancy": _what(
        ("the life expectancy", "the life expectancy at birth"),
        ("the life expectancy of the total population",),
    ),
    "gdp": _what(
        ("the GDP at the official exchange rate", "the GDP by exchange rate"),
        ("the GDP at the exchange rate",),
    ),
    "gdp per capita": _what(
        ("the real GDP per capita", "the latest GDP per capita"),
        ("the latest real GDP per capita",),
    ),
    "exports": _what(
        ("the value of the exports", "the latest value of exports"),
        ("the latest exports' value", "the total value of the exports"),
    ),
    "imports": _what(
        ("the value of the imports", "the latest value of imports"),
        ("the latest imports' value", "the total value of the imports"),
    ),
    "reserves": _what(
        ("the value of the reserves of foreign exchange", "the value of the reserves of gold"),
        ("the latest value of the reserves", "the reserves' value"),
    ),
    "labor force": _what(
        ("the labor force", "the size of the labor force"),
        ("the number of people in the labor force",),
    ),
    "electricity": _what(
        ("the electricity consumption", "the consumption of electricity"),
        ("the total electricity consumption",),
    ),
    "mobile phones": _what(
        ("the number of mobile phones", "the number of mobile phone subscriptions"),
        ("the total of mobile phone subscriptions",),
    ),
    "railways": _what(
        ("the length of the railways", "the total length of railways"),
        ("the railways' length",),
    ),
}
"""By the key of the attribute."""


def questions_about(attribute: str, use: Use) -> tuple[str, ...]:
    """Every way in which an attribute is asked for.

    Raises:
        KeyError: there is no such attribute.
    """
    phrasing = PHRASINGS[attribute]
    return tuple(
        frame.format(asks=phrasing.asks, name=name)
        for frame in FRAMES[use]
        for name in phrasing.names(use)
    )
