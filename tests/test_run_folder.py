"""A run's folder: journals that survive a kill, settings that do not change, one writer."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from verdict_jax import run_folder
from verdict_jax.run_folder import RunFolderError, open_run

SETTINGS = {"seed": 1, "rules": ("a", "b"), "tau": 0.6, "limit": None}


def test_lines_come_back_in_order(tmp_path: Path) -> None:
    with open_run(tmp_path / "deep" / "run", SETTINGS) as run:
        assert run.read("x.jsonl") == ()
        run.append("x.jsonl", ["one", "zwei \u00e4\u2028"])
        run.append("x.jsonl", ["three"])
    with open_run(tmp_path / "deep" / "run", SETTINGS) as run:
        assert run.read("x.jsonl") == ("one", "zwei \u00e4\u2028", "three")


@pytest.mark.parametrize("torn", [b"tw", b"t" * 200_000, "\u00e4".encode()[:1]])
def test_a_line_cut_off_by_a_kill_is_dropped(torn: bytes, tmp_path: Path) -> None:
    with open_run(tmp_path, SETTINGS) as run:
        run.append("x.jsonl", ["one"])
        with open(tmp_path / "x.jsonl", "ab") as file:
            file.write(torn)
        assert run.read("x.jsonl") == ("one",)
        run.append("x.jsonl", ["two"])
        assert run.read("x.jsonl") == ("one", "two")


def test_a_journal_that_is_only_torn_starts_anew(tmp_path: Path) -> None:
    with open_run(tmp_path, SETTINGS) as run:
        (tmp_path / "x.jsonl").write_bytes(b"on")
        run.append("x.jsonl", ["one"])
        assert run.read("x.jsonl") == ("one",)


def test_a_full_disk_takes_nothing_and_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_run(tmp_path, SETTINGS) as run:
        run.append("x.jsonl", ["one"])
        real = os.write

        def full(descriptor: int, data: memoryview) -> int:
            if len(data) > 3:
                return real(descriptor, data[:3])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(run_folder.os, "write", full)
        with pytest.raises(OSError, match=r"No space left.*x\.jsonl"):
            run.append("x.jsonl", ["two", "three"])
        monkeypatch.undo()
        assert run.read("x.jsonl") == ("one",)
        run.append("x.jsonl", ["two"])
        assert run.read("x.jsonl") == ("one", "two")


def test_other_settings_are_refused_with_the_difference(tmp_path: Path) -> None:
    with open_run(tmp_path, SETTINGS):
        pass
    with (
        pytest.raises(RunFolderError, match=r"tau is 0\.7, was 0\.6; extra is 1, was None"),
        open_run(tmp_path, {**SETTINGS, "tau": 0.7, "extra": 1}),
    ):
        pass


def test_settings_that_are_not_json_are_named(tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text("{")
    with pytest.raises(RunFolderError, match=r"settings\.json: not JSON"), open_run(tmp_path, {}):
        pass


def test_a_second_process_is_refused_until_the_first_is_dead(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from verdict_jax.run_folder import open_run\n"
        "with open_run(Path(sys.argv[1]), {}):\n"
        "    print('open', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert holder.stdout is not None and holder.stdout.readline() == "open\n"
    with pytest.raises(RunFolderError, match="another process"), open_run(tmp_path, {}):
        pass
    holder.kill()
    holder.communicate()
    with open_run(tmp_path, {}):
        pass


def test_lines_that_are_not_utf8_are_named(tmp_path: Path) -> None:
    with open_run(tmp_path, SETTINGS) as run:
        (tmp_path / "x.jsonl").write_bytes(b"one\n\xff\xff\nthree\n")
        with pytest.raises(RunFolderError, match=r"x\.jsonl: line 2 is not UTF-8"):
            run.read("x.jsonl")
