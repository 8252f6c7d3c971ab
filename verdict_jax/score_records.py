"""Splits a score file, CSV or JSON Lines, into rows of text with their exact lines."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import BinaryIO

CSV_ENDINGS = (".csv",)
JSON_LINES_ENDINGS = (".jsonl", ".ndjson")

_CELL_LIMIT = 64 * 2**20  # A quote that is never closed must not read a whole file into one cell.
_HEADER_LIMIT = 2**20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class ScoreTableError(ValueError):
    """A score table that cannot be used; the message is one line with file, row and column."""


Record = tuple[int, list[str], str]
"""One row: the line of the file it starts on (from 1), its cells as text, its JSON text or "".

A plain tuple: tables have millions of them.
"""


@dataclass(frozen=True)
class RecordTable:
    """An opened file.

    Attributes:
        line: the header's line.
        columns: the header's cells (the keys of the first object in JSON Lines).
        delimiter: "," or ";"; "," for JSON Lines.
        records: the rows, read as they are asked for; raises ScoreTableError.
        position: bytes read so far; 0 where the file cannot tell (a pipe).
    """

    line: int
    columns: tuple[str, ...]
    delimiter: str
    records: Iterator[Record]
    position: Callable[[], int]


@contextmanager
def open_records(path: Path) -> Iterator[RecordTable]:
    """Opens a CSV or JSON Lines file in UTF-8, with or without byte-order mark, LF or CRLF.

    The form follows the ending (.csv; .jsonl, .ndjson), else the first character: `{` starts
    JSON Lines. A CSV's header decides its delimiter: the one of `;` and `,` that occurs more
    often outside quotes, `,` when they tie. Every row has the header's number of cells; a JSON
    row may leave keys out ("" for the cell) and have no new ones. Blank lines are no rows.

    Raises:
        ScoreTableError: on entering, for a file without header; from `records`, for a bad row.
        OSError: the file cannot be opened or read.
    """
    limit = csv.field_size_limit(_CELL_LIMIT)
    try:
        with open(path, "rb") as stream:
            lines = _decoded(path, stream)
            line, first = _first_line(path, lines)
            lines = chain([first], lines)
            if _is_json_lines(path, first):
                delimiter = ","
                columns, records = _json_records(path, line, lines)
            else:
                delimiter, columns, records = _csv_records(path, line, lines)
            position = stream.tell if stream.seekable() else int
            yield RecordTable(line, tuple(columns), delimiter, records, position)
    finally:
        csv.field_size_limit(limit)


def _is_json_lines(path: Path, text: str) -> bool:
    ending = path.suffix.lower()
    if ending in JSON_LINES_ENDINGS or ending in CSV_ENDINGS:
        return ending in JSON_LINES_ENDINGS
    if text.lstrip().startswith("["):
        raise ScoreTableError(f"{path}: looks like a JSON array; write one JSON object a line")
    return text.lstrip().startswith("{")


def _decoded(path: Path, stream: BinaryIO) -> Iterator[str]:
    for number, raw in enumerate(stream, 1):
        if number == 1 and raw.startswith(_BYTE_ORDER_MARK):
            raw = raw[len(_BYTE_ORDER_MARK) :]
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            raise ScoreTableError(
                f"{path}, line {number}: byte {error.start + 1} is not UTF-8; "
                "save the table as UTF-8 text"
            ) from error
        if number == 1 and "\0" in text:
            raise ScoreTableError(f"{path}, line 1: not UTF-8 text; save the table as UTF-8 text")
        yield text


def _first_line(path: Path, lines: Iterator[str]) -> tuple[int, str]:
    for number, text in enumerate(lines, 1):
        if text.strip():
            return number, text
    raise ScoreTableError(f"{path}: the file is empty; it needs a column per judge")


def _csv_records(
    path: Path, line: int, lines: Iterator[str]
) -> tuple[str, list[str], Iterator[Record]]:
    head: list[str] = []
    size = quotes = 0
    for text in lines:  # A quoted name may hold line breaks, so the header may span lines.
        head.append(text)
        size += len(text)
        quotes += text.count('"')
        if quotes % 2 == 0 or size > _HEADER_LIMIT:
            break
    outside = "".join("".join(head).split('"')[::2])
    delimiter = ";" if outside.count(";") > outside.count(",") else ","
    records = _parsed_csv(path, line, chain(head, lines), delimiter)
    return delimiter, next(records)[1], records


def _parsed_csv(path: Path, line: int, lines: Iterator[str], delimiter: str) -> Iterator[Record]:
    """The header, then every row. `lines` starts at line `line` of the file."""
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    start, row, columns = line, 0, 0
    try:
        for cells in reader:
            if cells:
                if row == 0:
                    columns = len(cells)
                elif len(cells) != columns:
                    raise ScoreTableError(_uneven(path, row, start, len(cells), columns))
                row += 1
                yield start, cells, ""
            start = line + reader.line_num
    except csv.Error as error:
        place = f"row {row} (line {start})" if row else f"header (line {start})"
        raise ScoreTableError(
            f"{path}, {place}: not well-formed CSV: {error}; check its quotes and line breaks"
        ) from error


def _uneven(path: Path, row: int, line: int, cells: int, columns: int) -> str:
    what = f"column {cells + 1} is missing" if cells < columns else f"column {columns + 1} is extra"
    return (
        f"{path}, row {row} (line {line}): {what}: the header has {columns} columns and this row "
        f"has {cells}; quote cells that hold the delimiter, leave missing cells empty"
    )


class _Pairs(list[tuple[str, object]]):
    """A JSON object with its keys as they stand, doubled ones included."""


class _Number(str):
    """A JSON number as it is written."""


_JSON = json.JSONDecoder(
    object_pairs_hook=_Pairs, parse_float=_Number, parse_int=_Number, parse_constant=_Number
)


def _json_records(
    path: Path, line: int, lines: Iterator[str]
) -> tuple[list[str], Iterator[Record]]:
    first = next(lines)
    header = [key for key, _ in _json_object(f"{path}, row 1 (line {line})", first)]
    return header, _parsed_json(path, line, chain([first], lines), header)


def _parsed_json(
    path: Path, line: int, lines: Iterator[str], header: list[str]
) -> Iterator[Record]:
    known = set(header)
    row = 0
    for number, text in enumerate(lines, line):
        if text.isspace():
            continue
        row += 1
        place = f"{path}, row {row} (line {number})"
        values = dict(_json_object(place, text))
        if not known.issuperset(values):
            new = next(key for key in values if key not in known)
            raise ScoreTableError(
                f"{place}, column {new!r}: not a key of the first row; give the first row every "
                "key (null where it has no value)"
            )
        try:
            cells = [_cell_text(values.get(name)) for name in header]
        except RecursionError as error:
            raise ScoreTableError(f"{place}: the JSON is nested too deeply") from error
        yield number, cells, text.strip()


def _json_object(place: str, text: str) -> _Pairs:
    try:
        value = _JSON.decode(text.strip())
    except json.JSONDecodeError as error:
        raise ScoreTableError(
            f"{place}: not one JSON object a line: {error.msg} at character {error.colno}"
        ) from error
    except RecursionError as error:
        raise ScoreTableError(f"{place}: the JSON is nested too deeply") from error
    if not isinstance(value, _Pairs):
        raise ScoreTableError(f"{place}: not a JSON object; write one object a line")
    keys = [key for key, _ in value]
    if len(set(keys)) < len(keys):
        doubled = next(key for index, key in enumerate(keys) if key in keys[:index])
        raise ScoreTableError(f"{place}, column {doubled!r}: the key is there twice; rename one")
    return value


def _cell_text(value: object) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else _json_text(value)


def _json_text(value: object) -> str:
    if isinstance(value, _Number):
        return value
    if isinstance(value, _Pairs):
        inner = (f"{json.dumps(key, ensure_ascii=False)}: {_json_text(v)}" for key, v in value)
        return "{" + ", ".join(inner) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_json_text, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
