"""Every rule against a NumPy reference that loops over candidates."""

import dataclasses
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verdict_jax.defaults import STUBBORNNESS
from verdict_jax.rules import (
    RULES,
    RuleParameters,
    Verdict,
    matched_epsilon,
    stubbornness_permutations,
)

PROPERTY = settings(derandomize=True, deadline=None, max_examples=40, database=None)
TOLERANCE = 1e-6
N, M = 4, 3

RANKED = [name for name in RULES if name not in ("random", "first", "no_selection")]
READS_SCORES = [name for name in RULES if name not in ("random", "first")]
UNFILTERED = ["mean", "min", "max", "weighted_mean", "no_rejection"]

JITTED = {name: jax.jit(rule) for name, rule in RULES.items()}


def decide(
    name: str,
    scores: np.ndarray,
    judge_mask: np.ndarray | None = None,
    candidate_mask: np.ndarray | None = None,
    seed: int = 0,
    **changes: float | np.ndarray,
) -> Verdict:
    """The jitted rule in float64, everything present unless said otherwise, as NumPy arrays.

    Decisions of fewer than N candidates are padded by masked ones, so that they share a
    compilation; the padding is cut off.
    """
    scores = np.asarray(scores, np.float64)
    n, m = scores.shape
    judge_mask = np.ones((n, m), bool) if judge_mask is None else np.asarray(judge_mask)
    candidate_mask = np.ones(n, bool) if candidate_mask is None else np.asarray(candidate_mask)
    scores = np.concatenate([scores, np.ones((N - n, m))])
    judge_mask = np.concatenate([judge_mask, np.ones((N - n, m), bool)])
    candidate_mask = np.concatenate([candidate_mask, np.zeros(N - n, bool)])
    with jax.enable_x64(True):
        parameters = RuleParameters(**{"stubbornness": np.array(STUBBORNNESS), **changes})
        key = jax.random.key(seed)
        padded = JITTED[name](scores, judge_mask, candidate_mask, parameters, key)
        assert not padded.accepted[n:].any()
        return jax.tree.map(lambda leaf: leaf[:n] if leaf.ndim else leaf, jax.device_get(padded))


@dataclasses.dataclass
class Reference:
    """One candidate's statistics by the book; None where it is not eligible."""

    settled_mean: float
    settled_dispersion: float
    mean: float
    deviation: float
    variance: float
    smallest: float
    largest: float
    share: float


def reference_statistics(
    scores: np.ndarray, mask: np.ndarray, present: bool, parameters: RuleParameters
) -> Reference | None:
    if not present or mask.sum() < 2:
        return None
    raw, stubbornness = scores[mask], np.asarray(parameters.stubbornness)[mask]
    m = len(raw)
    coupling = (np.ones((m, m)) - np.eye(m)) / (m - 1)
    settled = np.linalg.solve(np.diag(1 + stubbornness) - coupling, stubbornness * raw)
    return Reference(
        settled_mean=settled.mean(),
        settled_dispersion=np.abs(settled - settled.mean()).mean(),
        mean=raw.mean(),
        deviation=np.abs(raw - raw.mean()).mean(),
        variance=raw.var(),
        smallest=raw.min(),
        largest=raw.max(),
        share=(raw > parameters.vote_score + TOLERANCE).mean(),
    )


def reference(
    name: str,
    scores: np.ndarray,
    judge_mask: np.ndarray,
    candidate_mask: np.ndarray,
    parameters: RuleParameters,
) -> tuple[int, list[bool], bool, list[float], list[float]]:
    """(index, accepted, fallback, mean, dispersion) of a ranked rule."""
    rows = [
        reference_statistics(scores[j], judge_mask[j], bool(candidate_mask[j]), parameters)
        for j in range(len(scores))
    ]

    def means(r: Reference) -> float:
        settled = name in ("verdict", "no_rejection", "weighted_mean", "weighted_mean_filtered")
        return r.settled_mean if settled else r.mean

    def dispersions(r: Reference) -> float:
        if name in ("verdict", "no_rejection"):
            return r.settled_dispersion
        if name == "variance":
            return r.variance**0.5
        return r.variance if name == "raw_average_variance" else r.deviation

    def passes(r: Reference) -> bool:
        if name in UNFILTERED:
            return True
        if name == "majority":
            return r.share >= parameters.quorum - TOLERANCE
        if name == "variance":
            return r.variance**0.5 < parameters.max_std - TOLERANCE
        endorsed = means(r) > parameters.tau + TOLERANCE
        return endorsed and dispersions(r) < parameters.epsilon - TOLERANCE

    def preference(r: Reference, fallback: bool) -> float:
        if name == "min":
            return r.smallest
        if name == "max":
            return r.largest
        if name == "majority":
            return r.share
        if name == "variance":
            return -(r.variance**0.5) if fallback else r.mean
        if name == "no_rejection":
            return r.settled_mean - r.settled_dispersion
        if name in UNFILTERED or not fallback:
            return means(r)
        return means(r) - dispersions(r)

    accepted = [r is not None and passes(r) for r in rows]
    eligible = [r is not None for r in rows]
    fallback = any(eligible) and not any(accepted)
    pool = [j for j, ok in enumerate(eligible if fallback else accepted) if ok]
    ranks = (
        lambda r: preference(r, fallback),
        means,
        lambda r: -dispersions(r),
        lambda r: r.smallest,
    )
    for rank in ranks:
        best = max((rank(rows[j]) for j in pool), default=0.0)
        pool = [j for j in pool if rank(rows[j]) >= best - TOLERANCE]
    return (
        pool[0] if pool else -1,
        accepted,
        fallback,
        [np.nan if r is None else means(r) for r in rows],
        [np.nan if r is None else dispersions(r) for r in rows],
    )


@st.composite
def decisions(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores on a grid of .1 or .05 (so that ties are frequent), judge and candidate masks."""
    step = draw(st.sampled_from([10, 20]))
    low = draw(st.sampled_from([0, step // 2]))
    cells = draw(st.lists(st.integers(low, step), min_size=N * M, max_size=N * M))
    scores = np.array(cells, np.float64).reshape(N, M) / step
    for j in range(1, N):
        if draw(st.booleans()):
            scores[j] = draw(st.permutations(list(scores[j - 1])))
    judge_mask = np.array(
        draw(st.lists(st.sampled_from([True] * 4 + [False]), min_size=N * M, max_size=N * M))
    ).reshape(N, M)
    candidate_mask = np.array(
        draw(st.lists(st.sampled_from([True] * 4 + [False]), min_size=N, max_size=N))
    )
    return scores, judge_mask, candidate_mask


@pytest.mark.parametrize("name", RANKED)
@PROPERTY
@given(
    decisions(),
    st.sampled_from([0.0, 0.4, 0.6, 0.8]),
    st.sampled_from([0.02, 0.1, 0.2, 1.0]),
)
def test_ranked_rules_equal_the_reference(name, decision, tau, epsilon):
    scores, judge_mask, candidate_mask = decision
    outcome = decide(name, *decision, tau=tau, epsilon=epsilon, max_std=epsilon, vote_score=tau)
    parameters = RuleParameters(
        stubbornness=np.array(STUBBORNNESS),
        tau=tau,
        epsilon=epsilon,
        max_std=epsilon,
        vote_score=tau,
    )
    index, accepted, fallback, means, dispersions = reference(name, *decision, parameters)
    assert outcome.index == index
    assert outcome.accepted.tolist() == accepted
    assert outcome.fallback == fallback
    np.testing.assert_allclose(outcome.statistics.mean, means, atol=1e-12)
    np.testing.assert_allclose(outcome.statistics.dispersion, dispersions, atol=1e-12)


@pytest.mark.parametrize("name", ["random", "first", "no_selection"])
@PROPERTY
@given(decisions(), st.integers(0, 2**31))
def test_unranked_rules_choose_within_their_pool(name, decision, seed):
    scores, judge_mask, candidate_mask = decision
    outcome = decide(name, *decision, seed=seed)
    if name == "no_selection":
        full = decide("verdict", *decision)
        np.testing.assert_array_equal(outcome.accepted, full.accepted)
        np.testing.assert_array_equal(outcome.statistics.mean, full.statistics.mean)
        np.testing.assert_array_equal(outcome.statistics.dispersion, full.statistics.dispersion)
        assert outcome.fallback == full.fallback
        pool = candidate_mask & (judge_mask.sum(axis=1) >= 2) if full.fallback else full.accepted
    else:
        pool = candidate_mask
        np.testing.assert_array_equal(outcome.accepted, candidate_mask)
        assert not outcome.fallback
        assert np.isnan(outcome.statistics.mean).all()
    assert outcome.index == -1 if not pool.any() else pool[outcome.index]
    if name == "first" and pool.any():
        assert outcome.index == np.flatnonzero(pool)[0]


# Hand-computed decisions.

HALLUCINATED, SOUND = [0.9, 0.3, 0.9], [0.7, 0.7, 0.7]


def test_worked_example():
    outcome = decide("verdict", [HALLUCINATED, SOUND])
    assert outcome.index == 1 and not outcome.fallback
    assert outcome.accepted.tolist() == [False, True]
    np.testing.assert_allclose(outcome.statistics.mean, [0.7077, 0.7], atol=5e-5)
    np.testing.assert_allclose(outcome.statistics.dispersion, [0.1087, 0.0], atol=5e-5)
    np.testing.assert_allclose(outcome.statistics.criterion, [0.7077, 0.7], atol=5e-5)
    # Raw means tie at .7; the lower deviation decides.
    assert decide("mean", [HALLUCINATED, SOUND]).index == 1
    assert decide("max", [HALLUCINATED, SOUND]).index == 0
    assert decide("min", [HALLUCINATED, SOUND]).index == 1
    assert decide("weighted_mean", [HALLUCINATED, SOUND]).index == 0
    assert decide("weighted_mean_filtered", [HALLUCINATED, SOUND]).index == 1
    assert decide("no_rejection", [HALLUCINATED, SOUND]).index == 1


def test_fallback_ranks_by_mean_less_dispersion():
    # (.9, .3, .9): .7077 - .1087 = .5990. (.59, .59, .59) has less mean and .59 in all.
    outcome = decide("verdict", [[0.59] * 3, HALLUCINATED])
    assert outcome.fallback and outcome.index == 1
    np.testing.assert_allclose(outcome.statistics.criterion, [0.59, 0.5990], atol=5e-5)
    outcome = decide("verdict", [[0.6] * 3, HALLUCINATED])
    assert outcome.fallback and outcome.index == 0


def test_weighted_mean_has_the_weights_of_the_summary():
    scores = np.eye(3)
    np.testing.assert_allclose(
        decide("weighted_mean", scores).statistics.mean, [0.4007, 0.3206, 0.2787], atol=5e-5
    )


def test_equilibrium_mean_flips_tau_where_the_raw_mean_does_not():
    scores = [[0.9, 0.5, 0.35]]
    assert decide("verdict", scores).accepted.tolist() == [True]
    assert decide("raw_average", scores, epsilon=1.0).accepted.tolist() == [False]


def test_raw_average_is_stricter_at_the_same_epsilon():
    # (.9, .6, .9): raw mean .8, raw deviation .1333; the settled dispersion is half as large.
    scores = [[0.9, 0.6, 0.9]]
    assert decide("verdict", scores).accepted.tolist() == [True]
    assert decide("raw_average", scores).accepted.tolist() == [False]
    assert decide("raw_average", scores, epsilon=0.14).accepted.tolist() == [True]
    by_variance = decide("raw_average_variance", scores)
    np.testing.assert_allclose(by_variance.statistics.dispersion, [0.02], atol=1e-12)
    assert by_variance.accepted.tolist() == [True]


def test_majority_counts_votes_before_the_mean():
    # Votes above .6: 3, 2, 1; means .65, .8, .7667.
    outcome = decide("majority", [[0.65, 0.65, 0.65], [0.9, 0.9, 0.6], [1.0, 0.6, 0.7]])
    assert outcome.index == 0
    assert outcome.accepted.tolist() == [True, True, True]
    np.testing.assert_allclose(outcome.statistics.criterion, [1, 2 / 3, 2 / 3])
    outcome = decide("majority", [[0.65, 0.1, 0.1], [0.5, 0.6, 0.6], [0.9, 0.2, 0.1]])
    assert outcome.fallback and outcome.index == 2
    # One of the two that answered is no quorum of 2/3.
    outcome = decide("majority", [[0.9, 0.5, 0.9]], [[True, True, False]])
    assert outcome.accepted.tolist() == [False]


def test_variance_rule():
    # Standard deviations 0, .0816, .2828; means .5, .6, .7.
    scores = [[0.5, 0.5, 0.5], [0.5, 0.6, 0.7], [0.9, 0.3, 0.9]]
    outcome = decide("variance", scores)
    assert outcome.index == 1 and outcome.accepted.tolist() == [True, True, False]
    np.testing.assert_allclose(outcome.statistics.dispersion, [0, 0.0816, 0.2828], atol=5e-5)
    outcome = decide("variance", scores[1:], max_std=0.05)
    assert outcome.fallback and outcome.index == 0


def test_ties_are_resolved_in_the_stated_order():
    equal = {"stubbornness": np.ones(3)}
    # Equal stubbornness: the settled mean is the raw one. Mean first.
    assert decide("verdict", [[0.7] * 3, [0.8] * 3], **equal).index == 1
    # Means tie at .7: the lower dispersion.
    assert decide("verdict", [[0.6, 0.7, 0.8], [0.65, 0.7, 0.75]], **equal).index == 1
    # Mean .7 and deviation .0667 tie ((.6, .7, .8) and (.6, .75, .75) to (.65, .65, .8)):
    # the highest smallest raw score.
    assert decide("verdict", [[0.6, 0.7, 0.8], [0.65, 0.65, 0.8]], **equal).index == 1
    assert decide("verdict", [[0.65, 0.65, 0.8], [0.6, 0.7, 0.8]], **equal).index == 0
    # All tie: the lowest index, within the tolerance.
    assert decide("verdict", [[0.7] * 3, [0.7 + 5e-7] * 3], **equal).index == 0
    assert decide("verdict", [[0.7] * 3, [0.7 + 2e-6] * 3], **equal).index == 1


def test_tolerance_is_counted_from_the_best_and_does_not_chain():
    scores = [[0.7] * 3, [0.7 + 8e-7] * 3, [0.7 + 1.6e-6] * 3]
    assert decide("mean", scores).index == 1


@pytest.mark.parametrize(
    ("tau", "accepted"), [(0.7, False), (0.7 - 5e-7, False), (0.7 - 2e-6, True)]
)
@pytest.mark.parametrize("name", ["verdict", "raw_average", "weighted_mean_filtered"])
def test_tau_has_a_tolerance(name, tau, accepted):
    assert decide(name, [SOUND], tau=tau).accepted.tolist() == [accepted]


@pytest.mark.parametrize(
    ("slack", "accepted"), [(0.0, False), (5e-7, False), (2e-6, True), (-2e-6, False)]
)
@pytest.mark.parametrize("name", ["verdict", "raw_average", "raw_average_variance", "variance"])
def test_epsilon_has_a_tolerance(name, slack, accepted):
    scores = [[0.9, 0.7, 0.8]]
    limit = float(decide(name, scores).statistics.dispersion[0]) + slack
    outcome = decide(name, scores, epsilon=limit, max_std=limit)
    assert outcome.accepted.tolist() == [accepted]


# Masks.


@pytest.mark.parametrize("name", READS_SCORES)
def test_a_candidate_with_one_judge_is_no_choice(name):
    scores = [[1.0, 1.0, 1.0], [0.2, 0.3, 0.1]]
    mask = np.array([[True, False, False], [True, True, False]])
    outcome = decide(name, scores, mask)
    assert outcome.index == 1 and not outcome.accepted[0]
    assert np.isnan(outcome.statistics.mean[0]) and np.isnan(outcome.statistics.dispersion[0])
    nobody = decide(name, scores, [[True, False, False], [False] * 3])
    assert nobody.index == -1 and not nobody.fallback and not nobody.accepted.any()


@pytest.mark.parametrize("name", list(RULES))
def test_candidate_mask_is_honoured(name):
    scores = [[1.0, 1.0, 1.0], [0.7, 0.7, 0.7], [0.9, 0.9, 0.9]]
    for seed in range(8):
        outcome = decide(name, scores, candidate_mask=[False, True, False], seed=seed)
        assert outcome.index == 1
        assert outcome.accepted.tolist() == [False, outcome.accepted[1], False]
        assert np.isnan(outcome.statistics.mean[[0, 2]]).all()
    nobody = decide(name, scores, candidate_mask=[False] * 3)
    assert nobody.index == -1 and not nobody.fallback and not nobody.accepted.any()


@pytest.mark.parametrize("name", ["random", "first"])
def test_rules_without_judges_need_none(name):
    scores = np.full((3, 3), np.nan)
    outcome = decide(name, scores, np.zeros((3, 3), bool), [False, True, False])
    assert outcome.index == 1


@pytest.mark.parametrize("name", list(RULES))
def test_what_a_mask_hides_has_no_influence(name):
    scores = np.array([[0.9, 0.8, 0.7], [0.7, 0.7, 0.75], [0.3, 0.6, 0.9]])
    judge_mask = np.array([[True, True, True], [True, False, True], [True, True, True]])
    candidate_mask = np.array([True, True, False])
    clean = decide(name, scores, judge_mask, candidate_mask)
    for hidden in (np.nan, 9.0, -9.0):
        polluted = np.where(judge_mask & candidate_mask[:, None], scores, hidden)
        outcome = decide(name, polluted, judge_mask, candidate_mask)
        for a, b in zip(jax.tree.leaves(clean), jax.tree.leaves(outcome), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", ["random", "no_selection"])
def test_uniform_rules_are_uniform_and_keep_duplicates(name):
    # Candidates 0 and 3 are duplicates, 2 is hidden, 4 is rejected by the filter.
    scores = jnp.array([[0.8] * 3, [0.9] * 3, [0.9] * 3, [0.8] * 3, [0.1] * 3])
    candidate_mask = jnp.array([True, True, False, True, True])
    keys = jax.random.split(jax.random.key(7), 6000)
    rule = RULES[name]
    drawn = jax.jit(
        jax.vmap(
            lambda key: (
                rule(scores, jnp.ones((5, 3), bool), candidate_mask, RuleParameters(), key).index
            )
        )
    )(keys)
    share = np.bincount(np.asarray(drawn), minlength=5) / 6000
    expected = [1 / 4, 1 / 4, 0, 1 / 4, 1 / 4] if name == "random" else [1 / 3, 1 / 3, 0, 1 / 3, 0]
    np.testing.assert_allclose(share, expected, atol=0.025)
    assert share[2] == 0


def test_no_selection_falls_back_on_all_eligible():
    scores = jnp.array([[0.1] * 3, [0.2] * 3, [0.3] * 3])
    judge_mask = jnp.array([[True, True, True], [True, False, False], [True, True, False]])
    keys = jax.random.split(jax.random.key(3), 400)
    outcome = jax.jit(
        jax.vmap(
            lambda key: RULES["no_selection"](
                scores, judge_mask, jnp.ones(3, bool), RuleParameters(), key
            )
        )
    )(keys)
    assert set(np.asarray(outcome.index).tolist()) == {0, 2}
    assert outcome.fallback.all()


# Transformations and validation.


@pytest.fixture
def x64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("name", list(RULES))
def test_vmap_over_items_and_steps_equals_single_calls_and_compiles_once(name, x64):
    rule, traces = RULES[name], 0

    def counted(*decision):
        nonlocal traces
        traces += 1
        return rule(*decision)

    batched = jax.jit(jax.vmap(jax.vmap(counted, (0, 0, 0, None, 0)), (0, 0, 0, None, 0)))
    random = np.random.default_rng(4)
    for tau in (0.5, 0.6):
        scores = random.uniform(0.3, 1, size=(2, 3, N, M))
        judge_mask = random.uniform(size=scores.shape) < 0.8
        candidate_mask = random.uniform(size=scores.shape[:-1]) < 0.8
        keys = jax.random.split(jax.random.key(5), (2, 3))
        parameters = RuleParameters(stubbornness=np.array(STUBBORNNESS), tau=tau)
        outcome = batched(scores, judge_mask, candidate_mask, parameters, keys)
        assert outcome.index.shape == (2, 3) and outcome.accepted.shape == (2, 3, N)
        for item, step in np.ndindex(2, 3):
            single = JITTED[name](
                scores[item, step],
                judge_mask[item, step],
                candidate_mask[item, step],
                parameters,
                keys[item, step],
            )
            assert outcome.index[item, step] == single.index
            assert outcome.fallback[item, step] == single.fallback
            np.testing.assert_array_equal(outcome.accepted[item, step], single.accepted)
            np.testing.assert_allclose(
                outcome.statistics.mean[item, step], single.statistics.mean, atol=1e-14
            )
    assert traces == 1


def test_a_sweep_of_epsilon_is_a_vmap():
    scores, present = jnp.array([[0.9, 0.6, 0.9]]), jnp.ones((1, 3), bool)

    def accepted(epsilon: jax.Array) -> jax.Array:
        parameters = RuleParameters(epsilon=epsilon)
        key = jax.random.key(0)
        return RULES["raw_average"](scores, present, jnp.ones(1, bool), parameters, key).accepted[0]

    swept = jax.jit(jax.vmap(accepted))(jnp.array([0.05, 0.13, 0.14, 0.5]))
    assert swept.tolist() == [False, False, True, True]


def test_rules_run_under_strict_dtype_promotion():
    decision = (
        jnp.array([HALLUCINATED, SOUND]),
        jnp.ones((2, 3), bool),
        jnp.ones(2, bool),
        RuleParameters(),
        jax.random.key(0),
    )
    with jax.numpy_dtype_promotion("strict"):
        for rule in RULES.values():
            assert jax.eval_shape(lambda *d, rule=rule: rule(*d).index, *decision).shape == ()


def test_parameters_carry_a_coupling():
    coupling = np.array([[0, 1.0, 0], [0, 0, 1.0], [1.0, 0, 0]])
    scores, stubbornness = np.array([0.9, 0.5, 0.35]), np.array(STUBBORNNESS)
    settled = np.linalg.solve(np.diag(1 + stubbornness) - coupling, stubbornness * scores)
    outcome = decide("verdict", scores[None], coupling=coupling)
    np.testing.assert_allclose(outcome.statistics.mean, [settled.mean()], atol=1e-12)


@pytest.mark.parametrize("name", READS_SCORES)
def test_an_invalid_score_is_named_and_under_jit_no_choice(name):
    scores = np.array([[0.7, 0.7, 0.7], [0.9, 1.5, 0.9]], np.float32)
    present, candidates, key = np.ones((2, 3), bool), np.ones(2, bool), jax.random.key(0)
    with pytest.raises(ValueError, match=r"scores\[1, 1\] is 1.5"):
        RULES[name](scores, present, candidates, RuleParameters(), key)
    for wrong in (1.5, -0.5, np.nan):
        scores[1, 1] = wrong
        outcome = decide(name, scores)
        assert outcome.index == 0 and not outcome.accepted[1]
        assert np.isnan(outcome.statistics.mean[1]) and np.isnan(outcome.statistics.dispersion[1])


@pytest.fixture
def unchecked_shapes() -> Iterator[None]:
    """Lets ill-shaped arguments through to the function's own checks."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.parametrize("name", list(RULES))
def test_shapes_are_checked(name, unchecked_shapes):
    rule, parameters, key = RULES[name], RuleParameters(), jax.random.key(0)
    scores, judges, candidates = jnp.full((2, 3), 0.5), jnp.ones((2, 3), bool), jnp.ones(2, bool)
    with pytest.raises(ValueError, match="a decision is"):
        rule(scores[0], judges, candidates, parameters, key)
    with pytest.raises(ValueError, match="a decision is"):
        rule(scores[:0], judges[:0], candidates[:0], parameters, key)
    with pytest.raises(ValueError, match="judge_mask has shape"):
        rule(scores, judges[:1], candidates, parameters, key)
    with pytest.raises(ValueError, match="candidate_mask has shape"):
        rule(scores, judges, candidates[:1], parameters, key)


def test_registry_names_and_defaults():
    assert set(RULES) == {
        "verdict",
        "mean",
        "min",
        "max",
        "majority",
        "variance",
        "weighted_mean",
        "weighted_mean_filtered",
        "raw_average",
        "raw_average_variance",
        "no_rejection",
        "no_selection",
        "random",
        "first",
    }
    parameters = RuleParameters()
    np.testing.assert_allclose(parameters.stubbornness, [1.5, 1.0, 0.8])
    assert (parameters.tau, parameters.epsilon) == (0.6, 0.1)
    assert (parameters.vote_score, parameters.quorum, parameters.max_std) == (0.6, 2 / 3, 0.1)


def test_stubbornness_permutations():
    parameters = RuleParameters(tau=0.5)
    orders = stubbornness_permutations(parameters)
    assert len(orders) == 6
    for order, values in {
        (0, 1, 2): [1.5, 1.0, 0.8],
        (0, 2, 1): [1.5, 0.8, 1.0],
        (1, 0, 2): [1.0, 1.5, 0.8],
        (2, 1, 0): [0.8, 1.0, 1.5],
        (1, 2, 0): [1.0, 0.8, 1.5],
    }.items():
        np.testing.assert_allclose(orders[order].stubbornness, values)
        assert orders[order].tau == 0.5


def test_permutations_keep_every_digit_and_permute_the_judges_of_a_sweep():
    assert stubbornness_permutations(RuleParameters())[2, 1, 0].stubbornness.tolist() == [
        0.8,
        1,
        1.5,
    ]
    sweep = RuleParameters(stubbornness=np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))
    permuted = stubbornness_permutations(sweep)[1, 0, 2].stubbornness
    assert permuted.tolist() == [[2.0, 1.0, 3.0], [5.0, 4.0, 6.0]]


# The matched epsilon


def decide_many(name: str, scores: np.ndarray, **changes: float) -> Verdict:
    """A rule on [items, n, m] scores, with nothing missing."""
    shape = scores.shape[:2]
    parameters = RuleParameters(**changes)
    rule = jax.vmap(RULES[name], in_axes=(0, 0, 0, None, None))
    ones = np.ones((*shape, scores.shape[2]), bool), np.ones(shape, bool)
    return rule(scores, *ones, parameters, jax.random.key(0))


@pytest.fixture(scope="module")
def validation() -> np.ndarray:
    """Scores of 50 decisions: some candidates are endorsed, some agreed on, some both."""
    return np.random.default_rng(0).uniform(0.3, 1.0, (50, 4, 3)).astype(np.float32)


@pytest.mark.parametrize("name", ["raw_average", "raw_average_variance", "weighted_mean_filtered"])
def test_at_the_matched_epsilon_a_filter_accepts_as_many_as_verdict(name, validation):
    target = decide_many("verdict", validation).accepted
    unmatched = decide_many(name, validation)
    assert unmatched.accepted.sum() != target.sum()
    means, dispersions = unmatched.statistics.mean, unmatched.statistics.dispersion
    epsilon = matched_epsilon(means, dispersions, 0.6, target.mean())
    assert decide_many(name, validation, epsilon=epsilon).accepted.sum() == target.sum()


@pytest.mark.parametrize("share", [0.0, 0.005, 0.1, 0.25])
def test_the_matched_epsilon_accepts_the_share_asked_for(share, validation):
    settled = decide_many("verdict", validation).statistics
    epsilon = matched_epsilon(settled.mean, settled.dispersion, 0.6, share)
    accepted = decide_many("verdict", validation, epsilon=epsilon).accepted
    assert accepted.sum() == round(share * 200)
    traced = jax.jit(matched_epsilon)(settled.mean, settled.dispersion, 0.6, share)
    assert traced == epsilon


def test_no_share_above_that_of_the_endorsed_is_reached(validation):
    settled = decide_many("verdict", validation).statistics
    epsilon = matched_epsilon(settled.mean, settled.dispersion, 0.6, 1.0)
    accepted = decide_many("verdict", validation, epsilon=epsilon).accepted
    np.testing.assert_array_equal(accepted, settled.mean > 0.6 + TOLERANCE)
    assert 0 < accepted.sum() < accepted.size
    assert matched_epsilon(settled.mean, settled.dispersion, 1.0, 1.0) == 0.0


def test_ties_are_accepted_together_and_the_ineligible_never():
    means = jnp.array([0.9, 0.9, jnp.nan, 0.9, 0.2])
    dispersions = jnp.array([0.05, 0.2, jnp.nan, 0.05, 0.0])
    epsilon = matched_epsilon(means, dispersions, 0.6, 0.2)
    assert epsilon == pytest.approx(0.05, abs=1e-5) and epsilon > 0.05 + TOLERANCE
    assert matched_epsilon(means, dispersions, 0.6, 1.0) == pytest.approx(0.2, abs=1e-5)


def test_a_share_that_is_none_is_refused():
    values = jnp.array([0.7, 0.8])
    for share in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="share is"):
            matched_epsilon(values, values, 0.6, share)
        assert jnp.isnan(jax.jit(matched_epsilon)(values, values, 0.6, share))


def test_the_matched_epsilon_checks_shapes(unchecked_shapes):
    with pytest.raises(ValueError, match="means have shape"):
        matched_epsilon(jnp.ones(2), jnp.ones(3), 0.6, 0.5)
