"""The arrays that enter the model: static shapes, every index computed on the host."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Bool, Float, Int

Array = jax.Array | np.ndarray


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ModelInputs:
    """Token rows of one bucket.

    Attributes:
        tokens: token ids; padding may hold any valid id.
        positions: M-RoPE positions, rows (temporal, height, width).
        mask: True where a real token stands; padding may be on either side.
        feature_ids: for an image placeholder the row of the flattened image features
            [images * units, width] that replaces its embedding; -1 for every other token.
    """

    tokens: Int[Array, "batch time"]
    positions: Int[Array, "3 batch time"]
    mask: Bool[Array, "batch time"]
    feature_ids: Int[Array, "batch time"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PatchBatch:
    """Pictures cut into windows, so that windowed attention is a batch of fixed-size rows.

    A window row holds `slots` patches (window side / patch side, squared); the patches of one
    merge unit are contiguous, in the order of the published processor. A window that the
    picture's edge cuts short, and every window past the picture's last, is padding by `mask`.

    Attributes:
        patches: flattened pixels (channel, time, row, column) of each patch, normalised.
        positions: (row, column) of the patch in the picture's patch grid, for 2-D RoPE.
        mask: True where a real patch stands.
    """

    patches: Float[Array, "images windows slots pixels"]
    positions: Int[Array, "images windows slots 2"]
    mask: Bool[Array, "images windows slots"]
