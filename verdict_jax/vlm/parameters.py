"""Parameter trees: nested dicts of arrays at every public boundary, NNX modules inside."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax
from flax import nnx
from jaxtyping import Inexact, PyTree

Params = PyTree[Inexact[jax.Array, "..."]]
"""A nested dict of arrays. Stacked layers carry a leading layer axis."""

Module = TypeVar("Module", bound=nnx.Module)


def bind(graph: nnx.GraphDef[Module], params: Params) -> Module:
    """The module of this structure with these parameters; a pure function of both."""
    return nnx.merge(graph, nnx.State(params))


def stack_init(build: Callable[[nnx.Rngs], nnx.Module], key: jax.Array, depth: int) -> Params:
    """Parameters of `depth` like modules, each leaf stacked along a new first axis."""

    def one(key: jax.Array) -> Params:
        return nnx.to_pure_dict(nnx.state(build(nnx.Rngs(key))))

    return jax.vmap(one)(jax.random.split(key, depth))
