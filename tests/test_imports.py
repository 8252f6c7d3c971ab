"""`import verdict_jax` stays light: what a person composes first must not wait for the model."""

import json
import subprocess
import sys

HEAVY = (
    "PIL", "flax", "matplotlib", "optax", "orbax", "tokenizers", "torch", "transformers",
    "verdict_jax.vlm",
)  # fmt: skip


def modules_after(statement: str) -> set[str]:
    """Names of the modules that a fresh interpreter holds after a statement."""
    code = f"{statement}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    # -I: a PYTHONPATH of the caller or its working directory adds nothing.
    command = [sys.executable, "-I", "-c", code]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_import_loads_neither_the_model_nor_its_libraries() -> None:
    loaded = modules_after("import verdict_jax\nverdict_jax.solve, verdict_jax.rules.RULES")
    assert "jax" in loaded
    assert not {name for name in loaded if name.startswith(HEAVY)}


def test_the_command_line_teaches_without_jax() -> None:
    assert "jax" not in modules_after("from verdict_jax.cli import main\nmain(['--help'])")


def test_the_probe_sees_what_is_loaded() -> None:
    assert "tokenizers" in modules_after("import tokenizers")
