"""The judges' coordination game: its unique Nash equilibrium in closed form."""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Bool, Float

Array = jax.Array | np.ndarray

MIN_JUDGES = 2
"""Fewer judges have no peers: m / (m - 1) is not defined."""

COUPLING_TOLERANCE = 1e-5
"""How far a row sum of a coupling may be from 1 (float32 sums of up to some hundred weights)."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Equilibrium:
    """Where the judges settle, for each candidate.

    Attributes:
        consensus: the settled scores s*; NaN for a masked judge.
        mean: plain mean of s* over the unmasked judges; NaN with fewer than two of them.
        dispersion: mean absolute deviation of s* from `mean`, over the same judges.
    """

    consensus: Float[Array, "*batch m"]
    mean: Float[Array, "*batch"]
    dispersion: Float[Array, "*batch"]


def solve(
    scores: Float[Array, "*batch m"],
    stubbornness: Float[Array, " m"],
    mask: Bool[Array, "*batch m"] | None = None,
    coupling: Float[Array, "m m"] | None = None,
) -> Equilibrium:
    r"""Nash equilibrium of the game in which each judge weighs its peers against itself.

    Judge i reports s_i in [0, 1] and is paid

        u_i = -(s_i - mean of the others' s)^2 - lambda_i (s_i - s_hat_i)^2.

    Setting each derivative to zero gives the linear system

        (1 + lambda_i) s_i - 1/(m-1) sum_{j != i} s_j = lambda_i s_hat_i,

    whose solution needs no solver. With a_i = lambda_i / (lambda_i + m/(m-1)),

        mu = sum_j a_j s_hat_j / sum_j a_j,      s*_i = mu + a_i (s_hat_i - mu),
        mean(s*) = mu,      dispersion = 1/m sum_i a_i |s_hat_i - mu|.

    So mean(s*) is a fixed weighted mean of the raw scores: only the dispersion is more than
    linear, and it is no separable sum of per-judge functions (nor is the raw mean absolute
    deviation). With equal lambda the dispersion is the raw one times a constant.

    A missing judge is masked out and the game is solved for the rest: m is the number of unmasked
    judges of that candidate. Candidates are solved one by one under `jax.vmap`.

    With `coupling` w judge i listens to w_ij instead of to all alike,

        (1 + lambda_i) s_i - sum_j w_ij s_j = lambda_i s_hat_i,

    solved as one m x m linear system per candidate. Each row is renormalised over the unmasked
    judges; a judge with no unmasked judge left to listen to keeps its raw score, because only the
    second term of its payoff is left. The linear solve loses about eps / min(lambda) of relative
    precision (useless in float32 for lambda ~ 1e-7); the closed form does not.

    Two claims made for this game do not hold:

    - "The raw mean is preserved": only with equal lambda. What is preserved is the
      lambda-weighted mean, sum lambda_i s*_i = sum lambda_i s_hat_i (without coupling). With
      lambda (1.5, 1, .8) the scores (.9, .3, .9) of mean .7000 settle at mean .7077, and
      (.9, .5, .35) passes tau = .6 with .618 where its raw mean .583 does not.
    - "Strict concavity gives uniqueness": at lambda = 0 each u_i is strictly concave in s_i, yet
      every s_1 = ... = s_m is an equilibrium. Uniqueness needs the diagonal dominance that
      lambda > 0 brings, hence lambda <= 0 is rejected.

    Nor is acceptance by a dispersion threshold monotone: (.9, .36, .9) has .0978, and raising
    one score to give (1, .36, .9) has .1085.

    Args:
        scores: raw scores s_hat in [0, 1]; float32 or float64 (narrower floats are solved in
            float32), any leading axes. Entries of masked judges may hold anything.
        stubbornness: lambda, cast to the dtype of the solution; positive and finite, and there
            neither it nor its reciprocal may be subnormal (1.2e-38 to 8.5e37 in float32).
        mask: True where the judge gave a score; None for everywhere.
        coupling: row-stochastic with a zero diagonal; None for 1/(m-1) off the diagonal.

    Returns:
        The equilibrium, differentiable in scores, stubbornness and coupling (the dispersion takes
        subgradient 0 at a kink). A masked judge's score has gradient zero. A candidate with fewer
        than two unmasked judges is NaN throughout with gradients of zero.

    Raises:
        ValueError: shapes that do not fit or fewer than two judges, always; a score outside
            [0, 1], a stubbornness or a coupling that is not as above, naming the entry, where the
            values are concrete. Under a transformation (jit, vmap, grad) values cannot be looked
            at: there such an entry makes the results that rest on it, and their gradients, NaN.
    """
    _check_shapes(scores, stubbornness, mask, coupling)
    dtype = solution_dtype(scores)
    check_scores(scores, mask)
    check_stubbornness(stubbornness, dtype)
    check_coupling(coupling)

    *batch, m = scores.shape
    rows = jnp.asarray(scores, dtype).reshape(math.prod(batch), m)
    masks = jnp.ones_like(rows, bool) if mask is None else jnp.asarray(mask).reshape(rows.shape)
    weights = None if coupling is None else jnp.asarray(coupling, dtype)
    settled = _settle_each(rows, masks, jnp.asarray(stubbornness, dtype), weights)
    return Equilibrium(
        consensus=settled.consensus.reshape(*batch, m),
        mean=settled.mean.reshape(batch),
        dispersion=settled.dispersion.reshape(batch),
    )


def _settle(
    scores: Float[jax.Array, " m"],
    mask: Bool[jax.Array, " m"],
    stubbornness: Float[jax.Array, " m"],
    coupling: Float[jax.Array, "m m"] | None,
) -> Equilibrium:
    """The game of one candidate."""
    enough = jnp.sum(mask) >= MIN_JUDGES
    # NaN must not enter the arithmetic: its derivative would be NaN times zero. So masked scores
    # are replaced first, and a candidate with too few judges is solved as if it had them all.
    used = jnp.where(enough, mask, True)
    raw = jnp.where(mask, scores, 0.0)
    count = jnp.sum(used).astype(scores.dtype)
    if coupling is None:
        settled = _closed_form(raw, used, count, stubbornness)
    else:
        settled = _linear_solve(raw, used, count, stubbornness, coupling)

    valid = jnp.all((raw >= 0.0) & (raw <= 1.0)) & jnp.all(valid_stubbornness(stubbornness))
    if coupling is not None:
        valid &= jnp.all(_valid_coupling(coupling))
    # A factor, not a `where`, so that gradients turn NaN as well.
    poison = jnp.where(valid, 1.0, jnp.nan).astype(scores.dtype)
    return Equilibrium(
        consensus=jnp.where(enough & mask, settled.consensus * poison, jnp.nan),
        mean=jnp.where(enough, settled.mean * poison, jnp.nan),
        dispersion=jnp.where(enough, settled.dispersion * poison, jnp.nan),
    )


_settle_each = jax.jit(jax.vmap(_settle, in_axes=(0, 0, None, None)))
"""The game of every candidate; jitted, so that a plain call compiles once, not op by op."""


def _closed_form(
    raw: Float[jax.Array, " m"],
    used: Bool[jax.Array, " m"],
    count: Float[jax.Array, ""],
    stubbornness: Float[jax.Array, " m"],
) -> Equilibrium:
    d = stubbornness + count / (count - 1.0)
    a = stubbornness / d
    # mu is blind to the scale of its weights; a / max(a), taken factor by factor, neither
    # underflows nor overflows for any lambda. The scale is a constant to the gradient.
    largest = jax.lax.stop_gradient(jnp.max(jnp.where(used, stubbornness, 0.0)))
    largest_d = jax.lax.stop_gradient(jnp.max(jnp.where(used, d, 0.0)))
    weights = jnp.where(used, (stubbornness / largest) * (largest_d / d), 0.0)
    mu = jnp.sum(weights * raw) / jnp.sum(weights)
    residual = a * (raw - mu)
    return Equilibrium(
        consensus=mu + residual,
        mean=mu,
        dispersion=jnp.sum(jnp.where(used, jnp.abs(residual), 0.0)) / count,
    )


def _linear_solve(
    raw: Float[jax.Array, " m"],
    used: Bool[jax.Array, " m"],
    count: Float[jax.Array, ""],
    stubbornness: Float[jax.Array, " m"],
    coupling: Float[jax.Array, "m m"],
) -> Equilibrium:
    weights = jnp.where(used[None, :], coupling, 0.0)
    heard = jnp.sum(weights, axis=1)
    listens = heard > 0.0
    weights = weights / jnp.where(listens, heard, 1.0)[:, None]
    # No row hears a masked judge, so what its own row says is of no effect on the others.
    system = jnp.diag(listens.astype(raw.dtype) + stubbornness) - weights
    consensus = jnp.linalg.solve(system, stubbornness * raw)
    mean = jnp.sum(jnp.where(used, consensus, 0.0)) / count
    deviation = jnp.abs(consensus - mean)
    return Equilibrium(
        consensus=consensus,
        mean=mean,
        dispersion=jnp.sum(jnp.where(used, deviation, 0.0)) / count,
    )


def solution_dtype(scores: Float[Array, "..."]) -> jnp.dtype:
    """float64 for float64 scores that JAX can hold, else float32."""
    wide = jax.dtypes.canonicalize_dtype(scores.dtype) == jnp.float64
    return jnp.dtype(jnp.float64 if wide else jnp.float32)


# The next two serve NumPy arrays and traced ones alike: a check inside a jitted function may see
# concrete arrays, on which any jax operation would be traced.


def valid_stubbornness(stubbornness: Float[Array, " m"]) -> Bool[Array, " m"]:
    """True where a lambda is positive and finite in its own dtype, and its reciprocal is too."""
    limits = jnp.finfo(stubbornness.dtype)
    # XLA may flush subnormal numbers to zero and divide by multiplying with a reciprocal.
    return (stubbornness >= limits.tiny) & (stubbornness <= 1.0 / limits.tiny)


def _valid_coupling(coupling: Float[Array, "m m"]) -> Bool[Array, " m"]:
    """Per row: no negative weight, none on the diagonal, a sum of 1."""
    stochastic = abs(coupling.sum(axis=1) - 1.0) <= COUPLING_TOLERANCE
    return (coupling >= 0.0).all(axis=1) & (coupling.diagonal() == 0.0) & stochastic


def _is_concrete(*arrays: Array | None) -> bool:
    return not any(isinstance(array, Tracer) for array in arrays)


def check_scores(
    scores: Float[Array, "*batch m"],
    mask: Bool[Array, "*batch m"] | None = None,
) -> None:
    """Raises ValueError naming the first unmasked score outside [0, 1], if values are concrete."""
    if not _is_concrete(scores, mask):
        return
    values = np.asarray(scores)
    wrong = ~((values >= 0.0) & (values <= 1.0))
    if mask is not None:
        wrong &= np.asarray(mask)
    if wrong.any():
        entry = tuple(np.argwhere(wrong)[0].tolist())
        raise ValueError(
            f"scores[{', '.join(map(str, entry))}] is {values[entry]}, not a number in [0, 1]"
        )


def check_stubbornness(stubbornness: Float[Array, " m"], dtype: jnp.dtype) -> None:
    """Raises ValueError naming the first lambda that `solve` rejects, if values are concrete.

    Args:
        stubbornness: lambda of each judge.
        dtype: of the solution, `solution_dtype(scores)`.
    """
    if not _is_concrete(stubbornness):
        return
    values = np.asarray(stubbornness)
    with np.errstate(over="ignore", under="ignore"):  # what overflows is inf, hence invalid
        wrong = ~valid_stubbornness(values.astype(dtype))
    if wrong.any():
        judge = int(wrong.argmax())
        raise ValueError(
            f"stubbornness[{judge}] is {values[judge]}; it must be positive and finite in "
            f"{dtype}, or the equilibrium is not unique"
        )


def check_coupling(coupling: Float[Array, "m m"] | None) -> None:
    """Raises ValueError naming the first row that `solve` rejects, if values are concrete."""
    if coupling is None or not _is_concrete(coupling):
        return
    values = np.asarray(coupling)
    wrong = ~_valid_coupling(values)
    if wrong.any():
        judge = int(wrong.argmax())
        raise ValueError(
            f"coupling[{judge}] is {values[judge].tolist()}; a row must have no negative weight, "
            "0 on the diagonal and the sum 1"
        )


def _check_shapes(
    scores: Array, stubbornness: Array, mask: Array | None, coupling: Array | None
) -> None:
    if scores.ndim < 1 or scores.shape[-1] < MIN_JUDGES:
        raise ValueError(
            f"scores have shape {scores.shape}: the last axis must hold at least two judges"
        )
    m = scores.shape[-1]
    if stubbornness.shape != (m,):
        raise ValueError(f"stubbornness has shape {stubbornness.shape}; the scores ask for {(m,)}")
    if mask is not None and mask.shape != scores.shape:
        raise ValueError(f"mask has shape {mask.shape}; the scores have {scores.shape}")
    if coupling is not None and coupling.shape != (m, m):
        raise ValueError(f"coupling has shape {coupling.shape}; the scores ask for {(m, m)}")
