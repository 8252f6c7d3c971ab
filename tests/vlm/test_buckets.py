"""The ladder of padded sizes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verdict_jax.vlm.buckets import bucket


def test_ladder():
    rungs = sorted({bucket(n) for n in range(200)})
    assert rungs == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256]


@pytest.mark.parametrize(
    ("n", "minimum", "rung"), [(0, 1, 1), (5, 1, 6), (5, 16, 16), (5, 17, 24), (17, 16, 24)]
)
def test_minimum(n, minimum, rung):
    assert bucket(n, minimum) == rung


@settings(derandomize=True, deadline=None)
@given(st.integers(0, 1 << 40), st.integers(1, 1 << 20))
def test_holds_n_within_half_and_is_monotone(n, minimum):
    rung = bucket(n, minimum)
    needed = max(n, minimum)
    assert needed <= rung < needed * 1.5
    assert bucket(rung) == rung
    assert bucket(n + 1, minimum) >= rung


def test_refuses_impossible_sizes():
    with pytest.raises(ValueError, match="size -1"):
        bucket(-1)
    with pytest.raises(ValueError, match="minimum 0"):
        bucket(4, 0)
