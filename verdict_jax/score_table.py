"""Settles a table of anybody's scores as a stream: every row with its equilibrium and choice."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from io import TextIOBase
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int, UInt64

from verdict_jax import defaults
from verdict_jax.decisions import decide_each
from verdict_jax.equilibrium import valid_stubbornness
from verdict_jax.rules import RuleParameters
from verdict_jax.score_reader import ScoreBlock, ScoreTable, joined, open_scores
from verdict_jax.score_records import CSV_ENDINGS, JSON_LINES_ENDINGS, ScoreTableError
from verdict_jax.whole_file import whole_or_absent

SETTLED_ROWS = 8192
"""Rows of one compiled call: groups of up to n candidates are settled SETTLED_ROWS / n at a time.

A group is padded to the next power of 4, so that a table compiles at most once per power.
"""

_PAPER_JUDGES = (("visual", "v"), ("logical", "l"), ("contextual", "c"))
_PAPER_STUBBORNNESS = {
    name: stubbornness
    for names, stubbornness in zip(_PAPER_JUDGES, defaults.STUBBORNNESS, strict=True)
    for name in names
}


@dataclass(frozen=True)
class TableSettings:
    """How a score table is read and settled.

    Attributes:
        judges: columns that hold scores; empty: every column but the group.
        stubbornness: lambda > 0 of each judge, in their order; empty: `default_stubbornness`.
        group: column that names the decision a row is a candidate of; None: a row is a decision.
        tau: the settled mean must exceed it to be accepted.
        epsilon: the dispersion must stay below it to be accepted.
    """

    judges: tuple[str, ...] = ()
    stubbornness: tuple[float, ...] = ()
    group: str | None = None
    tau: float = defaults.TAU
    epsilon: float = defaults.EPSILON


@dataclass(frozen=True)
class SettledRows:
    """What is added to each row of a table; float64, NaN where there is nothing to say.

    Attributes:
        consensus: the settled score of each judge; NaN for a missing one.
        mean: mean of the settled scores; NaN with fewer than two judges.
        dispersion: their mean absolute deviation; NaN with fewer than two judges.
        accepted: mean > tau and dispersion < epsilon, with the tolerance of `verdict_jax.rules`.
        chosen: the candidate that the rule `verdict` takes in its group, accepted or fallback.
    """

    consensus: Float[np.ndarray, "rows judges"]
    mean: Float[np.ndarray, " rows"]
    dispersion: Float[np.ndarray, " rows"]
    accepted: Bool[np.ndarray, " rows"]
    chosen: Bool[np.ndarray, " rows"]


def default_stubbornness(judges: Sequence[str]) -> tuple[float, ...]:
    """The paper's lambda if every judge is one of the paper's, by name; else 1 for each.

    The paper's judges are visual 1.5, logical 1.0 and contextual 0.8, or V, L and C; upper and
    lower case, their order and how many of them there are do not matter.
    """
    names = [judge.casefold() for judge in judges]
    if all(name in _PAPER_STUBBORNNESS for name in names):
        return tuple(_PAPER_STUBBORNNESS[name] for name in names)
    return (1.0,) * len(names)


def settle_file(
    source: Path,
    out: Path | TextIOBase,
    settings: TableSettings,
    progress: Callable[[int], None] = lambda position: None,
) -> None:
    """Reads a score table, settles it and writes every row with its figures, as a stream.

    After the row's own columns, as they stand, come `consensus_<judge>` for each judge, `mean`,
    `dispersion`, `accepted` and `chosen` (true or false). Figures are shortest decimal numbers
    that read back as the same float64; empty (null in JSON) where there is nothing to say.
    Memory holds one block of rows, the largest group, and 8 bytes per group seen.

    Args:
        source: CSV or JSON Lines, see `open_scores`.
        out: a .csv, .jsonl or .ndjson file, which appears whole or not at all (an older one
            stays as it was on any error); or a text stream, which gets CSV as rows are settled.
        progress: told the bytes read so far after each block.

    Raises:
        ScoreTableError: a table, column, cell or setting that cannot be used; one line that names
            the file, row and column.
        TargetError: no file can appear at `out`.
        OSError: a file cannot be read or written.
    """
    if math.isnan(settings.tau) or math.isnan(settings.epsilon):
        raise ScoreTableError(f"{source}: tau and epsilon must be numbers, not NaN")
    json_lines = isinstance(out, Path) and _writes_json_lines(out)
    with open_scores(source, settings.judges, settings.group) as table:
        stubbornness = _stubbornness(table, settings.stubbornness)
        added = _added_columns(table)
        if isinstance(out, Path):
            with whole_or_absent(out) as stream:
                _write(table, added, stubbornness, settings, stream, json_lines, progress)
        else:
            _write(table, added, stubbornness, settings, out, json_lines, progress)


def settle_rows(
    scores: Float[np.ndarray, "rows judges"],
    mask: Bool[np.ndarray, "rows judges"],
    sizes: Int[np.ndarray, " groups"],
    stubbornness: Sequence[float],
    tau: float,
    epsilon: float,
) -> SettledRows:
    """Settles consecutive groups of candidates in float64; `sizes` are the groups' row counts.

    A candidate with an unmasked score outside [0, 1] is NaN, neither accepted nor chosen.

    Raises:
        ValueError: shapes that do not fit, or fewer than two judges.
    """
    rows, judges = scores.shape
    settled = SettledRows(
        consensus=np.full((rows, judges), np.nan),
        mean=np.full(rows, np.nan),
        dispersion=np.full(rows, np.nan),
        accepted=np.zeros(rows, bool),
        chosen=np.zeros(rows, bool),
    )
    starts = np.cumsum(sizes) - sizes
    buckets = 4 ** np.ceil(np.log2(sizes) / 2).astype(np.int64)
    with jax.enable_x64(True):
        parameters = RuleParameters(
            stubbornness=np.asarray(stubbornness, np.float64),
            tau=np.float64(tau),
            epsilon=np.float64(epsilon),
        )
        for bucket in np.unique(buckets).tolist():
            members = np.flatnonzero(buckets == bucket)
            together = max(1, SETTLED_ROWS // bucket)
            for first in range(0, len(members), together):
                picked = members[first : first + together]
                # Row of each candidate of each group; -1 pads groups and the call.
                row = np.full((together, bucket), -1)
                offset = np.arange(bucket)
                row[: len(picked)] = np.where(
                    offset < sizes[picked, None], starts[picked, None] + offset, -1
                )
                present = row >= 0
                verdict, equilibrium = decide_each(
                    "verdict",
                    np.where(present[..., None], scores[row], 0.0),
                    mask[row] & present[..., None],
                    present,
                    parameters,
                    jnp.broadcast_to(jax.random.key(0), (together,)),  # `verdict` draws nothing.
                )
                assert equilibrium is not None, f"{judges} judges settle nothing"
                target = row[present]
                settled.consensus[target] = np.asarray(equilibrium.consensus)[present]
                settled.mean[target] = np.asarray(equilibrium.mean)[present]
                settled.dispersion[target] = np.asarray(equilibrium.dispersion)[present]
                settled.accepted[target] = np.asarray(verdict.accepted)[present]
                index = np.asarray(verdict.index)
                decided = np.flatnonzero(index >= 0)
                settled.chosen[row[decided, index[decided]]] = True
    return settled


def _stubbornness(table: ScoreTable, given: Sequence[float]) -> tuple[float, ...]:
    if not given:
        return default_stubbornness(table.judges)
    if len(given) != len(table.judges):
        raise ScoreTableError(
            f"{table.path}: --stubbornness gives {len(given)} for "
            f"{len(table.judges)} judges ({', '.join(table.judges)}); give one for each"
        )
    wrong = ~valid_stubbornness(np.asarray(given, np.float64))
    if wrong.any():
        judge = int(wrong.argmax())
        limits = np.finfo(np.float64)
        raise ScoreTableError(
            f"{table.path}, column {table.judges[judge]!r}: stubbornness {given[judge]:g} must be "
            f"positive and finite ({limits.tiny:.2g} to {1 / limits.tiny:.2g}), or the equilibrium "
            "is not unique"
        )
    return tuple(given)


def _added_columns(table: ScoreTable) -> list[str]:
    added = [f"consensus_{judge}" for judge in table.judges]
    added += ["mean", "dispersion", "accepted", "chosen"]
    for column, name in enumerate(table.columns, 1):
        if name.strip() in added:
            raise ScoreTableError(
                f"{table.path}, column {name.strip()!r} (column {column}): the output adds a "
                "column of this name; rename or remove the file's (is it already settled?)"
            )
    return added


class _SeenGroups:
    """The groups seen so far, 8 bytes each: two groups collide with probability 2^-64.

    Sorted arrays of doubling sizes (a log-structured merge): one lookup is a binary search in
    each, and a hash is moved log2(groups) times in all.
    """

    def __init__(self) -> None:
        self._runs: list[UInt64[np.ndarray, " run"]] = []

    def add(self, groups: Sequence[str]) -> int | None:
        """Adds groups; if one was seen before (or comes twice), the index of the first such."""
        if not groups:
            return None
        hashes = np.frombuffer(
            b"".join(
                blake2b(group.encode(errors="surrogatepass"), digest_size=8).digest()
                for group in groups
            ),
            np.uint64,
        )
        new, first = np.unique(hashes, return_index=True)
        again = np.ones(len(hashes), bool)
        again[first] = False
        for run in self._runs:
            found = np.minimum(np.searchsorted(run, hashes), len(run) - 1)
            again |= run[found] == hashes
        if again.any():
            return int(again.argmax())
        while self._runs and len(self._runs[-1]) <= 2 * len(new):
            new = np.concatenate([self._runs.pop(), new])
            new.sort(kind="stable")
        self._runs.append(new)
        return None


def _decisions(table: ScoreTable) -> Iterator[tuple[ScoreBlock, Int[np.ndarray, " groups"]]]:
    """Blocks of whole groups with the groups' sizes, in the order of the file."""
    if table.group is None:
        for block in table.blocks:
            yield block, np.ones(len(block), np.int64)
        return
    seen = _SeenGroups()
    pending: list[ScoreBlock] = []  # Rows of one group, which may go on.
    rows = 0
    for block in table.blocks:
        before = pending[-1].groups[-1] if pending else None
        fresh = [
            row
            for row, (group, previous) in enumerate(
                zip(block.groups, [before, *block.groups[:-1]], strict=True)
            )
            if group != previous
        ]
        again = seen.add([block.groups[row] for row in fresh])
        if again is not None:
            row = fresh[again]
            raise ScoreTableError(
                f"{table.path}, {block.place(row)}, column {table.group!r}: group "
                f"{block.groups[row]!r} comes back after other groups; sort the rows by group"
            )
        if fresh and rows + fresh[-1] > 0:
            starts = [0] if pending else []
            starts += [rows + row for row in fresh]
            whole = [*pending, block.part(0, fresh[-1])]
            yield joined([part for part in whole if len(part)]), np.diff(starts)
            block = block.part(fresh[-1], len(block))
            pending, rows = [], 0
        pending.append(block)
        rows += len(block)
    yield joined(pending), np.array([rows])


def _write(
    table: ScoreTable,
    added: Sequence[str],
    stubbornness: Sequence[float],
    settings: TableSettings,
    stream: TextIOBase,
    json_lines: bool,
    progress: Callable[[int], None],
) -> None:
    names = [*table.columns, *added]
    started = False
    for block, sizes in _decisions(table):
        settled = settle_rows(
            block.scores, block.mask, sizes, stubbornness, settings.tau, settings.epsilon
        )
        if json_lines:
            stream.write(_json_text(block, settled, names))
        else:
            if not started:
                stream.writelines(_csv_lines([names], table.delimiter))
            stream.write(_csv_text(block, settled, table.delimiter))
        started = True
        progress(block.end)


def _figures(settled: SettledRows, missing: str) -> Iterator[tuple[str, ...]]:
    columns: list[list[str]] = []
    for column in (*settled.consensus.T, settled.mean, settled.dispersion):
        texts = list(map(repr, column.tolist()))
        for row in np.flatnonzero(np.isnan(column)).tolist():
            texts[row] = missing
        columns.append(texts)
    for flags in (settled.accepted, settled.chosen):
        columns.append(np.where(flags, "true", "false").tolist())
    return zip(*columns, strict=True)


class _Lines(list[str]):
    write = list.append


def _csv_lines(rows: Sequence[Sequence[str]], delimiter: str) -> list[str]:
    lines = _Lines()
    # The writer quotes a cell for the characters of its line end only: with \r\n it quotes cells
    # that hold either of them. The table itself is written with \n.
    csv.writer(lines, delimiter=delimiter, lineterminator="\r\n").writerows(rows)
    return [line[:-2] + "\n" for line in lines]


def _csv_text(block: ScoreBlock, settled: SettledRows, delimiter: str) -> str:
    figures = map(delimiter.join, _figures(settled, ""))
    if block.decimal_mark == ",":
        figures = (text.replace(".", ",") for text in figures)
    return "".join(
        [
            f"{line[:-1]}{delimiter}{text}\n"
            for line, text in zip(_csv_lines(block.cells, delimiter), figures, strict=True)
        ]
    )


def _json_text(block: ScoreBlock, settled: SettledRows, names: Sequence[str]) -> str:
    keys = [json.dumps(name, ensure_ascii=False) + ": " for name in names]
    inputs, added = keys[: len(block.cells[0])], keys[len(block.cells[0]) :]
    encode = json.JSONEncoder(ensure_ascii=False).encode
    sources = block.sources or [
        "{" + ", ".join([key + encode(cell) for key, cell in zip(inputs, cells, strict=True)]) + "}"
        for cells in block.cells
    ]
    lines: list[str] = []
    for source, figures in zip(sources, _figures(settled, "null"), strict=True):
        body = source[:-1].rstrip()
        if body != "{":
            body += ", "
        pairs = ", ".join([key + text for key, text in zip(added, figures, strict=True)])
        lines.append(f"{body}{pairs}}}\n")
    return "".join(lines)


def _writes_json_lines(out: Path) -> bool:
    ending = out.suffix.lower()
    if ending in CSV_ENDINGS or ending in JSON_LINES_ENDINGS:
        return ending in JSON_LINES_ENDINGS
    endings = ", ".join(CSV_ENDINGS + JSON_LINES_ENDINGS)
    raise ScoreTableError(f"{out}: --out must end in one of {endings}")
