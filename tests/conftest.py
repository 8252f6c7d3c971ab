"""Strictness that every test runs under."""

import jax

jax.config.update("jax_numpy_rank_promotion", "raise")
