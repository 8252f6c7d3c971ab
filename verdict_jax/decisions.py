"""A rule applied to a batch of decisions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import jax
import numpy as np
from jaxtyping import Bool, Float, Key, Shaped

from verdict_jax.equilibrium import MIN_JUDGES, Equilibrium, solve
from verdict_jax.keys import rule_keys
from verdict_jax.rules import RULES, RuleParameters, Verdict

Array = jax.Array | np.ndarray

ROWS_PER_CALL = 32
"""Rows of a compiled call of `decide`; fewer are padded, more take several. So a rule is compiled
once for each (n, m), whatever the batch."""


def decide(
    rule: str,
    scores: Float[np.ndarray, "batch n m"],
    judge_mask: Bool[np.ndarray, "batch n m"],
    candidate_mask: Bool[np.ndarray, "batch n"],
    parameters: RuleParameters,
    seed: int,
    items: Sequence[str],
    step: int,
) -> tuple[Verdict, Equilibrium | None]:
    """A rule's verdicts on one step of a batch, and where the judges settle.

    Args:
        rule: a key of `rules.RULES`.
        scores: raw scores in [0, 1]; anything where masked.
        judge_mask: True where a judge gave a score.
        candidate_mask: True where a candidate is a choice.
        parameters: of the rule.
        seed: in [0, 2**32); with item and step it makes the key of the rule's draw.
        items: ids, one per row.
        step: 0 for the first.

    Returns:
        Both with the leading axis [batch], on the host. No equilibrium with fewer than two judges.

    Raises:
        ValueError: shapes that do not fit, as the rule and `solve` say.
    """
    parts = []
    for start in range(0, len(scores), ROWS_PER_CALL):
        stop = start + ROWS_PER_CALL
        ids = [*items[start:stop], *[""] * (stop - len(items))]
        part = decide_each(
            rule,
            _padded(scores[start:stop]),
            _padded(judge_mask[start:stop]),
            _padded(candidate_mask[start:stop]),
            parameters,
            rule_keys(seed, ids, step),
        )
        parts.append(jax.device_get(part))
    return jax.tree.map(lambda *part: np.concatenate(part)[: len(scores)], *parts)


@partial(jax.jit, static_argnames="rule")
def decide_each(
    rule: str,
    scores: Float[Array, "batch n m"],
    judge_mask: Bool[Array, "batch n m"],
    candidate_mask: Bool[Array, "batch n"],
    parameters: RuleParameters,
    keys: Key[jax.Array, " batch"],
) -> tuple[Verdict, Equilibrium | None]:
    """A rule's verdict on each decision, and where the judges settle; compiled per shape.

    Arguments as those of `decide`; `keys` are those of the rule's draws. Values are traced: an
    invalid one gives NaN.

    Raises:
        ValueError: shapes that do not fit, as the rule and `solve` say.
    """
    verdicts = jax.vmap(RULES[rule], in_axes=(0, 0, 0, None, 0))(
        scores, judge_mask, candidate_mask, parameters, keys
    )
    if scores.shape[-1] < MIN_JUDGES:
        return verdicts, None
    present = judge_mask & candidate_mask[..., None]
    return verdicts, solve(scores, parameters.stubbornness, present, parameters.coupling)


def _padded(rows: Shaped[np.ndarray, "batch *rest"]) -> Shaped[np.ndarray, "padded *rest"]:
    """Zeros appended up to the size of a call: no judges, no choices."""
    return np.pad(rows, [(0, ROWS_PER_CALL - len(rows))] + [(0, 0)] * (rows.ndim - 1))
