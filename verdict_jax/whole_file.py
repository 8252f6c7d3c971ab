"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOBase
from pathlib import Path


class TargetError(ValueError):
    """No file can appear at a path; the message is one line that says why and what to do."""


def check_target(out: Path) -> Path:
    """The file that writing to `out` makes or replaces: where a link leads, the link stays.

    Raises:
        TargetError: something else than a file is there, or its folder is absent or read-only.
    """
    target = Path(os.path.realpath(out))
    if target.exists() and not target.is_file():
        raise TargetError(f"{out}: not a file; name one that may be replaced")
    if not target.parent.is_dir():
        raise TargetError(f"{out}: its folder does not exist; create it first")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise TargetError(f"{out}: its folder is read-only; name another")
    return target


@contextmanager
def whole_or_absent(out: Path) -> Iterator[TextIOBase]:
    """A UTF-8 stream whose text becomes the file `out` at the end, or nothing on any error.

    An older file stays as it was until it is replaced in one go, and its mode is kept.

    Raises:
        TargetError: as `check_target`.
        OSError: the file cannot be written.
    """
    target = check_target(out)
    partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}.partial")
    try:
        with open(partial, "x", encoding="utf-8", errors="backslashreplace", newline="") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        if target.exists():
            shutil.copymode(target, partial)
        os.replace(partial, target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
