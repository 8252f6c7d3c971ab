"""`verdict eval` as a person meets it."""

from __future__ import annotations

import typing
from pathlib import Path

import pytest
import tiny_vlm

from verdict_jax import cli_eval
from verdict_jax.benchmarks.catalogue import BENCHMARKS
from verdict_jax.cli import main
from verdict_jax.cli_eval import BenchmarkName


def options(out: Path, *more: str) -> list[str]:
    return [
        "eval", "--benchmark", "tabletop", "--limit", "2", "--seeds", "1", "--batch", "2",
        "--rules", "base", "verdict", "oracle", "--max-steps", "2", "--max-tokens", "4",
        "--model", str(tiny_vlm.tiny_folder()), "--out", str(out), *more,
    ]  # fmt: skip


def test_a_run_prints_and_keeps_its_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(options(tmp_path / "run"))
    shown = capsys.readouterr().out
    kept = (tmp_path / "run" / "tables.md").read_text()
    assert kept in shown
    rules = [line.split("|")[1].strip() for line in kept.splitlines() if line.startswith("|")]
    assert rules[:5] == ["rule", "---", "base", "verdict", "oracle"]
    assert "different candidates" in kept and "| visual |" in kept
    # once more: nothing is left to do, and the tables are the same
    main(options(tmp_path / "run"))
    assert capsys.readouterr().out == shown


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--rules", "vedict"], "no rule vedict"),
        (["--seeds", "0"], "--seeds and --limit must be at least 1"),
        (["--temperature", "-1"], "temperature"),
        (["--judge-model", "a", "b"], "one each for V, L and C"),
        (["--stubbornness", "0", "1", "1"], "stubbornness"),
    ],
)
def test_wrong_options_are_named(
    more: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(options(tmp_path / "run", *more))
    assert stopped.value.code == 2
    (line,) = [
        text for text in capsys.readouterr().err.splitlines() if text.startswith("verdict: ")
    ]
    assert message in line


def test_a_folder_of_other_settings_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "settings.json").write_text('{"tau": 0.7}')
    with pytest.raises(SystemExit) as stopped:
        main(options(tmp_path))
    assert stopped.value.code == 2
    assert "tau is 0.6, was 0.7" in capsys.readouterr().err


def test_help_names_every_benchmark() -> None:
    assert set(typing.get_args(BenchmarkName)) == set(BENCHMARKS)
    assert "base" in cli_eval.DEFAULT_RULES
