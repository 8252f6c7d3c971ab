"""When a snippet is evidence: it is about the right country, and what it holds tells something."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from svrl_jax.matching import holds, normalise

SHORTEST = 4
"""Characters of a normalised gold, blanks not counted, below which it could stand anywhere."""

COMMONEST = 0.001
"""The share of all snippets from which on a gold that stands in so many tells nothing."""

BAR = " | "
"""Between the country and the attribute in a snippet's head."""


def head(country: str, attribute: str) -> str:
    """The title of a snippet: `Norway | Capital - name`."""
    return f"{country}{BAR}{attribute}"


def subject(title: str) -> str:
    """The country that a snippet's title names; all of it where there is no bar."""
    return title.partition(BAR)[0]


@dataclass(frozen=True, eq=False)
class TextIndex:
    """Finds the texts that hold a gold without reading them all.

    Attributes:
        texts: [N].
        places: of each normalised word, the indices of the texts it stands in.
    """

    texts: tuple[str, ...]
    places: dict[str, frozenset[int]]

    @staticmethod
    def of(texts: Sequence[str]) -> TextIndex:
        """Reads every text once."""
        places: dict[str, set[int]] = {}
        for index, text in enumerate(texts):
            for word in normalise(text):
                places.setdefault(word, set()).add(index)
        return TextIndex(tuple(texts), {word: frozenset(found) for word, found in places.items()})

    def holding(self, gold: str) -> tuple[int, ...]:
        """Indices of the texts that hold a gold, ascending; those for which `holds` is true."""
        return tuple(i for i in sorted(self._with_words_of(gold)) if holds(self.texts[i], gold))

    def is_telling(self, gold: str) -> bool:
        """At least SHORTEST characters, and in fewer than COMMONEST of the texts."""
        if len("".join(normalise(gold))) < SHORTEST:
            return False
        most = COMMONEST * len(self.texts)
        # most golds hold a rare word, which spares reading the texts
        return len(self._with_words_of(gold)) < most or len(self.holding(gold)) < most

    def _with_words_of(self, gold: str) -> frozenset[int]:
        """The texts with all the words of a gold, in a row or not."""
        sets = sorted((self.places.get(word, frozenset()) for word in normalise(gold)), key=len)
        return sets[0].intersection(*sets[1:])
