"""Selection rules: which candidate of a step is taken, given what the judges said.

Oracle@n, the ceiling of what any choice among n candidates can reach, is no rule of its own: it is
`max` on a judge that knows the gold chain or answer. As two scores are the fewest that a rule
reads, such a judge is lifted (`lifting.lift`) to two columns of the same scores.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Bool, Float, Int, Key

from verdict_jax import defaults
from verdict_jax.equilibrium import Equilibrium, solve
from verdict_jax.raw_statistics import RawStatistics, check_shapes, raw_statistics

Array = jax.Array | np.ndarray

TOLERANCE = 1e-6
"""Slack of every comparison: three scores of .7 settle at .6999999999999998 in float64."""

JUDGE_FREE_RULES = frozenset({"random", "first"})
"""Rules that read no score, so that a run needs no panel. Base is `first` with n = 1, greedy."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RuleParameters:
    """What the rules can be tuned by. Every field is a leaf: sweep one with `jax.vmap`.

    Attributes:
        stubbornness: lambda of each judge; the paper's for (visual, logical, contextual).
        coupling: who listens to whom (see `solve`); None for everybody alike.
        tau: the mean must exceed it to be accepted.
        epsilon: the dispersion must stay below it to be accepted.
        vote_score: `majority`: a judge votes for a candidate whose raw score exceeds it. This and
            the next two defaults are this project's: the paper does not say what it compared with.
        quorum: `majority`: the least share of a candidate's judges that must vote for it.
        max_std: `variance`: the population standard deviation must stay below it.
    """

    stubbornness: Float[Array, "... m"] = field(
        default_factory=lambda: np.array(defaults.STUBBORNNESS)
    )
    coupling: Float[Array, "... m m"] | None = None
    tau: float | Float[Array, "..."] = defaults.TAU
    epsilon: float | Float[Array, "..."] = defaults.EPSILON
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
    settled, raw, eligible = _settled(scores, judge_mask, candidate_mask, parameters)
    return _dual_filter(settled.mean, settled.dispersion, raw.smallest, eligible, parameters)


def no_rejection(
    scores: Float[Array, "n m"],
    judge_mask: Bool[Array, "n m"],
    candidate_mask: Bool[Array, " n"],
    parameters: RuleParameters,
    key: Key[Array, ""],
) -> Verdict:
    """Ablation: no filter, the highest settled mean - dispersion. `key` is not read."""
    settled, raw, eligible = _settled(scores, judge_mask, candidate_mask, parameters)
    criterion = settled.mean - settled.dispersion
    return _rank(
        eligible, eligible, settled.mean, settled.dispersion, criterion, criterion, raw.smallest
    )


def no_selection(
    scores: Float[Array, "n m"],
    judge_mask: Bool[Array, "n m"],
    candidate_mask: Bool[Array, " n"],
    parameters: RuleParameters,
    key: Key[Array, ""],
) -> Verdict:
    """Ablation: VERDICT's filter, then uniform among the accepted; if none, among the eligible."""
    settled, _, eligible = _settled(scores, judge_mask, candidate_mask, parameters)
    accepted = passes(settled.mean, settled.dispersion, eligible, parameters)
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
    To compare the statistics themselves, set `parameters.epsilon` to the `matched_epsilon` at
    which it accepts as many candidates as VERDICT does. `key` is not read.
    """
    raw, eligible = raw_statistics(scores, judge_mask, candidate_mask)
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
    raw, eligible = raw_statistics(scores, judge_mask, candidate_mask)
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
    settled, raw, eligible = _settled(scores, judge_mask, candidate_mask, parameters)
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
    settled, raw, eligible = _settled(scores, judge_mask, candidate_mask, parameters)
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
    raw, eligible = raw_statistics(scores, judge_mask, candidate_mask)
    return _rank(eligible, eligible, raw.mean, raw.deviation, raw.mean, raw.mean, raw.smallest)


def minimum(
    scores: Float[Array, "n m"],
    judge_mask: Bool[Array, "n m"],
    candidate_mask: Bool[Array, " n"],
    parameters: RuleParameters,
    key: Key[Array, ""],
) -> Verdict:
    """The highest smallest raw score, no filter. Otherwise as `mean`."""
    raw, eligible = raw_statistics(scores, judge_mask, candidate_mask)
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
    raw, eligible = raw_statistics(scores, judge_mask, candidate_mask)
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
    deviation. This project's reading of the paper's "Majority". `key` is not read.
    """
    raw, eligible = raw_statistics(scores, judge_mask, candidate_mask)
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
    standard deviation. This project's reading of the paper's "Variance". `key` is not read.
    """
    raw, eligible = raw_statistics(scores, judge_mask, candidate_mask)
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
    check_shapes(scores, judge_mask, candidate_mask)
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
    check_shapes(scores, judge_mask, candidate_mask)
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


def matched_epsilon(
    means: Float[Array, "*batch"],
    dispersions: Float[Array, "*batch"],
    tau: float | Float[Array, ""],
    share: float | Float[Array, ""],
) -> Float[jax.Array, ""]:
    """The epsilon at which the filter of `verdict` and its kin accepts a share of candidates.

    On validation candidates it makes two measures of dispersion comparable: each gets the epsilon
    at which it accepts as many as the other (fact 13 of the design). Any means and dispersions
    will do: settled, raw mean absolute deviations, variances.

    Args:
        means: of all candidates of a validation set; NaN for one that is not eligible, which
            counts in the share and is never accepted.
        dispersions: of the same candidates.
        tau: the threshold on the means.
        share: of all candidates, in [0, 1]; rounded to a whole number of candidates. At most the
            candidates with mean > tau can be accepted: a larger share gives the epsilon that
            accepts exactly these. Dispersions that tie within the filter's tolerance are accepted
            together, hence possibly more than asked for.

    Returns:
        The least such epsilon; 0, which accepts nothing, where no candidate is to be accepted.
        NaN for a traced share outside [0, 1].

    Raises:
        ValueError: shapes that differ, or a concrete share outside [0, 1].
    """
    if means.shape != dispersions.shape:
        raise ValueError(f"means have shape {means.shape}, dispersions {dispersions.shape}")
    if not isinstance(share, Tracer) and not 0 <= share <= 1:
        raise ValueError(f"share is {share}, not a number in [0, 1]")
    endorsed = (means > tau + TOLERANCE) & ~jnp.isnan(dispersions)
    ordered = jnp.sort(jnp.where(endorsed, dispersions, jnp.inf), axis=None)
    wanted = jnp.round(share * means.size).astype(int)
    count = jnp.minimum(wanted, jnp.sum(endorsed))
    # Twice: once because the filter is stricter by it, once to lie beyond the last one accepted.
    least = ordered[jnp.maximum(count, 1) - 1] + 2 * TOLERANCE
    epsilon = jnp.where(count > 0, least, 0.0)
    return jnp.where((share >= 0) & (share <= 1), epsilon, jnp.nan)


def stubbornness_permutations(
    parameters: RuleParameters,
) -> Mapping[tuple[int, ...], RuleParameters]:
    """The parameters under each of the m! assignments of the same stubbornness to the judges.

    Keyed by the order: judge i gets `parameters.stubbornness[order[i]]`. So of (V, L, C), (0, 1, 2)
    is the assignment given and (1, 0, 2) swaps V with L. Raw scores that are equal for two judges
    cannot tell their swap by mean or dispersion: (.9, .3, .9) does not see V and C swapped.
    """
    stubbornness = parameters.stubbornness
    return {
        order: dataclasses.replace(parameters, stubbornness=stubbornness[..., np.array(order)])
        for order in itertools.permutations(range(stubbornness.shape[-1]))
    }


def _settled(
    scores: Float[Array, "n m"],
    judge_mask: Bool[Array, "n m"],
    candidate_mask: Bool[Array, " n"],
    parameters: RuleParameters,
) -> tuple[Equilibrium, RawStatistics, Bool[jax.Array, " n"]]:
    """The equilibrium of each candidate, the statistics of its raw scores, who is eligible."""
    raw, eligible = raw_statistics(scores, judge_mask, candidate_mask)
    present = jnp.asarray(judge_mask) & jnp.asarray(candidate_mask)[:, None]
    settled = solve(scores, parameters.stubbornness, present, parameters.coupling)
    return settled, raw, eligible & jnp.isfinite(settled.mean)


def passes(
    mean: Float[Array, " n"],
    dispersion: Float[Array, " n"],
    eligible: Bool[Array, " n"],
    parameters: RuleParameters,
) -> Bool[Array, " n"]:
    """The dual filter: mean > tau and dispersion < epsilon, each by TOLERANCE (fact 18).

    Args:
        mean: of each candidate.
        dispersion: of each candidate.
        eligible: False where a candidate is no choice.
        parameters: the thresholds.
    """
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
    accepted = passes(mean, dispersion, eligible, parameters)
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
