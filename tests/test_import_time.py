"""`import verdict_jax` stays light: what a person composes first must not wait for the model."""

import json
import subprocess
import sys

HEAVY = ("transformers", "flax", "orbax", "tokenizers", "torch", "matplotlib", "verdict_jax.vlm")


def modules_after(statement: str) -> set[str]:
    """Names of the modules that a fresh interpreter holds after a statement."""
    code = f"{statement}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    # -I: a PYTHONPATH of the caller or its working directory adds nothing.
    command = [sys.executable, "-I", "-c", code]
    return set(json.loads(subprocess.run(command, check=True, capture_output=True).stdout))


def test_import_loads_neither_the_model_nor_its_libraries() -> None:
    loaded = modules_after("import verdict_jax")
    assert "verdict_jax" in loaded
    assert not {name for name in loaded if name.startswith(HEAVY)}


def test_the_probe_sees_what_is_loaded() -> None:
    assert "tokenizers" in modules_after("import tokenizers")
