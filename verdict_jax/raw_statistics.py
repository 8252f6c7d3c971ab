"""Statistics of the raw scores of a decision's candidates, before anything is settled."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from verdict_jax.equilibrium import MIN_JUDGES, check_scores, solution_dtype

Array = jax.Array | np.ndarray


class RawStatistics(NamedTuple):
    """Population statistics of the unmasked scores of each candidate; NaN if not eligible.

    Attributes:
        mean: their mean.
        deviation: their mean absolute deviation.
        variance: their variance.
        smallest: the lowest.
        largest: the highest.
    """

    mean: Float[jax.Array, "*n"]
    deviation: Float[jax.Array, "*n"]
    variance: Float[jax.Array, "*n"]
    smallest: Float[jax.Array, "*n"]
    largest: Float[jax.Array, "*n"]


def raw_statistics(
    scores: Float[Array, "n m"],
    judge_mask: Bool[Array, "n m"],
    candidate_mask: Bool[Array, " n"],
) -> tuple[RawStatistics, Bool[jax.Array, " n"]]:
    """Statistics of each candidate, and who is eligible.

    Eligible is a candidate in `candidate_mask` with at least two unmasked scores, all of them
    valid.

    Raises:
        ValueError: shapes that do not fit, no candidate or, where values are concrete, an
            unmasked score outside [0, 1].
    """
    check_shapes(scores, judge_mask, candidate_mask)
    present = jnp.asarray(judge_mask) & jnp.asarray(candidate_mask)[:, None]
    check_scores(scores, present)
    raw = jax.vmap(_of_candidate)(jnp.asarray(scores, solution_dtype(scores)), present)
    return raw, jnp.isfinite(raw.mean)


def _of_candidate(scores: Float[jax.Array, " m"], mask: Bool[jax.Array, " m"]) -> RawStatistics:
    judges = jnp.sum(mask)
    valid = (judges >= MIN_JUDGES) & jnp.all(~mask | ((scores >= 0.0) & (scores <= 1.0)))
    count = jnp.maximum(judges, 1).astype(scores.dtype)
    average = jnp.sum(jnp.where(mask, scores, 0.0)) / count
    residual = jnp.where(mask, scores - average, 0.0)
    statistics = RawStatistics(
        mean=average,
        deviation=jnp.sum(jnp.abs(residual)) / count,
        variance=jnp.sum(jnp.square(residual)) / count,
        smallest=jnp.min(jnp.where(mask, scores, jnp.inf)),
        largest=jnp.max(jnp.where(mask, scores, -jnp.inf)),
    )
    return jax.tree.map(lambda value: jnp.where(valid, value, jnp.nan), statistics)


def check_shapes(scores: Array, judge_mask: Array, candidate_mask: Array) -> None:
    """Raises ValueError unless these are [n >= 1, m], [n, m] and [n]."""
    if scores.ndim != 2 or scores.shape[0] < 1:
        raise ValueError(f"scores have shape {scores.shape}; a decision is [n >= 1, m]")
    if judge_mask.shape != scores.shape:
        raise ValueError(f"judge_mask has shape {judge_mask.shape}; the scores have {scores.shape}")
    if candidate_mask.shape != scores.shape[:1]:
        raise ValueError(
            f"candidate_mask has shape {candidate_mask.shape}; the scores have {scores.shape}"
        )
