"""The judges that the options ask for."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_vlm

from verdict_jax.cli_models import panels
from verdict_jax.command import UserError


def test_judges_of_one_model_are_one_panel(tmp_path: Path) -> None:
    """Columns stay in the order V, L, C whichever models judge."""
    one, other = (tiny_vlm.write_checkpoint(tmp_path / str(seed), seed) for seed in (0, 1))
    vlm = tiny_vlm.tiny_vlm()
    expected = {
        (): [("visual", "logical", "contextual")],
        (one,): [("visual", "logical", "contextual")],
        (one, one, one): [("visual", "logical", "contextual")],
        (one, one, other): [("visual", "logical"), ("contextual",)],
        (one, other, other): [("visual",), ("logical", "contextual")],
        (one, other, one): [("visual",), ("logical",), ("contextual",)],
    }
    for folders, judges in expected.items():
        found = panels(vlm, folders, "digits")
        assert [panel.judges for panel in found] == judges
    assert panels(vlm, (), "digits")[0].model_id == vlm.name
    different = {panel.model_id for panel in panels(vlm, (one, other, one), "digits")}
    assert len(different) == 2


def test_two_models_fit_no_judges() -> None:
    with pytest.raises(UserError, match="one each for V, L and C; got 2"):
        panels(tiny_vlm.tiny_vlm(), (Path("a"), Path("b")), "digits")
