"""Reads a table of judges' scores, CSV or JSON Lines, as a stream of checked blocks."""

from __future__ import annotations

import difflib
import math
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float

from verdict_jax.score_records import Record, ScoreTableError, open_records

BLOCK_ROWS = 8192
BLOCK_BYTES = 16 * 2**20
"""Rows read and checked together: BLOCK_ROWS of them, fewer where their cells are long texts.

This bounds what is held in memory besides the largest group.
"""

_SWAP_MARKS = str.maketrans(",.", ".,")


@dataclass(frozen=True)
class ScoreBlock:
    """Consecutive rows of a score table.

    Attributes:
        cells: every row's cells as text, in the order of the header.
        sources: every row's JSON text as it stands in the file; empty for CSV.
        lines: the line of the file each row starts on, from 1, as an editor counts.
        first_row: the number of the block's first row, from 1, the header not counted.
        groups: every row's group; empty where the table is read without a group column.
        scores: float64; 0 where a judge is missing.
        mask: False where a judge is missing.
        decimal_mark: "," where a semicolon file writes 0,8 for 0.8; else ".".
        end: bytes of the file read so far; 0 where the file cannot tell (a pipe).
    """

    cells: list[list[str]]
    sources: list[str]
    lines: list[int]
    first_row: int
    groups: list[str]
    scores: Float[np.ndarray, "rows judges"]
    mask: Bool[np.ndarray, "rows judges"]
    decimal_mark: str
    end: int

    def __len__(self) -> int:
        return len(self.cells)

    def place(self, row: int) -> str:
        """How an error names the block's `row` (from 0)."""
        return f"row {self.first_row + row} (line {self.lines[row]})"

    def part(self, start: int, stop: int) -> ScoreBlock:
        """Rows `start` to `stop` of the block (from 0, `stop` not included)."""
        return ScoreBlock(
            cells=self.cells[start:stop],
            sources=self.sources[start:stop],
            lines=self.lines[start:stop],
            first_row=self.first_row + start,
            groups=self.groups[start:stop],
            scores=self.scores[start:stop],
            mask=self.mask[start:stop],
            decimal_mark=self.decimal_mark,
            end=self.end,
        )


def joined(blocks: Sequence[ScoreBlock]) -> ScoreBlock:
    """One block of the rows of consecutive blocks."""
    if len(blocks) == 1:
        return blocks[0]
    return ScoreBlock(
        cells=list(chain.from_iterable(block.cells for block in blocks)),
        sources=list(chain.from_iterable(block.sources for block in blocks)),
        lines=list(chain.from_iterable(block.lines for block in blocks)),
        first_row=blocks[0].first_row,
        groups=list(chain.from_iterable(block.groups for block in blocks)),
        scores=np.concatenate([block.scores for block in blocks]),
        mask=np.concatenate([block.mask for block in blocks]),
        decimal_mark=blocks[-1].decimal_mark,
        end=blocks[-1].end,
    )


@dataclass(frozen=True)
class ScoreTable:
    """An opened score table.

    Attributes:
        path: the file, as the caller named it.
        columns: the header's cells as text (the keys of the first object in JSON Lines).
        judges: the judges' names in the order of `ScoreBlock.scores`' columns.
        group: the group column's name, None without one.
        delimiter: "," or ";"; "," for JSON Lines.
        blocks: the rows, read as they are asked for; raises ScoreTableError.
    """

    path: Path
    columns: tuple[str, ...]
    judges: tuple[str, ...]
    group: str | None
    delimiter: str
    blocks: Iterator[ScoreBlock]


@contextmanager
def open_scores(
    path: Path, judges: Sequence[str] = (), group: str | None = None
) -> Iterator[ScoreTable]:
    """Opens a CSV (comma or semicolon) or JSON Lines file of scores in [0, 1].

    The form of the file is as `open_records` says. Names are compared without the blanks around
    them. A missing judge is an empty cell, an empty string or null; in JSON Lines also a key that
    a later row leaves out. A semicolon file whose first rows write 0,8 is read with a decimal
    comma throughout.

    Args:
        judges: the columns to read as judges; empty: every column but the group.
        group: the column that names the decision a row is a candidate of.

    Raises:
        ScoreTableError: on entering, for a bad header; from `blocks`, for a bad row.
        OSError: the file cannot be opened or read.
    """
    with open_records(path) as table:
        layout = _layout(path, table.line, table.columns, table.delimiter, judges, group)
        yield ScoreTable(
            path=path,
            columns=table.columns,
            judges=tuple(layout.names[column] for column in layout.judges),
            group=None if layout.group is None else layout.names[layout.group],
            delimiter=table.delimiter,
            blocks=_blocks(layout, table.records, table.position),
        )


@dataclass(frozen=True)
class _Layout:
    """What each column is; `judges` and `group` are columns from 0."""

    path: Path
    names: tuple[str, ...]
    judges: tuple[int, ...]
    group: int | None
    delimiter: str
    judges_were_named: bool


def _layout(
    path: Path,
    line: int,
    columns: Sequence[str],
    delimiter: str,
    judges: Sequence[str],
    group: str | None,
) -> _Layout:
    header = f"{path}, header (line {line})"
    names = tuple(name.strip() for name in columns)
    for column, name in enumerate(names):
        if name in names[:column]:
            raise ScoreTableError(
                f"{header}, column {name!r}: the name is there twice (columns "
                f"{names.index(name) + 1} and {column + 1}); rename one"
            )
    group_column = None if group is None else _find(header, names, group, "--group")
    if judges:
        picked = tuple(_find(header, names, judge, "--judges") for judge in judges)
    else:
        picked = tuple(column for column in range(len(names)) if column != group_column)
    for index, column in enumerate(picked):
        if column in picked[:index]:
            raise ScoreTableError(
                f"{header}, column {names[column]!r}: --judges names it twice; name it once"
            )
        if column == group_column:
            raise ScoreTableError(
                f"{header}, column {names[column]!r}: it is the group; take it out of --judges"
            )
        if not names[column]:
            raise ScoreTableError(
                f"{header}, column {column + 1}: it has no name; name it, or say which columns "
                "are judges with --judges"
            )
    if len(picked) < 2:
        found = f"column {names[picked[0]]!r}: the only judge" if picked else "no judge"
        tabs = "; columns are told apart by commas or semicolons, not by tabs"
        hint = tabs if any("\t" in name for name in names) else ""
        raise ScoreTableError(f"{header}, {found}; the game needs two judges or more{hint}")
    return _Layout(path, names, picked, group_column, delimiter, bool(judges))


def _find(header: str, names: Sequence[str], wanted: str, option: str) -> int:
    if wanted.strip() in names:
        return names.index(wanted.strip())
    folded = {name.casefold(): name for name in reversed(names)}
    close = difflib.get_close_matches(wanted.strip().casefold(), folded, n=1)
    guess = f"; did you mean {folded[close[0]]!r}?" if close else ""
    raise ScoreTableError(
        f"{header}, column {wanted!r}: {option} names it and the file has no such column{guess} "
        f"(columns: {', '.join(map(repr, names))})"
    )


def _blocks(
    layout: _Layout, records: Iterator[Record], position: Callable[[], int]
) -> Iterator[ScoreBlock]:
    first_row, decimal_mark = 1, None
    for batch, failure in _batches(records, position):
        if batch:
            cells = [cells for _, cells, _ in batch]
            if decimal_mark is None:
                decimal_mark = _decimal_mark(layout, cells)
            block = ScoreBlock(
                cells=cells,
                sources=[source for _, _, source in batch if source],
                lines=[line for line, _, _ in batch],
                first_row=first_row,
                groups=[] if layout.group is None else [row[layout.group] for row in cells],
                scores=np.zeros((len(cells), len(layout.judges))),
                mask=np.zeros((len(cells), len(layout.judges)), bool),
                decimal_mark=decimal_mark,
                end=position(),
            )
            _fill_scores(layout, block)
            _check_groups(layout, block)
            first_row += len(block)
            yield block
        if failure is not None:
            raise failure
    if first_row == 1:
        raise ScoreTableError(f"{layout.path}: a header and no rows; add a row per candidate")


def _batches(
    records: Iterator[Record], position: Callable[[], int]
) -> Iterator[tuple[list[Record], ScoreTableError | None]]:
    """Lists of rows; the rows before a bad one come with its error, to be checked first."""
    batch: list[Record] = []
    start = position()
    try:
        for record in records:
            batch.append(record)
            rows = len(batch)
            if rows == BLOCK_ROWS or (rows % 64 == 0 and position() - start > BLOCK_BYTES):
                yield batch, None
                batch, start = [], position()
    except ScoreTableError as failure:
        yield batch, failure
        return
    yield batch, None


def _decimal_mark(layout: _Layout, cells: Sequence[list[str]]) -> str:
    if layout.delimiter != ";":
        return "."
    text = "".join(row[column] for row in cells for column in layout.judges)
    return "," if "," in text and "." not in text else "."


def _check_groups(layout: _Layout, block: ScoreBlock) -> None:
    for row, group in enumerate(block.groups):
        if not group or group.isspace():
            assert layout.group is not None
            raise ScoreTableError(
                f"{layout.path}, {block.place(row)}, column {layout.names[layout.group]!r}: "
                "the row has no group; fill the cell"
            )


def _fill_scores(layout: _Layout, block: ScoreBlock) -> None:
    """Writes the block's scores and mask. Raises ScoreTableError for the first bad cell."""
    faults: list[tuple[int, int]] = []
    for judge, column in enumerate(layout.judges):
        texts = [row[column] for row in block.cells]
        scores, mask, fault = _column_scores(texts, block.decimal_mark)
        block.scores[:, judge] = scores
        block.mask[:, judge] = mask
        if fault is not None:
            faults.append((fault, column))
    if not faults:
        return
    row, column = min(faults)
    reason = _fault(block.cells[row][column], layout.delimiter, block.decimal_mark)
    if not layout.judges_were_named:
        fitting = [
            name
            for other, name in enumerate(layout.names)
            if name
            and other != layout.group
            and _column_scores([row[other] for row in block.cells], block.decimal_mark)[2] is None
        ]
        shown = shlex.join(fitting) if len(fitting) > 1 else "NAME NAME ..."
        reason += f"; if {layout.names[column]!r} is not a judge, name the judges: --judges {shown}"
    raise ScoreTableError(
        f"{layout.path}, {block.place(row)}, column {layout.names[column]!r}: {reason}"
    )


def _column_scores(
    texts: Sequence[str], decimal_mark: str
) -> tuple[Float[np.ndarray, " rows"], Bool[np.ndarray, " rows"], int | None]:
    """Scores (0 where missing), mask, and the first row that holds no score in [0, 1]."""
    if decimal_mark == ",":
        texts = [text.translate(_SWAP_MARKS) for text in texts]
    mask = np.ones(len(texts), dtype=bool)
    try:
        scores = np.fromiter(map(float, texts), np.float64, len(texts))
    except ValueError:
        mask = np.array([bool(text.strip()) for text in texts])
        scores = np.array([_number(text) if text.strip() else 0.0 for text in texts])
    wrong = ~((scores >= 0) & (scores <= 1))
    if "_" in "".join(texts):  # float() reads 0_5 as 5; no table means that.
        wrong |= np.array(["_" in text for text in texts])
    return scores, mask, int(wrong.argmax()) if wrong.any() else None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _fault(cell: str, delimiter: str, decimal_mark: str) -> str:
    shown = repr(cell if len(cell) <= 40 else cell[:37] + "...")
    with_point = cell.strip().replace(",", ".", 1)
    if decimal_mark == "," and "." in cell:
        return f"{shown} has a decimal point and the rows above a decimal comma; use one of them"
    if decimal_mark == "." and "," in cell and not math.isnan(_number(with_point)):
        others = "its first rows have points or whole numbers" if delimiter == ";" else ""
        others = others or "that is read in files with semicolons only"
        return f"{shown} has a decimal comma, {others}; write {with_point}"
    text = cell.translate(_SWAP_MARKS) if decimal_mark == "," else cell
    if text.strip().lower().lstrip("+-") == "nan":
        return f"{shown} is no score; leave the cell empty for a missing judge"
    if "_" in cell or math.isnan(_number(text)):
        return f"{shown} is not a number; a score is in [0, 1], an empty cell a missing judge"
    return f"{shown} is outside [0, 1]; rescale the scores"
