"""What is asked about a country: attributes with the Factbook field that answers each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Attribute:
    """One thing that is asked about a country.

    Attributes:
        key: its name in files, and the category of its questions.
        words: what one types to find it.
        field: the attribute in the head of the snippet that answers it; for a series without its
            year.
        familiarity: 0 to 4. How well known the attribute is; with the region's it settles which
            facts the base policy is taught by heart. The numbers are ours.
        yearly: the field is a series of years, the latest of which is asked.
    """

    key: str
    words: str
    field: str
    familiarity: int
    yearly: bool = False


ATTRIBUTES: tuple[Attribute, ...] = (
    Attribute("capital", "capital name", "Capital - name", 4),
    Attribute("currency", "currency exchange rates", "Exchange rates - Currency", 3),
    Attribute("highest point", "highest point elevation", "Elevation - highest point", 3),
    Attribute("lowest point", "lowest point elevation", "Elevation - lowest point", 1),
    Attribute("mean elevation", "mean elevation", "Elevation - mean elevation", 0),
    Attribute("anthem", "national anthem title", "National anthem(s) - title", 3),
    Attribute(
        "anthem author", "national anthem lyrics music", "National anthem(s) - lyrics/music", 1
    ),
    Attribute("symbol", "national symbol", "National symbol(s)", 3),
    Attribute("independence", "independence", "Independence", 2),
    Attribute("holiday", "national holiday", "National holiday", 2),
    Attribute("legislature", "legislature name", "Legislative branch - legislature name", 2),
    Attribute("chief of state", "chief of state", "Executive branch - chief of state", 3),
    Attribute(
        "head of government", "head of government", "Executive branch - head of government", 2
    ),
    Attribute(
        "ambassador",
        "diplomatic representation in the US chief of mission",
        "Diplomatic representation in the US - chief of mission",
        0,
    ),
    Attribute("local name", "local short form name", "Country name - local short form", 2),
    Attribute("former name", "former name", "Country name - former", 1),
    Attribute("population", "population total", "Population - total", 1),
    Attribute("area", "area total", "Area - total", 1),
    Attribute("coastline", "coastline", "Coastline", 1),
    Attribute("land boundaries", "land boundaries total", "Land boundaries - total", 0),
    Attribute(
        "life expectancy",
        "life expectancy at birth total population",
        "Life expectancy at birth - total population",
        1,
    ),
    Attribute("gdp", "GDP official exchange rate", "GDP (official exchange rate)", 0),
    Attribute("gdp per capita", "real GDP per capita", "Real GDP per capita", 1, yearly=True),
    Attribute("exports", "exports", "Exports", 0, yearly=True),
    Attribute("imports", "imports", "Imports", 0, yearly=True),
    Attribute(
        "reserves",
        "reserves of foreign exchange and gold",
        "Reserves of foreign exchange and gold",
        0,
        yearly=True,
    ),
    Attribute("labor force", "labor force", "Labor force", 0),
    Attribute("electricity", "electricity consumption", "Electricity - consumption", 0),
    Attribute(
        "mobile phones",
        "telephones mobile cellular total subscriptions",
        "Telephones - mobile cellular - total subscriptions",
        0,
    ),
    Attribute("railways", "railways total", "Railways - total", 0),
)
"""In the order in which a fact that answers two of them is given to the first."""

BY_KEY: Mapping[str, Attribute] = {attribute.key: attribute for attribute in ATTRIBUTES}
