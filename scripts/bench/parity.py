"""Prints how far this port's logits stand from transformers' on torch, case by case."""

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
# The cases are the tests' own.
sys.path.insert(0, str(ROOT / "tests"))

from vlm import builders  # noqa: E402


def main() -> None:
    print(f"{'model':<22} {'case':<32} {'max abs difference':>18} {'std of logits':>14}")
    for name, config, seed in (
        ("tiny, untied", builders.untied_config(), 11),
        ("tiny, tied", builders.tied_config(), 12),
    ):
        with tempfile.TemporaryDirectory() as folder:
            pair = builders.build(Path(folder), config, seed)
            for case, measure in builders.CASES.items():
                show(name, case, measure(pair))
    with tempfile.TemporaryDirectory() as folder:
        for case, parity in builders.published_shapes(Path(folder)).items():
            show("3B shapes, 2 layers", case, parity)


def show(model: str, case: str, parity: builders.Parity) -> None:
    print(f"{model:<22} {case:<32} {parity.difference:>18.1e} {parity.spread:>14.2f}", flush=True)


if __name__ == "__main__":
    main()
