"""The ladder of padded sizes: a second call of the same rung compiles nothing."""

from __future__ import annotations


def bucket(n: int, minimum: int = 1) -> int:
    """The smallest rung of the ladder 1, 2, 3, 4, 6, 8, 12, 16, ... that holds `n`.

    Rungs are 2**k and 3 * 2**k, so padding is under half of `n` and sizes up to N have about
    2 log2(N) rungs. Pure and monotone in both arguments.

    Args:
        n: the size to hold, zero or more.
        minimum: the least rung to use; the next rung up if it is none itself.

    Raises:
        ValueError: n < 0 or minimum < 1.
    """
    if n < 0 or minimum < 1:
        raise ValueError(f"no bucket for size {n} with minimum {minimum}")
    size = max(n, minimum)
    power = 1 << (size - 1).bit_length()
    three_quarters = power // 4 * 3
    return three_quarters if size <= three_quarters else power
