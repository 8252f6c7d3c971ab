"""The equilibrium against an LU solve, best-response iteration and finite differences."""

import itertools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verdict_jax.equilibrium import Equilibrium, solve
from verdict_jax.rules import RuleParameters, stubbornness_permutations, verdict

PROPERTY = settings(derandomize=True, deadline=None, max_examples=40, database=None)
DEFAULT = np.array([1.5, 1.0, 0.8])
JUDGES = st.sampled_from([2, 3, 5])

solve_jit = jax.jit(solve)
verdict_jit = jax.jit(verdict)


@pytest.fixture
def x64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


@pytest.fixture
def unchecked_shapes() -> Iterator[None]:
    """Lets ill-shaped arguments through to the function's own checks."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def system(stubbornness: np.ndarray, coupling: np.ndarray | None = None) -> np.ndarray:
    m = len(stubbornness)
    if coupling is None:
        coupling = (np.ones((m, m)) - np.eye(m)) / (m - 1)
    return np.diag(1 + stubbornness) - coupling


def lu(
    scores: np.ndarray, stubbornness: np.ndarray, coupling: np.ndarray | None = None
) -> np.ndarray:
    return np.linalg.solve(system(stubbornness, coupling), stubbornness * scores)


def response_weights(stubbornness: np.ndarray) -> np.ndarray:
    m = len(stubbornness)
    return stubbornness / (stubbornness + m / (m - 1))


def solve64(scores: np.ndarray, stubbornness: np.ndarray, **options: np.ndarray) -> Equilibrium:
    """The jitted solution in float64 as NumPy arrays."""
    with jax.enable_x64(True):
        arrays = {name: jnp.asarray(value) for name, value in options.items()}
        return jax.device_get(solve_jit(jnp.asarray(scores), jnp.asarray(stubbornness), **arrays))


consensus_jacobian = jax.jit(jax.jacobian(lambda s, t: solve(s, t).consensus, argnums=(0, 1)))


def jacobians(scores: np.ndarray, stubbornness: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of the consensus [m m] in scores and in stubbornness, float64."""
    with jax.enable_x64(True):
        return jax.device_get(consensus_jacobian(jnp.asarray(scores), jnp.asarray(stubbornness)))


@st.composite
def games(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Scores in [0, 1] and a stubbornness within [.05, 20], both [m]."""
    m = draw(JUDGES)
    scores = draw(st.lists(st.floats(0, 1), min_size=m, max_size=m))
    exponents = draw(st.lists(st.floats(-1.3, 1.3), min_size=m, max_size=m))
    return np.array(scores), 10.0 ** np.array(exponents)


@st.composite
def masks(draw: st.DrawFn, m: int) -> np.ndarray:
    """At least two True."""
    order = draw(st.permutations(range(m)))
    mask = np.zeros(m, bool)
    mask[order[: draw(st.integers(2, m))]] = True
    return mask


@st.composite
def couplings(draw: st.DrawFn, m: int) -> np.ndarray:
    """Row-stochastic with a zero diagonal; single weights may be zero."""
    weights = np.array(
        draw(st.lists(st.floats(0, 1), min_size=m * m, max_size=m * m)), np.float64
    ).reshape(m, m)
    np.fill_diagonal(weights, 0)
    weights[np.arange(m), (np.arange(m) + 1) % m] += 0.1
    return weights / weights.sum(axis=1, keepdims=True)


# The nineteen facts.


@PROPERTY
@given(games())
def test_fact_01_consensus_satisfies_the_linear_system(game):
    scores, stubbornness = game
    s = solve64(scores, stubbornness).consensus
    m = len(s)
    for i in range(m):
        peers = sum(s[j] for j in range(m) if j != i) / (m - 1)
        left = (1 + stubbornness[i]) * s[i] - peers
        assert abs(left - stubbornness[i] * scores[i]) < 1e-13


@PROPERTY
@given(games())
def test_fact_02_closed_form_equals_an_lu_solve(game):
    scores, stubbornness = game
    settled = solve64(scores, stubbornness)
    a = response_weights(stubbornness)
    mu = (a * scores).sum() / a.sum()
    np.testing.assert_allclose(settled.consensus, lu(scores, stubbornness), rtol=0, atol=2e-14)
    np.testing.assert_allclose(settled.consensus, mu + a * (scores - mu), rtol=0, atol=2e-15)


@PROPERTY
@given(games())
def test_fact_03_the_weighted_mean_is_preserved_not_the_plain_one(game):
    scores, stubbornness = game
    settled = solve64(scores, stubbornness)
    before, after = (stubbornness * scores).sum(), (stubbornness * settled.consensus).sum()
    assert abs(before - after) < 1e-13 * stubbornness.sum()
    a = response_weights(stubbornness)
    covariance = np.mean(a * scores) - a.mean() * scores.mean()
    assert abs(settled.mean - scores.mean() - covariance / a.mean()) < 1e-13
    equal = solve64(scores, np.full_like(scores, stubbornness[0]))
    assert abs(equal.mean - scores.mean()) < 1e-14


def test_fact_03_counter_examples():
    assert abs(solve64(np.array([0.9, 0.3, 0.9]), DEFAULT).mean - 0.7077) < 5e-5
    corners = np.array(list(itertools.product([0.0, 1.0], repeat=3)))
    shift = np.abs(solve64(corners, DEFAULT).mean - corners.mean(axis=1))
    assert abs(shift.max() - 0.0674) < 5e-5
    flipped = np.array([0.9, 0.5, 0.35])
    assert flipped.mean() < 0.6 - 0.016
    assert abs(solve64(flipped, DEFAULT).mean - 0.6185) < 5e-5


@PROPERTY
@given(st.lists(st.floats(0, 1), min_size=3, max_size=3))
def test_fact_04_the_mean_is_linear_with_fixed_weights(raw):
    scores = np.array(raw)
    weights = np.array([0.4007, 0.3206, 0.2787])
    assert abs(solve64(scores, DEFAULT).mean - weights @ scores) < 1.5e-4
    # The weight of a judge is its column's mean in the Jacobian of the consensus.
    by_scores, _ = jacobians(scores, DEFAULT)
    np.testing.assert_allclose(by_scores.mean(axis=0), weights, rtol=0, atol=5e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_fact_05_worked_example(dtype):
    with jax.enable_x64(dtype == np.float64):
        stubbornness = jnp.asarray(DEFAULT, dtype)
        settled = solve(jnp.asarray([[0.9, 0.3, 0.9], [0.7, 0.7, 0.7]], dtype), stubbornness)
        assert settled.consensus.dtype == dtype
        np.testing.assert_allclose(settled.consensus[0], [0.8038, 0.5446, 0.7746], atol=5e-5)
        np.testing.assert_allclose(settled.consensus[1], [0.7, 0.7, 0.7], atol=2e-7)
        np.testing.assert_allclose(settled.mean, [0.7077, 0.7], atol=5e-5)
        np.testing.assert_allclose(settled.dispersion, [0.1087, 0.0], atol=5e-5)
        outcome = verdict_jit(
            jnp.asarray([[0.9, 0.3, 0.9], [0.7, 0.7, 0.7]], dtype),
            jnp.ones((2, 3), bool),
            jnp.ones(2, bool),
            RuleParameters(stubbornness=stubbornness),
            jax.random.key(0),
        )
        assert outcome.accepted.tolist() == [False, True]


@PROPERTY
@given(games())
def test_fact_06_mean_and_dispersion_have_two_forms(game):
    scores, stubbornness = game
    settled = solve64(scores, stubbornness)
    a = response_weights(stubbornness)
    mu = (a * scores).sum() / a.sum()
    assert abs(settled.mean - settled.consensus.mean()) < 1e-14
    assert abs(settled.mean - mu) < 1e-14
    spread = np.abs(settled.consensus - settled.consensus.mean()).mean()
    assert abs(settled.dispersion - spread) < 1e-14
    assert abs(settled.dispersion - (a * np.abs(scores - mu)).mean()) < 1e-14


@PROPERTY
@given(games())
def test_fact_07_consensus_stays_in_the_convex_hull(game):
    scores, stubbornness = game
    settled = solve64(scores, stubbornness)
    assert settled.consensus.min() >= scores.min() - 1e-15
    assert settled.consensus.max() <= scores.max() + 1e-15


@PROPERTY
@given(games())
def test_fact_07_the_map_is_positive_and_row_stochastic(game):
    scores, stubbornness = game
    by_scores, _ = jacobians(scores, stubbornness)
    assert by_scores.min() > 0
    np.testing.assert_allclose(by_scores.sum(axis=1), 1, rtol=0, atol=1e-14)


@PROPERTY
@given(games())
def test_fact_08_positive_stubbornness_makes_the_game_jacobian_negative_definite(game):
    scores, stubbornness = game
    m = len(scores)

    def payoff(i: int, s: np.ndarray) -> float:
        peers = (s.sum() - s[i]) / (m - 1)
        return -((s[i] - peers) ** 2) - stubbornness[i] * (s[i] - scores[i]) ** 2

    # The payoffs are quadratic, so central differences of step 1 are exact.
    eye = np.eye(m)
    jacobian = np.empty((m, m))
    for i in range(m):
        for j in range(m):
            jacobian[i, j] = (
                sum(p * q * payoff(i, p * eye[i] + q * eye[j]) for p in (1, -1) for q in (1, -1))
                / 4
            )
    assert np.linalg.eigvalsh(jacobian + jacobian.T).max() < 0
    settled = solve64(scores, stubbornness).consensus
    for i in range(m):
        for step in (-1e-3, 1e-3):
            assert payoff(i, settled + step * eye[i]) < payoff(i, settled)


def test_fact_08_zero_stubbornness_has_a_continuum_and_is_rejected():
    for level in (0.0, 0.3, 1.0):
        residual = system(np.zeros(3)) @ np.full(3, level)
        np.testing.assert_allclose(residual, 0, atol=1e-15)
    with pytest.raises(ValueError, match=r"stubbornness\[0\] is 0.0"):
        solve(jnp.array([0.9, 0.3, 0.9]), jnp.zeros(3))


@PROPERTY
@given(games())
def test_fact_09_limits_of_stubbornness(game):
    scores, stubbornness = game
    np.testing.assert_allclose(solve64(scores, stubbornness * 1e12).consensus, scores, atol=1e-10)
    soft = solve64(scores, stubbornness * 1e-12)
    limit = (stubbornness * scores).sum() / stubbornness.sum()
    np.testing.assert_allclose(soft.consensus, limit, atol=1e-10)
    assert soft.dispersion < 1e-10


@PROPERTY
@given(games())
def test_fact_10_gradients(game):
    scores, stubbornness = game
    m = len(scores)
    by_scores, by_stubbornness = jacobians(scores, stubbornness)
    inverse = np.linalg.inv(system(stubbornness))
    settled = lu(scores, stubbornness)
    np.testing.assert_allclose(by_scores, inverse * stubbornness, atol=1e-13)
    np.testing.assert_allclose(by_stubbornness, inverse * (scores - settled), atol=1e-12)
    step = 1e-6
    for k in range(m):
        unit = step * np.eye(m)[k]
        # The oracle is defined outside [0, 1] too; it takes the differences.
        difference = (lu(scores + unit, stubbornness) - lu(scores - unit, stubbornness)) / 2 / step
        np.testing.assert_allclose(by_scores[:, k], difference, atol=2e-9)
        unit *= stubbornness[k]
        difference = (lu(scores, stubbornness + unit) - lu(scores, stubbornness - unit)) / 2
        np.testing.assert_allclose(
            by_stubbornness[:, k] * stubbornness[k], difference / step, atol=2e-9
        )


dispersion_gradient = jax.jit(
    jax.grad(lambda s, t, w=None: solve(s, t, coupling=w).dispersion, argnums=(0, 1))
)


def assert_dispersion_gradient_agrees_with_finite_differences(**coupling: np.ndarray) -> None:
    scores, stubbornness = np.array([0.9, 0.5, 0.35]), DEFAULT

    def difference(by_score: np.ndarray, by_stubbornness: np.ndarray) -> float:
        up = solve64(scores + by_score, stubbornness + by_stubbornness, **coupling)
        down = solve64(scores - by_score, stubbornness - by_stubbornness, **coupling)
        return (up.dispersion - down.dispersion) / 2e-6

    with jax.enable_x64(True):
        gradients = dispersion_gradient(scores, stubbornness, *coupling.values())
    for k, unit in enumerate(1e-6 * np.eye(3)):
        np.testing.assert_allclose(gradients[0][k], difference(unit, 0 * unit), atol=2e-9)
        np.testing.assert_allclose(gradients[1][k], difference(0 * unit, unit), atol=2e-9)


def test_fact_10_gradient_of_the_dispersion():
    assert_dispersion_gradient_agrees_with_finite_differences()


def test_fact_11_dispersions_are_not_separable():
    def mixed_difference(dispersion) -> float:
        # Zero for every sum of functions of one judge each.
        return (
            dispersion(np.array([0.9, 0.9, 0.5]))
            - dispersion(np.array([0.9, 0.1, 0.5]))
            - dispersion(np.array([0.1, 0.9, 0.5]))
            + dispersion(np.array([0.1, 0.1, 0.5]))
        )

    assert abs(mixed_difference(lambda s: solve64(s, DEFAULT).dispersion)) > 0.1
    assert abs(mixed_difference(lambda s: np.abs(s - s.mean()).mean())) > 0.1
    assert abs(mixed_difference(lambda s: solve64(s, DEFAULT).mean)) < 1e-14


@PROPERTY
@given(games())
def test_fact_12_equal_stubbornness_rescales_the_raw_dispersion(game):
    scores, stubbornness = game
    equal = np.full_like(stubbornness, stubbornness[0])
    raw = np.abs(scores - scores.mean()).mean()
    expected = response_weights(equal)[0] * raw
    assert abs(solve64(scores, equal).dispersion - expected) < 1e-14


@PROPERTY
@given(games())
def test_fact_13_dispersion_is_bounded_by_the_raw_deviation(game):
    scores, stubbornness = game
    a = response_weights(stubbornness)
    raw = np.abs(scores - scores.mean()).mean()
    dispersion = solve64(scores, stubbornness).dispersion
    assert a.min() * raw - 1e-14 <= dispersion <= a.max() * raw + 1e-14


def test_fact_13_default_bounds():
    # The derivative of the consensus to its own score when mu stands still is a.
    assert [round(float(x), 2) for x in response_weights(DEFAULT)] == [0.5, 0.4, 0.35]
    random = np.random.default_rng(0).uniform(size=(4000, 3))
    raw = np.abs(random - random.mean(axis=1, keepdims=True)).mean(axis=1)
    ratio = solve64(random, DEFAULT).dispersion / raw
    assert 0.36 < ratio.min() < 0.37
    assert 0.45 < ratio.max() < 0.465


def test_fact_14_acceptance_is_not_monotone():
    settled = solve64(np.array([[0.9, 0.36, 0.9], [1.0, 0.36, 0.9]]), DEFAULT)
    np.testing.assert_allclose(settled.dispersion, [0.0978, 0.1085], atol=5e-5)
    outcome = verdict_jit(
        jnp.array([[0.9, 0.36, 0.9], [1.0, 0.36, 0.9]]),
        jnp.ones((2, 3), bool),
        jnp.ones(2, bool),
        RuleParameters(),
        jax.random.key(0),
    )
    assert outcome.accepted.tolist() == [True, False]


@PROPERTY
@given(games(), st.floats(0, 1))
def test_fact_15_best_responses_converge_to_the_equilibrium(game, start):
    scores, stubbornness = game
    settled = solve64(scores, stubbornness).consensus
    m = len(scores)
    rate = 1 / (1 + stubbornness.min())
    s = np.full(m, start)
    error = np.abs(s - settled).max()
    for _ in range(600):
        peers = (s.sum() - s) / (m - 1)
        s = (peers + stubbornness * scores) / (1 + stubbornness)
        shrunk = np.abs(s - settled).max()
        assert shrunk <= rate * error + 1e-14
        error = shrunk
    assert error < 1e-12 + rate**600


def test_fact_16_float32_at_tiny_stubbornness():
    scores = np.array([0.9, 0.3, 0.9], np.float32)
    stubbornness = (1e-7 * DEFAULT).astype(np.float32)
    exact = (DEFAULT * scores).sum() / DEFAULT.sum()
    naive = np.linalg.solve(system(stubbornness).astype(np.float32), stubbornness * scores)
    assert np.abs(naive - exact).max() > 0.02
    settled = solve(jnp.asarray(scores), jnp.asarray(stubbornness))
    np.testing.assert_allclose(settled.consensus, exact, atol=2e-7)
    np.testing.assert_allclose(settled.mean, exact, atol=2e-7)


def test_fact_17_one_judge_is_rejected():
    with pytest.raises(ValueError, match="at least two judges"):
        solve(jnp.array([0.9]), jnp.array([1.0]))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_fact_18_rounding_is_below_the_stated_tolerance(dtype):
    with jax.enable_x64(dtype == np.float64):
        scores = jnp.full((1, 3), 0.7, dtype)
        stubbornness = jnp.asarray(DEFAULT, dtype)
        assert abs(float(solve(scores, stubbornness).mean[0]) - 0.7) < 2e-7

        def accepted(tau: float) -> bool:
            parameters = RuleParameters(stubbornness=stubbornness, tau=tau)
            present, key = jnp.ones((1, 3), bool), jax.random.key(0)
            outcome = verdict_jit(scores, present, jnp.ones(1, bool), parameters, key)
            return bool(outcome.accepted[0])

        assert not accepted(0.7)
        assert not accepted(0.7 - 5e-7)
        assert accepted(0.7 - 2e-6)


def test_fact_19_swapping_visual_and_contextual_stubbornness(x64):
    swapped = stubbornness_permutations(RuleParameters(stubbornness=jnp.array(DEFAULT)))[2, 1, 0]
    np.testing.assert_array_equal(swapped.stubbornness, [0.8, 1.0, 1.5])
    symmetric, useful = np.array([0.9, 0.3, 0.9]), np.array([0.9, 0.5, 0.35])
    plain, turned = solve64(symmetric, DEFAULT), solve64(symmetric, swapped.stubbornness)
    np.testing.assert_allclose(turned.consensus, plain.consensus[[2, 1, 0]], atol=1e-15)
    assert abs(plain.mean - turned.mean) < 1e-15
    assert abs(plain.dispersion - turned.dispersion) < 1e-15
    assert abs(solve64(useful, DEFAULT).mean - 0.6185) < 5e-5
    assert abs(solve64(useful, swapped.stubbornness).mean - 0.5514) < 5e-5


# Masks.


@PROPERTY
@given(st.data(), games())
def test_a_masked_judge_leaves_the_game_of_the_others(data, game):
    scores, stubbornness = game
    mask = data.draw(masks(len(scores)))
    polluted = np.where(mask, scores, data.draw(st.sampled_from([np.nan, 7.0, np.inf])))
    settled = solve64(polluted, stubbornness, mask=mask)
    rest = solve64(scores[mask], stubbornness[mask])
    np.testing.assert_allclose(settled.consensus[mask], rest.consensus, atol=1e-14)
    assert np.isnan(settled.consensus[~mask]).all()
    assert abs(settled.mean - rest.mean) < 1e-14
    assert abs(settled.dispersion - rest.dispersion) < 1e-14


def test_masked_example_by_hand():
    # m = 2: d = lambda + 2, a = (1.5/3.5, .8/2.8) = (3/7, 2/7), mu = (3*.9 + 2*.4) / 5 = .7.
    settled = solve(
        jnp.array([0.9, jnp.nan, 0.4]), jnp.asarray(DEFAULT), jnp.array([True, False, True])
    )
    np.testing.assert_allclose(settled.mean, 0.7, atol=1e-6)
    expected = [0.7 + 0.2 * 3 / 7, np.nan, 0.7 - 0.3 * 2 / 7]
    np.testing.assert_allclose(settled.consensus, expected, atol=1e-6)
    np.testing.assert_allclose(settled.dispersion, 0.6 / 7, atol=1e-6)


def masked_loss(
    s: jax.Array, t: jax.Array, mask: jax.Array, coupling: jax.Array | None
) -> jax.Array:
    settled = solve(s, t, mask, coupling)
    total = jnp.nansum(settled.consensus**2) + jnp.nansum(settled.mean)
    return total + jnp.nansum(settled.dispersion)


masked_gradient = jax.jit(jax.grad(masked_loss, argnums=(0, 1)))


@pytest.mark.parametrize("coupled", [False, True])
def test_gradients_ignore_masked_judges_and_unsolvable_candidates(coupled, x64):
    coupling = (np.ones((3, 3)) - np.eye(3)) / 2 if coupled else None
    mask = np.array([[True, True, True], [True, False, True], [False, True, False], [False] * 3])
    scores = np.where(mask, np.array([0.9, 0.5, 0.35]), np.nan)
    by_scores, by_stubbornness = jax.device_get(masked_gradient(scores, DEFAULT, mask, coupling))
    assert np.isfinite(by_scores).all() and np.isfinite(by_stubbornness).all()
    assert np.all(by_scores[~mask] == 0)
    assert np.all(by_scores[2:] == 0)
    assert np.all(by_scores[:2][mask[:2]] != 0)
    _, alone = masked_gradient(scores[:2], DEFAULT, mask[:2], coupling)
    np.testing.assert_allclose(by_stubbornness, alone, atol=1e-14)
    settled = jax.device_get(solve(scores, DEFAULT, mask, coupling))
    assert np.isnan(settled.mean).tolist() == [False, False, True, True]
    assert np.isnan(settled.dispersion).tolist() == [False, False, True, True]
    assert np.isnan(settled.consensus[2:]).all()


# Coupling.


@PROPERTY
@given(st.data(), games())
def test_uniform_coupling_agrees_with_the_closed_form(data, game):
    scores, stubbornness = game
    m = len(scores)
    mask = data.draw(masks(m))
    uniform = (np.ones((m, m)) - np.eye(m)) / (m - 1)
    closed = solve64(scores, stubbornness, mask=mask)
    coupled = solve64(scores, stubbornness, mask=mask, coupling=uniform)
    np.testing.assert_allclose(coupled.consensus, closed.consensus, rtol=0, atol=1e-12)
    np.testing.assert_allclose(coupled.mean, closed.mean, rtol=0, atol=1e-12)
    np.testing.assert_allclose(coupled.dispersion, closed.dispersion, rtol=0, atol=1e-12)


@PROPERTY
@given(st.data(), games())
def test_coupling_equals_an_lu_solve(data, game):
    scores, stubbornness = game
    coupling = data.draw(couplings(len(scores)))
    settled = solve64(scores, stubbornness, coupling=coupling)
    expected = lu(scores, stubbornness, coupling)
    np.testing.assert_allclose(settled.consensus, expected, atol=1e-12)
    np.testing.assert_allclose(settled.mean, expected.mean(), atol=1e-12)
    spread = np.abs(expected - expected.mean()).mean()
    np.testing.assert_allclose(settled.dispersion, spread, atol=1e-12)


@PROPERTY
@given(st.data(), games())
def test_masked_coupling_is_renormalised_over_the_rest(data, game):
    scores, stubbornness = game
    m = len(scores)
    mask = data.draw(masks(m))
    coupling = 0.9 * data.draw(couplings(m)) + 0.1 * (np.ones((m, m)) - np.eye(m)) / (m - 1)
    rest = coupling[np.ix_(mask, mask)]
    rest = rest / rest.sum(axis=1, keepdims=True)
    expected = lu(scores[mask], stubbornness[mask], rest)
    polluted = np.where(mask, scores, np.nan)
    settled = solve64(polluted, stubbornness, mask=mask, coupling=coupling)
    np.testing.assert_allclose(settled.consensus[mask], expected, atol=1e-12)
    assert np.isnan(settled.consensus[~mask]).all()
    np.testing.assert_allclose(settled.mean, expected.mean(), atol=1e-12)
    spread = np.abs(expected - expected.mean()).mean()
    np.testing.assert_allclose(settled.dispersion, spread, atol=1e-12)


def test_a_judge_with_nobody_left_to_hear_keeps_its_score():
    # 0 hears 1 only, 1 hears 0 and 2 alike, 2 hears 0 only; without 1, judge 0 is alone.
    # Judge 2: (1 + .8) s = .9 + .8 * .4.
    coupling = jnp.array([[0, 1, 0], [0.5, 0, 0.5], [1, 0, 0]], jnp.float32)
    settled = solve(
        jnp.array([0.9, 0.5, 0.4]), jnp.asarray(DEFAULT), jnp.array([True, False, True]), coupling
    )
    np.testing.assert_allclose(settled.consensus, [0.9, np.nan, 1.22 / 1.8], atol=1e-6)


def test_gradient_under_coupling_agrees_with_finite_differences():
    coupling = np.array([[0, 0.7, 0.3], [0.2, 0, 0.8], [0.5, 0.5, 0]])
    assert_dispersion_gradient_agrees_with_finite_differences(coupling=coupling)


# Shapes, dtypes and transformations.


@pytest.mark.parametrize("batch", [(), (1,), (0,), (4,), (2, 3), (2, 1, 3)])
@pytest.mark.parametrize("coupled", [False, True])
def test_leading_axes_are_independent(batch, coupled):
    random = np.random.default_rng(1)
    scores = random.uniform(size=(*batch, 3)).astype(np.float32)
    mask = random.uniform(size=(*batch, 3)) < 0.8
    coupling = jnp.array([[0, 0.7, 0.3], [0.2, 0, 0.8], [0.5, 0.5, 0]]) if coupled else None
    stubbornness = jnp.asarray(DEFAULT)
    settled = solve(jnp.asarray(scores), stubbornness, jnp.asarray(mask), coupling)
    assert settled.consensus.shape == (*batch, 3)
    assert settled.mean.shape == settled.dispersion.shape == batch
    for entry in np.ndindex(*batch):
        single = solve(jnp.asarray(scores[entry]), stubbornness, jnp.asarray(mask[entry]), coupling)
        np.testing.assert_allclose(settled.consensus[entry], single.consensus, atol=2e-7)
        np.testing.assert_allclose(settled.mean[entry], single.mean, atol=2e-7)
        np.testing.assert_allclose(settled.dispersion[entry], single.dispersion, atol=2e-7)


@PROPERTY
@given(games())
def test_float32_agrees_with_float64(game):
    scores, stubbornness = (x.astype(np.float32) for x in game)
    narrow = solve_jit(jnp.asarray(scores), jnp.asarray(stubbornness))
    wide = solve64(scores.astype(np.float64), stubbornness.astype(np.float64))
    assert narrow.consensus.dtype == jnp.float32 and wide.consensus.dtype == np.float64
    np.testing.assert_allclose(narrow.consensus, wide.consensus, atol=1e-6)
    np.testing.assert_allclose(narrow.dispersion, wide.dispersion, atol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_narrow_floats_are_solved_in_float32(dtype):
    scores = jnp.array([0.9, 0.3, 0.9], dtype)
    settled = solve(scores, jnp.asarray(DEFAULT, dtype))
    assert settled.mean.dtype == jnp.float32
    expected = lu(np.asarray(scores, np.float64), np.asarray(DEFAULT, dtype).astype(np.float64))
    np.testing.assert_allclose(settled.consensus, expected, atol=1e-6)


def test_numpy_arguments():
    settled = solve(np.array([[0.9, 0.3, 0.9]]), DEFAULT, np.array([[True, True, True]]))
    np.testing.assert_allclose(settled.mean, [0.7077], atol=5e-5)
    assert settled.mean.dtype == jnp.float32


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_strict_dtype_promotion(dtype, x64):
    scores, mask = np.array([[0.9, 0.3, 0.9]], dtype), np.array([[True, True, False]])
    with jax.numpy_dtype_promotion("strict"):
        for coupling in (None, (np.ones((3, 3)) - np.eye(3)) / 2):
            mean = jax.eval_shape(lambda *args: solve(*args).mean, scores, DEFAULT, mask, coupling)
            assert mean.dtype == dtype


@pytest.mark.parametrize("scale", [1.2e-38, 1e-20, 1e20, 8e37])
@pytest.mark.parametrize("ratio", [1e-10, 1.0, 1e10])
def test_extreme_stubbornness_neither_underflows_nor_overflows(scale, ratio):
    stubbornness = np.clip(np.array([1.0, ratio, 1.0]) * scale, 1.2e-38, 8e37).astype(np.float32)
    scores = np.array([0.9, 0.3, 0.6], np.float32)
    settled = solve(jnp.asarray(scores), jnp.asarray(stubbornness))
    a = response_weights(stubbornness.astype(np.float64))
    mu = (a * scores).sum() / a.sum()
    np.testing.assert_allclose(settled.mean, mu, atol=1e-6)
    np.testing.assert_allclose(settled.consensus, mu + a * (scores - mu), atol=1e-6)


def test_jit_vmap_and_grad_compose_and_compile_once():
    traces = 0

    def fitted(scores: jax.Array, stubbornness: jax.Array, mask: jax.Array) -> jax.Array:
        nonlocal traces
        traces += 1
        return jnp.nansum(solve(scores, stubbornness, mask).dispersion)

    gradient = jax.jit(jax.vmap(jax.grad(fitted, argnums=1), in_axes=(0, None, 0)))
    row_gradient = jax.jit(
        jax.grad(lambda s, t, u: jnp.nansum(solve(s, t, u).dispersion), argnums=1)
    )
    random = np.random.default_rng(2)
    for _ in range(3):
        scores = jnp.asarray(random.uniform(size=(5, 4, 3)), jnp.float32)
        mask = jnp.asarray(random.uniform(size=(5, 4, 3)) < 0.7)
        stubbornness = jnp.asarray(random.uniform(0.1, 2, size=3), jnp.float32)
        batched = gradient(scores, stubbornness, mask)
        for row in range(5):
            single = row_gradient(scores[row], stubbornness, mask[row])
            np.testing.assert_allclose(batched[row], single, atol=1e-6)
    assert traces == 1


def test_vmap_over_stubbornness():
    orders = jnp.asarray([[1.5, 1.0, 0.8], [0.8, 1.0, 1.5]])
    scores = jnp.array([0.9, 0.5, 0.35])
    means = jax.vmap(lambda t: solve(scores, t).mean)(orders)
    np.testing.assert_allclose(means, [0.6185, 0.5514], atol=5e-5)


def test_concrete_arguments_inside_jit():
    stubbornness = jnp.asarray(DEFAULT)
    inside = jax.jit(lambda: solve(jnp.array([0.9, 0.3, 0.9]), stubbornness).mean)()
    np.testing.assert_allclose(inside, 0.7077, atol=5e-5)
    with pytest.raises(ValueError, match=r"stubbornness\[1\]"):
        jax.jit(lambda s: solve(s, np.array([1.0, -1.0, 1.0])).mean)(jnp.array([0.9, 0.3, 0.9]))


# Invalid values.


@pytest.mark.parametrize("wrong", [1.25, -0.5, np.nan, np.inf])
def test_an_invalid_score_is_named(wrong):
    scores = np.full((2, 4, 3), 0.5, np.float32)
    scores[1, 2, 0] = wrong
    with pytest.raises(ValueError, match=rf"scores\[1, 2, 0\] is {wrong}"):
        solve(jnp.asarray(scores), jnp.asarray(DEFAULT))


@pytest.mark.parametrize("wrong", [0.0, -1.0, np.nan, np.inf, 1e-39, 1e38, 1e39])
def test_an_invalid_stubbornness_is_named(wrong):
    stubbornness = np.array([1.0, wrong, 1.0])
    with pytest.raises(ValueError, match=r"stubbornness\[1\] is .*positive and finite"):
        solve(jnp.array([0.9, 0.3, 0.9]), stubbornness)


@pytest.mark.parametrize(
    "row", [[0.0, 0.6, 0.6], [0.2, 0.4, 0.4], [0.0, 1.5, -0.5], [0.0, np.nan, 1.0]]
)
def test_an_invalid_coupling_row_is_named(row):
    uniform = (np.ones((3, 3), np.float32) - np.eye(3, dtype=np.float32)) / 2
    coupling = uniform.copy()
    coupling[0] = row
    with pytest.raises(ValueError, match=r"coupling\[0\]"):
        solve(jnp.array([0.9, 0.3, 0.9]), jnp.asarray(DEFAULT), coupling=jnp.asarray(coupling))
    settled = solve_jit(jnp.array([0.9, 0.3, 0.9]), jnp.asarray(DEFAULT), None, coupling)
    assert np.isnan(settled.consensus).all() and np.isnan(settled.mean)


mean_gradient = jax.jit(jax.grad(lambda s, t, w: jnp.sum(solve(s, t, None, w).mean)))


@pytest.mark.parametrize("coupled", [False, True])
def test_an_invalid_score_under_jit_is_nan_in_its_candidate_only(coupled):
    coupling = (np.ones((3, 3), np.float32) - np.eye(3, dtype=np.float32)) / 2 if coupled else None
    stubbornness = DEFAULT.astype(np.float32)
    for wrong in (1.25, -0.5, np.nan):
        scores = np.array([[0.9, 0.3, 0.9], [0.9, wrong, 0.9]], np.float32)
        settled = jax.device_get(solve_jit(scores, stubbornness, None, coupling))
        assert np.isnan(settled.consensus).all(axis=1).tolist() == [False, True]
        assert np.isfinite(settled.consensus[0]).all()
        assert np.isnan(settled.mean).tolist() == [False, True]
        assert np.isnan(settled.dispersion).tolist() == [False, True]
        gradient = jax.device_get(mean_gradient(scores, stubbornness, coupling))
        assert np.isfinite(gradient[0]).all() and np.isnan(gradient[1]).all()


@pytest.mark.parametrize("wrong", [0.0, -1.0, np.nan, np.inf])
def test_an_invalid_stubbornness_under_jit_is_nan(wrong):
    settled = solve_jit(jnp.array([0.9, 0.3, 0.9]), jnp.array([1.0, wrong, 1.0]))
    assert np.isnan(settled.consensus).all()
    assert np.isnan(settled.mean) and np.isnan(settled.dispersion)


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit])
def test_shapes_are_always_checked(transform, unchecked_shapes):
    scores, stubbornness = jnp.full((2, 3), 0.5), jnp.ones(3)
    checked = transform(solve)
    with pytest.raises(ValueError, match="at least two judges"):
        checked(jnp.float32(0.5), stubbornness)
    with pytest.raises(ValueError, match="at least two judges"):
        checked(jnp.full((2, 1), 0.5), jnp.ones(1))
    with pytest.raises(ValueError, match="stubbornness has shape"):
        checked(scores, jnp.ones(2))
    with pytest.raises(ValueError, match="mask has shape"):
        checked(scores, stubbornness, jnp.ones(3, bool))
    with pytest.raises(ValueError, match="coupling has shape"):
        checked(scores, stubbornness, None, jnp.ones((2, 2)))


def test_equilibrium_is_a_frozen_pytree():
    settled = solve(jnp.array([0.9, 0.3, 0.9]), jnp.asarray(DEFAULT))
    assert len(jax.tree.leaves(settled)) == 3
    with pytest.raises(AttributeError):
        settled.mean = jnp.zeros(())  # pyright: ignore[reportAttributeAccessIssue]
