"""Checkpoints that ship with the package."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path


def bundled_checkpoint(name: str = "easy_vqa") -> Path:
    """The folder of a checkpoint that ships with the package; `vlm.checkpoint.load_vlm` reads it.

    Raises:
        ValueError: there is none of this name; the message lists those there are.
    """
    root = Path(str(files(__name__)))
    names = sorted(path.parent.name for path in root.glob("*/tokenizer.json"))
    if name not in names:
        raise ValueError(f"no bundled checkpoint {name!r}; there are: {', '.join(names)}")
    return root / name
