"""Prints what `import verdict_jax` and its solver cost beyond jax, with the slowest modules."""

import re
import subprocess
import sys

RUNS = 5
SLOWEST = 8


def measure() -> tuple[float, list[tuple[float, str]]]:
    """Milliseconds of `import verdict_jax` after `import jax`; own milliseconds per module."""
    # jax loads some of itself on first use; that is its cost, whoever imports it.
    code = (
        "import jax, jax.numpy; print('---', file=__import__('sys').stderr)\n"
        "import verdict_jax; verdict_jax.solve, verdict_jax.rules"
    )
    command = [sys.executable, "-X", "importtime", "-c", code]
    log = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    rows = re.findall(r"^import time:\s+(\d+) \|\s+(\d+) \|\s+(\S+)$", log.split("---")[1], re.M)
    own = [(int(microseconds) / 1000, module) for microseconds, _, module in rows]
    return sum(cost for cost, _ in own), own


def main() -> None:
    total, own = min((measure() for _ in range(RUNS)), key=lambda run: run[0])
    print(f"import verdict_jax: {total:.0f} ms beyond jax (best of {RUNS})")
    for milliseconds, module in sorted(own, reverse=True)[:SLOWEST]:
        print(f"{milliseconds:8.1f} ms  {module}")


if __name__ == "__main__":
    main()
