"""What a judge's reply says on the scale from 0 to 1."""

from __future__ import annotations

import math
import re

import numpy as np
from jaxtyping import Float, Int
from transformers import PreTrainedTokenizerFast

from verdict_jax import prompts
from verdict_jax.vlm.tokenizer import plain_ids

OPTIONS: dict[prompts.ReadOut, tuple[str, ...]] = {
    "digits": prompts.DIGITS,
    "yes_no": prompts.YES_NO,
    "verbal": (),
}
"""The replies whose probabilities are read, worst first."""

# A point or a comma before decimals; no number inside a word, a longer number or a version.
_NUMBER = r"(?<![\w.,])(?P<number>[-+]?(?:[0-9]+(?:[.,][0-9]+)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)"
_SCALE = r"(?:\s*(?P<percent>%|percent\b)|\s*(?:/|out of\b)\s*(?P<top>[0-9]+(?:\.[0-9]+)?))?"
_READING = re.compile(
    rf"(?P<marked>\b(?:score|rating)\b[\"'*]*\s*(?:[:=]|is\b|of\b)?[\"'*\s]*)?{_NUMBER}{_SCALE}"
    r"(?![\w%/]|[.,][0-9])",
    re.IGNORECASE,
)
# What may stand between the last number of a cut reply and digits or a scale still to come.
_UNFINISHED = re.compile(r"[ .,/]*(?:ou?|out(?: of?)?)? *")
_THOUSANDS = re.compile(r"[-+]?[1-9][0-9]*,[0-9]{3}")


def parse_score(text: str, truncated: bool = False) -> float | None:
    """The score that a reply states on the scale from 0 to 1; None where it states none.

    A number is read as a fraction of 1, with % or "/10" as what it says. Numbers marked by "score"
    or "rating" outrank those with a scale of their own, which outrank bare ones ("5 reasons; score
    9/10" is 0.9). If those of the highest rank differ, or one lies outside [0, 1], no score is
    stated: a judge that fails is masked, which beats a number that it did not mean.

    Args:
        text: the reply.
        truncated: the reply was cut; a number at its very end may lack digits or its scale, so it
            is no score unless a percent sign closes it.
    """
    ranks: dict[int, set[float]] = {}
    for match in _READING.finditer(text):
        value = _value(match)
        is_percent = match["percent"] is not None
        if truncated and not is_percent and _UNFINISHED.fullmatch(text, match.end()):
            value = math.nan
        scaled = is_percent or match["top"] is not None
        rank = 2 if match["marked"] is not None else 1 if scaled else 0
        ranks.setdefault(rank, set()).add(value)
    if not ranks:
        return None
    values = ranks[max(ranks)]
    if len(values) > 1 or not all(0 <= value <= 1 for value in values):
        return None
    return values.pop()


def _value(match: re.Match[str]) -> float:
    """The number on the scale, NaN where it cannot be told."""
    number = match["number"]
    top = 100.0 if match["percent"] else float(match["top"] or 1)
    if _THOUSANDS.fullmatch(number) or top == 0:
        return math.nan
    return float(number.replace(",", ".")) / top


def option_spellings(
    tokenizer: PreTrainedTokenizerFast, read_out: prompts.ReadOut
) -> tuple[tuple[int, ...], ...]:
    """For each option of a read-out the ids that begin its reply.

    These are all tokens that spell the option, with or without a space before it (their masses
    add up: known-fault J3); where there is none, the first token of the option's encoding.

    Raises:
        ValueError: two options begin with the same token.
    """
    options = OPTIONS[read_out]
    spelled: dict[str, list[int]] = {option: [] for option in options}
    for token, id in tokenizer.get_vocab().items():
        # byte-level BPE spells a space as U+0120
        option = token.removeprefix("\u0120")
        if option in spelled:
            spelled[option].append(id)
    ids = tuple(
        tuple(sorted(spelled[option])) or (int(plain_ids(tokenizer, option)[0]),)
        for option in options
    )
    flat = [id for option in ids for id in option]
    if len(set(flat)) < len(flat):
        raise ValueError(
            f"the tokenizer begins two of {', '.join(options)} with the same token; "
            f"use another read-out than {read_out}"
        )
    return ids


def expected_score(
    log_masses: Float[np.ndarray, "*batch options"],
) -> tuple[Float[np.ndarray, "*batch"], Float[np.ndarray, "*batch"]]:
    """Scores of probabilities over options, worst first, and the mass that lies off the options.

    The expected option number E, renormalised over the k options, as (E - 1) / (k - 1): (E - 1) / 4
    for digits, P(yes) / (P(yes) + P(no)) for yes_no. NaN where there is no finite mass.

    Args:
        log_masses: log-probability of each option among all tokens.
    """
    log_masses = log_masses.astype(np.float64)
    masses = np.exp(log_masses)
    top = np.max(log_masses, axis=-1, keepdims=True)
    with np.errstate(invalid="ignore"):
        shares = np.exp(log_masses - top)
    shares /= shares.sum(axis=-1, keepdims=True)
    values = np.linspace(0, 1, log_masses.shape[-1])
    return np.asarray(shares @ values), np.asarray(1 - masses.sum(axis=-1))


def padded_spellings(
    spellings: tuple[tuple[tuple[int, ...], ...], ...],
) -> Int[np.ndarray, "judges options spellings"]:
    """Ids of each judge's options in one array, -1 where there is none."""
    options = max((len(judge) for judge in spellings), default=0)
    width = max((len(ids) for judge in spellings for ids in judge), default=0)
    padded = np.full((len(spellings), max(options, 1), max(width, 1)), -1, np.int32)
    for judge, rows in enumerate(spellings):
        for option, ids in enumerate(rows):
            padded[judge, option, : len(ids)] = ids
    return padded
