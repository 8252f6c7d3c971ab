"""Selection rules: which candidate of a step is taken, given what the judges said."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int, Key

from verdict_jax.equilibrium import (
    MIN_JUDGES,
    Equilibrium,
    check_scores,
    solution_dtype,
    solve,
)

Array = jax.Array | np.ndarray

TOLERANCE = 1e-6
"""Slack of every comparison: three scores of .7 settle at .6999999999999998 in float64."""

DEFAULT_STUBBORNNESS = (1.5, 1.0, 0.8)
"""lambda of the visual, logical and contextual judge in the VERDICT paper."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RuleParameters:
    """What the rules can be tuned by. Every field is a leaf: sweep one with `jax.vmap`.

    Attributes:
        stubbornness: lambda of each judge; the paper's for (visual, logical, contextual).
        coupling: who listens to whom (see `solve`); None for everybody alike.
        tau: the mean must exceed it to be accepted (paper: 0.6).
        epsilon: the dispersion must stay below it to be accepted (paper: 0.1).
        vote_score: `majority`: a judge votes for a candidate whose raw score exceeds it.
        quorum: `majority`: the least share of a candidate's judges that must vote for it.
        max_std: `variance`: the population standard deviation must stay below it.
    """

    stubbornness: Float[Array, "... m"] = field(
        default_factory=lambda: jnp.asarray(DEFAULT_STUBBORNNESS)
    )
    coupling: Float[Array, "... m m"] | None = None
    tau: float | Float[Array, "..."] = 0.6
    epsilon: float | Float[Array, "..."] = 0.1
    vote_score: float | Float[Array, "..."] = 0.6
    quorum: float | Float[Array, "..."] = 2 / 3
    max_std: float | Float[Array, "..."] = 0.1


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Statistics:
    """What a rule looked at. NaN for a candidate without statistics.

    Attributes:
        mean: the rule's mean: settled for the rules on the equilibrium, else raw.
        dispersion: the rule's measure of disagreement, each rule says which.
        criterion: what it maximised in this decision; NaN for a rule that does not rank.
    """

    mean: Float[Array, "*batch n"]
    dispersion: Float[Array, "*batch n"]
    criterion: Float[Array, "*batch n"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Verdict:
    """The outcome of one decision.

    Attributes:
        index: the chosen candidate; -1 if none is eligible.
        accepted: the candidates that pass the rule's filter; every eligible one for a rule
            without a filter.
        fallback: True where there were eligible candidates and none was accepted.
        statistics: what the decision rests on.
    """

    index: Int[Array, "*batch"]
    accepted: Bool[Array, "*batch n"]
    fallback: Bool[Array, "*batch"]
    statistics: Statistics


class Rule(Protocol):
    """A pure function of one decision; `jax.vmap` runs it over steps and items.

    A candidate is eligible where `candidate_mask` is True and, for a rule that reads scores, at
    least two of its judges are unmasked and their scores are valid. Only eligible candidates are
    accepted or chosen. Duplicates stay candidates: a uniform rule must keep their weight.

    Ties are resolved by the highest mean, then the lowest dispersion, then the highest of the
    smallest raw scores, then the lowest index, all within TOLERANCE of the best.

    Raises ValueError for shapes that do not fit, no candidate, or (where values are concrete and
    the rule reads scores) a score outside [0, 1]; under a transformation a candidate with such a
    score has NaN statistics and is not eligible.
    """

    def __call__(
        self,
        scores: Float[Array, "n m"],
        judge_mask: Bool[Array, "n m"],
        candidate_mask: Bool[Array, " n"],
        parameters: RuleParameters,
        key: Key[Array, ""],
    ) -> Verdict: ...


class _RawStatistics(NamedTuple):
    mean: Float[jax.Array, " n"]
    deviation: Float[jax.Array, " n"]
    variance: Float[jax.Array, " n"]
    smallest: Float[jax.Array, " n"]
    largest: Float[jax.Array, " n"]


def verdict(
    scores: Float[Array, "n m"],
    judge_mask: Bool[Array, "n m"],
    candidate_mask: Bool[Array, " n"],
    parameters: RuleParameters,
    key: Key[Array, ""],
) -> Verdict:
    """VERDICT: accept iff the settled mean > tau and the settled dispersion < epsilon.

    The highest mean among the accepted is chosen; if none is accepted, the highest
    mean - dispersion (the fallback). `key` is not read.

    It is no "strict non-degradation guarantee": with the 2B judges the paper's own table has
    55.68 where the unverified base has 56.12. Nor is it monotone: raising one judge's score can
    turn acceptance into rejection, (.9, .36, .9) -> (1, .36, .9).
    """
    settled, eligible, smallest = _settled(scores, judge_mask, candidate_mask, parameters)
    return _dual_filter(settled.mean, settled.dispersion, smallest, eligible, parameters)


def no_rejection(
    scores: Float[Array, "n m"],
    judge_mask: Bool[Array, "n m"],
    candidate_mask: Bool[Array, " n"],
    parameters: RuleParameters,
    key: Key[Array, ""],
) -> Verdict:
    """Ablation: no filter, the highest settled mean - dispersion. `key` is not read."""
    settled, eligible, smallest = _settled(scores, judge_mask, candidate_mask, parameters)
    criterion = settled.mean - settled.dispersion
    return _rank(
        eligible, eligible, settled.mean, settled.dispersion, criterion, criterion, smallest
    )


def no_selection(
    scores: Float[Array, "n m"],
    judge_mask: Bool[Array, "n m"],
    candidate_mask: Bool[Array, " n"],
    parameters: RuleParameters,
    key: Key[Array, ""],
) -> Verdict:
    """Ablation: VERDICT's filter, then uniform among the accepted; if none, among the eligible."""
    settled, eligible, _ = _settled(scores, judge_mask, candidate_mask, parameters)
    accepted = _passes(settled.mean, settled.dispersion, eligible, parameters)
    fallback = jnp.any(eligible) & ~jnp.any(accepted)
    index = _uniform(key, jnp.where(fallback, eligible, accepted))
    statistics = Statistics(settled.mean, settled.dispersion, jnp.full_like(settled.mean, jnp.nan))
    return Verdict(index, accepted, fallback, statistics)


def raw_average(
    scores: Float[Array, "n m"],
    judge_mask: Bool[Array, "n m"],
    candidate_mask: Bool[Array, " n"],
    parameters: RuleParameters,
    key: Key[Array, ""],
) -> Verdict:
    """Ablation: VERDICT's filter and fallback on the raw mean and raw mean absolute deviation.

    At VERDICT's epsilon it is confounded with a stricter threshold: the settled dispersion lies
    between min(a) and max(a) times the raw deviation, .36 and .46 with the default stubbornness.
    Set `parameters.epsilon` to the value that accepts as many candidates as VERDICT does to
    compare the statistics themselves. `key` is not read.
    """
    raw, eligible = _raw(scores, judge_mask, candidate_mask)
    return _dual_filter(raw.mean, raw.deviation, raw.smallest, eligible, parameters)


def raw_average_variance(
    scores: Float[Array, "n m"],
    judge_mask: Bool[Array, "n m"],
    candidate_mask: Bool[Array, " n"],
    parameters: RuleParameters,
    key: Key[Array, ""],
) -> Verdict:
    """`raw_average` with the population variance as its dispersion (the other reading of it).

    A variance is in squared units: at the same epsilon it rejects far less. `key` is not read.
    """
    raw, eligible = _raw(scores, judge_mask, candidate_mask)
    return _dual_filter(raw.mean, raw.variance, raw.smallest, eligible, parameters)


def weighted_mean(
    scores: Float[Array, "n m"],
    judge_mask: Bool[Array, "n m"],
    candidate_mask: Bool[Array, " n"],
    parameters: RuleParameters,
    key: Key[Array, ""],
) -> Verdict:
    """The highest fixed weighted mean of the raw scores, with the weights of the settled mean.

    These are a_i / sum(a), (.4007, .3206, .2787) by default: the settled mean is this statistic.
    No filter. `dispersion` is the raw mean absolute deviation. `key` is not read.
    """
    settled, eligible, _ = _settled(scores, judge_mask, candidate_mask, parameters)
    raw, _ = _raw(scores, judge_mask, candidate_mask)
    return _rank(
        eligible, eligible, settled.mean, raw.deviation, settled.mean, settled.mean, raw.smallest
    )


def weighted_mean_filtered(
    scores: Float[Array, "n m"],
    judge_mask: Bool[Array, "n m"],
    candidate_mask: Bool[Array, " n"],
    parameters: RuleParameters,
    key: Key[Array, ""],
) -> Verdict:
    """VERDICT with the raw mean absolute deviation in place of the settled dispersion.

    Filter, choice and fallback are VERDICT's, so that a difference from it is the doing of the
    dispersion alone. `key` is not read.
    """
    settled, eligible, _ = _settled(scores, judge_mask, candidate_mask, parameters)
    raw, _ = _raw(scores, judge_mask, candidate_mask)
    return _dual_filter(settled.mean, raw.deviation, raw.smallest, eligible, parameters)


def mean(
    scores: Float[Array, "n m"],
    judge_mask: Bool[Array, "n m"],
    candidate_mask: Bool[Array, " n"],
    parameters: RuleParameters,
    key: Key[Array, ""],
) -> Verdict:
    """The highest raw mean, no filter. `dispersion` is the raw mean absolute deviation.

    `parameters` and `key` are not read.
    """
    raw, eligible = _raw(scores, judge_mask, candidate_mask)
    return _rank(eligible, eligible, raw.mean, raw.deviation, raw.mean, raw.mean, raw.smallest)


def minimum(
    scores: Float[Array, "n m"],
    judge_mask: Bool[Array, "n m"],
    candidate_mask: Bool[Array, " n"],
    parameters: RuleParameters,
    key: Key[Array, ""],
) -> Verdict:
    """The highest smallest raw score, no filter. Otherwise as `mean`."""
    raw, eligible = _raw(scores, judge_mask, candidate_mask)
    return _rank(
        eligible, eligible, raw.mean, raw.deviation, raw.smallest, raw.smallest, raw.smallest
    )


def maximum(
    scores: Float[Array, "n m"],
    judge_mask: Bool[Array, "n m"],
    candidate_mask: Bool[Array, " n"],
    parameters: RuleParameters,
    key: Key[Array, ""],
) -> Verdict:
    """The highest largest raw score, no filter. Otherwise as `mean`."""
    raw, eligible = _raw(scores, judge_mask, candidate_mask)
    return _rank(
        eligible, eligible, raw.mean, raw.deviation, raw.largest, raw.largest, raw.smallest
    )


def majority(
    scores: Float[Array, "n m"],
    judge_mask: Bool[Array, "n m"],
    candidate_mask: Bool[Array, " n"],
    parameters: RuleParameters,
    key: Key[Array, ""],
) -> Verdict:
    """Accept iff a quorum of the unmasked judges has a raw score > vote_score.

    Ranked by the share of the unmasked judges that vote for it, then by the raw mean; if none is
    accepted, all eligible candidates are ranked so. `dispersion` is the raw mean absolute
    deviation. `key` is not read.
    """
    raw, eligible = _raw(scores, judge_mask, candidate_mask)
    mask = jnp.asarray(judge_mask)
    votes = jnp.sum(mask & (jnp.asarray(scores) > parameters.vote_score + TOLERANCE), axis=1)
    judges = jnp.maximum(jnp.sum(mask, axis=1), 1)
    share = votes.astype(raw.mean.dtype) / judges.astype(raw.mean.dtype)
    share = jnp.where(eligible, share, jnp.nan)
    accepted = eligible & (share >= parameters.quorum - TOLERANCE)
    return _rank(eligible, accepted, raw.mean, raw.deviation, share, share, raw.smallest)


def variance(
    scores: Float[Array, "n m"],
    judge_mask: Bool[Array, "n m"],
    candidate_mask: Bool[Array, " n"],
    parameters: RuleParameters,
    key: Key[Array, ""],
) -> Verdict:
    """The highest raw mean whose population standard deviation is < max_std.

    If there is none, the lowest standard deviation (that is, variance). `dispersion` is the
    standard deviation. `key` is not read.
    """
    raw, eligible = _raw(scores, judge_mask, candidate_mask)
    std = jnp.sqrt(raw.variance)
    accepted = eligible & (std < parameters.max_std - TOLERANCE)
    return _rank(eligible, accepted, raw.mean, std, raw.mean, -std, raw.smallest)


def random(
    scores: Float[Array, "n m"],
    judge_mask: Bool[Array, "n m"],
    candidate_mask: Bool[Array, " n"],
    parameters: RuleParameters,
    key: Key[Array, ""],
) -> Verdict:
    """Uniform among the candidates. Reads no score, so it needs no judge; statistics are NaN."""
    _check_shapes(scores, judge_mask, candidate_mask)
    return _unjudged(scores, candidate_mask, _uniform(key, jnp.asarray(candidate_mask)))


def first(
    scores: Float[Array, "n m"],
    judge_mask: Bool[Array, "n m"],
    candidate_mask: Bool[Array, " n"],
    parameters: RuleParameters,
    key: Key[Array, ""],
) -> Verdict:
    """The first candidate: with n = 1 and greedy sampling the unverified base chain.

    Reads no score, so it needs no judge; statistics are NaN. `key` is not read.
    """
    _check_shapes(scores, judge_mask, candidate_mask)
    return _unjudged(scores, candidate_mask, _lowest(jnp.asarray(candidate_mask)))


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "verdict": verdict,
        "mean": mean,
        "min": minimum,
        "max": maximum,
        "majority": majority,
        "variance": variance,
        "weighted_mean": weighted_mean,
        "weighted_mean_filtered": weighted_mean_filtered,
        "raw_average": raw_average,
        "raw_average_variance": raw_average_variance,
        "no_rejection": no_rejection,
        "no_selection": no_selection,
        "random": random,
        "first": first,
    }
)
"""Every rule by the name that commands and reports use."""


def stubbornness_permutations(
    parameters: RuleParameters,
) -> Mapping[tuple[int, ...], RuleParameters]:
    """The parameters under each of the m! assignments of the same stubbornness to the judges.

    Keyed by the order: judge i gets `parameters.stubbornness[order[i]]`. So of (V, L, C), (0, 1, 2)
    is the assignment given and (1, 0, 2) swaps V with L. Raw scores that are equal for two judges
    cannot tell their swap by mean or dispersion: (.9, .3, .9) does not see V and C swapped.
    """
    stubbornness = jnp.asarray(parameters.stubbornness)
    return {
        order: dataclasses.replace(parameters, stubbornness=stubbornness[jnp.asarray(order)])
        for order in itertools.permutations(range(stubbornness.shape[-1]))
    }


def _settled(
    scores: Float[Array, "n m"],
    judge_mask: Bool[Array, "n m"],
    candidate_mask: Bool[Array, " n"],
    parameters: RuleParameters,
) -> tuple[Equilibrium, Bool[jax.Array, " n"], Float[jax.Array, " n"]]:
    """The equilibrium of each candidate, who is eligible, the smallest raw scores."""
    raw, eligible = _raw(scores, judge_mask, candidate_mask)
    present = jnp.asarray(judge_mask) & jnp.asarray(candidate_mask)[:, None]
    settled = solve(scores, parameters.stubbornness, present, parameters.coupling)
    return settled, eligible & jnp.isfinite(settled.mean), raw.smallest


def _raw(
    scores: Float[Array, "n m"],
    judge_mask: Bool[Array, "n m"],
    candidate_mask: Bool[Array, " n"],
) -> tuple[_RawStatistics, Bool[jax.Array, " n"]]:
    """Statistics of the raw scores of each candidate, who is eligible."""
    _check_shapes(scores, judge_mask, candidate_mask)
    present = jnp.asarray(judge_mask) & jnp.asarray(candidate_mask)[:, None]
    check_scores(scores, present)
    raw = jax.vmap(_raw_statistics)(jnp.asarray(scores, solution_dtype(scores)), present)
    return raw, jnp.isfinite(raw.mean)


def _raw_statistics(scores: Float[jax.Array, " m"], mask: Bool[jax.Array, " m"]) -> _RawStatistics:
    """Population statistics of the unmasked scores of one candidate.

    NaN where fewer than two scores are unmasked or one of them is invalid.
    """
    judges = jnp.sum(mask)
    valid = (judges >= MIN_JUDGES) & jnp.all(~mask | ((scores >= 0.0) & (scores <= 1.0)))
    count = jnp.maximum(judges, 1).astype(scores.dtype)
    average = jnp.sum(jnp.where(mask, scores, 0.0)) / count
    residual = jnp.where(mask, scores - average, 0.0)
    statistics = _RawStatistics(
        mean=average,
        deviation=jnp.sum(jnp.abs(residual)) / count,
        variance=jnp.sum(jnp.square(residual)) / count,
        smallest=jnp.min(jnp.where(mask, scores, jnp.inf)),
        largest=jnp.max(jnp.where(mask, scores, -jnp.inf)),
    )
    return jax.tree.map(lambda value: jnp.where(valid, value, jnp.nan), statistics)


def _passes(
    mean: Float[Array, " n"],
    dispersion: Float[Array, " n"],
    eligible: Bool[Array, " n"],
    parameters: RuleParameters,
) -> Bool[Array, " n"]:
    endorsed = mean > parameters.tau + TOLERANCE
    agreed = dispersion < parameters.epsilon - TOLERANCE
    return eligible & endorsed & agreed


def _dual_filter(
    mean: Float[Array, " n"],
    dispersion: Float[Array, " n"],
    smallest: Float[Array, " n"],
    eligible: Bool[Array, " n"],
    parameters: RuleParameters,
) -> Verdict:
    """The highest mean among those that pass; if none does, the highest mean - dispersion."""
    accepted = _passes(mean, dispersion, eligible, parameters)
    return _rank(eligible, accepted, mean, dispersion, mean, mean - dispersion, smallest)


def _rank(
    eligible: Bool[Array, " n"],
    accepted: Bool[Array, " n"],
    mean: Float[Array, " n"],
    dispersion: Float[Array, " n"],
    preferred: Float[Array, " n"],
    residual: Float[Array, " n"],
    smallest: Float[Array, " n"],
) -> Verdict:
    """The accepted candidate with the highest `preferred`; if none, the eligible by `residual`."""
    fallback = jnp.any(eligible) & ~jnp.any(accepted)
    criterion = jnp.where(fallback, residual, preferred)
    best = jnp.where(fallback, eligible, accepted)
    for value in (criterion, mean, -dispersion, smallest):
        highest = jnp.max(jnp.where(best, value, -jnp.inf))
        best &= value >= highest - TOLERANCE
    return Verdict(_lowest(best), accepted, fallback, Statistics(mean, dispersion, criterion))


def _unjudged(
    scores: Float[Array, "n m"],
    candidate_mask: Bool[Array, " n"],
    index: Int[jax.Array, ""],
) -> Verdict:
    nothing = jnp.full_like(jnp.asarray(scores), jnp.nan, shape=candidate_mask.shape)
    return Verdict(
        index=index,
        accepted=jnp.asarray(candidate_mask),
        fallback=jnp.zeros((), bool),
        statistics=Statistics(nothing, nothing, nothing),
    )


def _lowest(mask: Bool[jax.Array, " n"]) -> Int[jax.Array, ""]:
    """Index of the first True, -1 if there is none."""
    return jnp.where(jnp.any(mask), jnp.argmax(mask), -1)


def _uniform(key: Key[Array, ""], mask: Bool[jax.Array, " n"]) -> Int[jax.Array, ""]:
    """A uniformly drawn index among the True, -1 if there is none."""
    drawn = jax.random.categorical(key, jnp.where(mask, 0.0, -jnp.inf))
    return jnp.where(jnp.any(mask), drawn, -1)


def _check_shapes(scores: Array, judge_mask: Array, candidate_mask: Array) -> None:
    if scores.ndim != 2 or scores.shape[0] < 1:
        raise ValueError(f"scores have shape {scores.shape}; a decision is [n >= 1, m]")
    if judge_mask.shape != scores.shape:
        raise ValueError(f"judge_mask has shape {judge_mask.shape}; the scores have {scores.shape}")
    if candidate_mask.shape != scores.shape[:1]:
        raise ValueError(
            f"candidate_mask has shape {candidate_mask.shape}; the scores have {scores.shape}"
        )
