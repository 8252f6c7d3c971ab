"""What an agent did about one question: its turns, its searches, what they brought."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from svrl_jax.grammar import FinalAnswer, Malformed, Turn

Finish = Literal["answered", "malformed", "turns", "length"]
"""How a trajectory ended.

answered: with an answer block. malformed: a turn broke the grammar. turns: the cap on turns.
length: the cap on tokens cut a turn off.
"""


@dataclass(frozen=True)
class Snippet:
    """One piece of evidence.

    Attributes:
        id: unique in its source.
        title, text: what the policy reads.
        source: where it is from.
    """

    id: str
    title: str
    text: str
    source: str


@dataclass(frozen=True)
class TextResult:
    """A text search that was run.

    Attributes:
        proposed: the queries of the turn.
        run: those that were executed: one, several under a larger budget, none at a limit.
        snippets: in the order the policy reads them.
        error: why there is none, if the backend failed.
        ranks: of each snippet with the search engine, 0 for its best.
    """

    proposed: tuple[str, ...]
    run: tuple[str, ...]
    snippets: tuple[Snippet, ...]
    error: str | None = None
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class ImageResult:
    """An image search that was run.

    Attributes:
        titles: of the nearest pictures.
        error: why there are none, if the backend failed.
    """

    titles: tuple[str, ...]
    error: str | None = None


@dataclass(frozen=True)
class Exchange:
    """One turn of the policy with what its action brought.

    Attributes:
        turn: as the grammar reads it.
        result: None after an answer and after a malformed turn.
    """

    turn: Turn | Malformed
    result: TextResult | ImageResult | None = None


@dataclass(frozen=True)
class Trajectory:
    """All turns about one question.

    Attributes:
        item: the question's id.
        exchanges: oldest first.
        finish: how it ended.
    """

    item: str
    exchanges: tuple[Exchange, ...]
    finish: Finish

    @property
    def answer(self) -> str | None:
        """What the policy answered, also in a turn that breaks the grammar; else None.

        Read off the policy's own last turn, never off a tool's result.
        """
        if not self.exchanges:
            return None
        turn = self.exchanges[-1].turn
        if isinstance(turn, Malformed):
            return turn.answer
        return turn.action.text if isinstance(turn.action, FinalAnswer) else None

    @property
    def called(self) -> bool:
        """Whether any search was called, whether or not the backend served it."""
        return any(exchange.result is not None for exchange in self.exchanges)

    @property
    def text_searches(self) -> tuple[TextResult, ...]:
        results = (exchange.result for exchange in self.exchanges)
        return tuple(result for result in results if isinstance(result, TextResult))

    @property
    def marks(self) -> tuple[tuple[TextResult, tuple[bool, ...] | None], ...]:
        """Each text search that brought snippets, with the marks of the turn after it; None where
        there are none."""
        pairs = zip(self.exchanges, (*self.exchanges[1:], None), strict=True)
        return tuple(
            (exchange.result, _marks(following))
            for exchange, following in pairs
            if isinstance(exchange.result, TextResult) and exchange.result.snippets
        )


def _marks(exchange: Exchange | None) -> tuple[bool, ...] | None:
    if exchange is None or isinstance(exchange.turn, Malformed):
        return None
    return exchange.turn.verify
