"""When an answer is a gold answer, and when a text holds one."""

from __future__ import annotations

from collections.abc import Sequence

from verdict_jax.answers import compared_tokens

ARTICLES = frozenset({"a", "an", "the"})


def normalise(text: str) -> tuple[str, ...]:
    """The words and numbers that are compared, as SQuAD's evaluation does, mended where it errs.

    Letter case, punctuation, articles, the width of characters and the spelling of a number
    (3.0, 1,000) do not count; a sign and a decimal point do (-5 is not 5, 3.5 is not 35), and an
    article that is all there is stays ("A" is not nothing).
    """
    tokens = compared_tokens(text)
    return tuple(token for token in tokens if token not in ARTICLES) or tokens


def is_gold(answer: str | None, golds: Sequence[str]) -> bool:
    """Whether an answer equals one of the gold answers; no answer and an empty one do not.

    Args:
        answer: what the policy gave.
        golds: the ground truth and its accepted spellings.
    """
    if answer is None or not answer.strip():
        return False
    given = normalise(answer)
    return any(gold.strip() and normalise(gold) == given for gold in golds)


def holds(text: str, gold: str) -> bool:
    """Whether the words of a gold answer stand in a text, in a row."""
    words, wanted = normalise(text), normalise(gold)
    if not gold.strip() or not wanted:
        return False
    return any(
        words[start : start + len(wanted)] == wanted
        for start in range(len(words) - len(wanted) + 1)
    )
