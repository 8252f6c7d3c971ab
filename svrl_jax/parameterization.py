"""Which of a policy's parameters are trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import jax

from svrl_jax import adapters
from svrl_jax.train_step import Compose
from verdict_jax.vlm.parameters import Params

Trained = Literal["all", "decoder", "adapters"]
"""all: both towers. decoder: the vision tower is frozen, so that pictures are encoded once.
adapters: low-rank differences of the decoder's kernels; the base is then the reference policy."""

RANK = 16
"""Of adapters (LoRA: 4 to 64)."""

SCALE = 2.0
"""Of adapters: alpha / rank, with alpha twice the rank as is usual."""


@dataclass(frozen=True)
class Parameterization:
    """A policy in two parts.

    Attributes:
        trained: what is optimised at first.
        frozen: the rest.
        compose: puts them together.
        encodes_pictures: whether the vision tower is trained, so that an update needs patches.
    """

    trained: Params
    frozen: Params
    compose: Compose
    encodes_pictures: bool


def parameterize(params: Params, trained: Trained, key: jax.Array) -> Parameterization:
    """The policy `params`, ready to be trained.

    Args:
        params: of both towers.
        trained: which part.
        key: of the adapters' random halves.
    """
    match trained:
        case "all":
            return Parameterization(params, {}, lambda own, _: own, True)
        case "decoder":
            own, rest = {"text": params["text"]}, {"vision": params["vision"]}
            return Parameterization(own, rest, lambda own, rest: {**rest, **own}, False)
        case "adapters":
            low = adapters.init_adapters(params, RANK, key)
            return Parameterization(
                low, params, lambda own, rest: adapters.merge(rest, own, SCALE), False
            )
