"""A folder of records that are appended: killed at any point, a run loses no whole batch."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from verdict_jax.protocols import Setting

SETTINGS = "settings.json"
LOCK = "lock"

Value = Setting | Sequence[Setting] | None
"""One value of a run's settings."""


class RunFolderError(Exception):
    """The folder cannot serve this run; the message is one line that says what to do."""


@dataclass(frozen=True)
class RunFolder:
    """An open folder; `open_run` makes one."""

    path: Path

    def read(self, name: str) -> tuple[str, ...]:
        """The whole lines of a journal, () if there is none.

        Raises:
            RunFolderError: a line is not UTF-8.
        """
        path = self.path / name
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            return ()
        # what follows the last line end was being written when the run was killed
        whole = text[: text.rfind(b"\n") + 1]
        try:
            # not splitlines: a text may hold other line separators
            return tuple(whole.decode("utf-8").split("\n")[:-1])
        except UnicodeDecodeError as error:
            line = whole[: error.start].count(b"\n") + 1
            raise RunFolderError(f"{path}: line {line} is not UTF-8; restore the file") from error

    def append(self, name: str, lines: Sequence[str]) -> None:
        """Adds lines to a journal in one write, on the disk before this returns.

        Raises:
            OSError: the disk is full; what was written of these lines is taken back.
        """
        data = "".join(f"{line}\n" for line in lines).encode("utf-8")
        path = self.path / name
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            size = os.lseek(descriptor, 0, os.SEEK_END)
            end = _last_line_end(descriptor, size)
            if end < size:
                os.ftruncate(descriptor, end)
                os.lseek(descriptor, end, os.SEEK_SET)
            try:
                _write_all(descriptor, data)
                os.fsync(descriptor)
            except OSError:
                os.ftruncate(descriptor, end)
                raise
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from error
        finally:
            os.close(descriptor)


def _last_line_end(descriptor: int, size: int) -> int:
    """How many bytes belong to whole lines."""
    position = size
    while position > 0:
        start = max(0, position - 65536)
        found = os.pread(descriptor, position - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        position = start
    return 0


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


@contextmanager
def open_run(path: Path, settings: Mapping[str, Value]) -> Iterator[RunFolder]:
    """Opens a run's folder, new or to go on with, for this process alone.

    Args:
        path: the folder, made if need be.
        settings: all that the results are a function of; recorded, and compared on resuming.

    Raises:
        RunFolderError: another process holds the folder, or it was made with other settings.
    """
    path.mkdir(parents=True, exist_ok=True)
    with open(path / LOCK, "a") as lock:
        try:
            # released by the system when the process dies, however it dies
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunFolderError(
                f"{path}: another process is writing here; wait for it or give another --out"
            ) from error
        _check_settings(path, settings)
        yield RunFolder(path)


def _check_settings(path: Path, settings: Mapping[str, Value]) -> None:
    file = path / SETTINGS
    # as JSON reads them back: tuples are lists
    wanted: dict[str, Value] = json.loads(json.dumps(dict(settings)))
    if not file.exists():
        partial = file.with_suffix(".partial")
        partial.write_text(json.dumps(wanted, indent=2) + "\n", encoding="utf-8")
        os.replace(partial, file)
        return
    try:
        stored: dict[str, Value] = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RunFolderError(f"{file}: not JSON; restore it or give another --out") from error
    different = [
        f"{name} is {wanted.get(name)!r}, was {stored.get(name)!r}"
        for name in {**stored, **wanted}
        if stored.get(name) != wanted.get(name)
    ]
    if different:
        raise RunFolderError(
            f"{path} holds a run with other settings: {'; '.join(different)}; "
            "give another --out, or the same settings"
        )
