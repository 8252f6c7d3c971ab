"""Score tables: figures against an LU oracle, text that survives, errors that name their place."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import stat
import sys
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from verdict_jax import cli, decisions, score_reader, score_table
from verdict_jax.score_records import ScoreTableError
from verdict_jax.score_table import TableSettings, default_stubbornness, settle_file, settle_rows
from verdict_jax.whole_file import TargetError, check_target

deterministic = settings(
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

DEFAULTS = TableSettings()


def settled_text(path: Path, options: TableSettings = DEFAULTS) -> str:
    out = io.StringIO()
    settle_file(path, out, options)
    return out.getvalue()


def table_of(text: str, delimiter: str = ",") -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True))


def write(folder: Path, text: str | bytes, name: str = "scores.csv") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def csv_text(rows: Sequence[Sequence[str]], delimiter: str = ",", end: str = "\r\n") -> str:
    out = io.StringIO(newline="")
    csv.writer(out, delimiter=delimiter, lineterminator=end).writerows(rows)
    return out.getvalue()


def lu_oracle(
    scores: Sequence[float | None], stubbornness: Sequence[float]
) -> tuple[list[float | None], float | None, float | None]:
    """The definition of the game as a linear system over the judges that are there."""
    there = [judge for judge, score in enumerate(scores) if score is not None]
    m = len(there)
    if m < 2:
        return [None] * len(scores), None, None
    weights = np.array([stubbornness[judge] for judge in there])
    system = np.diag(1 + weights) - (1 - np.eye(m)) / (m - 1)
    raw = np.array([scores[judge] for judge in there], dtype=np.float64)
    solution = np.linalg.solve(system, weights * raw)
    consensus: list[float | None] = [None] * len(scores)
    for judge, value in zip(there, solution, strict=True):
        consensus[judge] = float(value)
    return consensus, float(solution.mean()), float(np.abs(solution - solution.mean()).mean())


def pick_oracle(
    rows: Sequence[Sequence[float | None]], stubbornness: Sequence[float], tau: float, eps: float
) -> tuple[list[bool], int | None]:
    """Accepted flags and the chosen row of one group, from the rule's definition."""
    ranks: dict[int, tuple[float, float, float]] = {}
    accepted = [False] * len(rows)
    for index, row in enumerate(rows):
        _, mean, dispersion = lu_oracle(row, stubbornness)
        if mean is None or dispersion is None:
            continue
        accepted[index] = mean > tau + 1e-6 and dispersion < eps - 1e-6
        ranks[index] = (mean, dispersion, min(score for score in row if score is not None))
    best = [index for index in ranks if accepted[index]] or list(ranks)
    fallback = not any(accepted)
    criteria = [
        lambda mean, dispersion, smallest: mean - dispersion if fallback else mean,
        lambda mean, dispersion, smallest: mean,
        lambda mean, dispersion, smallest: -dispersion,
        lambda mean, dispersion, smallest: smallest,
    ]
    for criterion in criteria:
        if best:
            top = max(criterion(*ranks[index]) for index in best)
            best = [index for index in best if criterion(*ranks[index]) >= top - 1e-6]
    return accepted, best[0] if best else None


# Figures


def test_worked_example(tmp_path: Path) -> None:
    path = write(tmp_path, "V,L,C\n.9,.3,.9\n.7,.7,.7\n.9,.5,.35\n.9,,\n")
    example, unanimous, shifted, lonely = table_of(settled_text(path))
    names = ["consensus_V", "consensus_L", "consensus_C", "mean", "dispersion"]
    expected = [0.8038, 0.5446, 0.7746, 0.7077, 0.1087]
    assert [round(float(example[name]), 4) for name in names] == expected
    assert (example["accepted"], example["chosen"]) == ("false", "true")
    assert [float(unanimous[name]) for name in names] == pytest.approx([0.7] * 4 + [0], abs=1e-15)
    assert (unanimous["accepted"], unanimous["chosen"]) == ("true", "true")
    assert round(float(shifted["mean"]), 4) == 0.6185
    assert [lonely[name] for name in names] == [""] * 5
    assert (lonely["accepted"], lonely["chosen"]) == ("false", "false")


def test_columns_come_in_order(tmp_path: Path) -> None:
    path = write(tmp_path, "id,b,note,a\nx,.5,n,.6\n")
    header = settled_text(path, TableSettings(judges=("a", "b"))).splitlines()[0]
    assert header == "id,b,note,a,consensus_a,consensus_b,mean,dispersion,accepted,chosen"


scores = st.one_of(st.none(), st.integers(0, 20).map(lambda k: k / 20), st.floats(0, 1))


@deterministic
@given(
    judges=st.sampled_from([2, 3]),
    sizes=st.lists(st.integers(1, 7), min_size=1, max_size=5),
    data=st.data(),
    grouped=st.booleans(),
    json_lines=st.booleans(),
    block_rows=st.sampled_from([1, 2, 3, 5, 8192]),
)
def test_every_figure_equals_the_oracle(
    judges: int,
    sizes: list[int],
    data: st.DataObject,
    grouped: bool,
    json_lines: bool,
    block_rows: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(score_reader, "BLOCK_ROWS", block_rows)
    row = st.lists(scores, min_size=judges, max_size=judges)
    rows = data.draw(st.lists(row, min_size=sum(sizes), max_size=sum(sizes)))
    stubbornness = data.draw(
        st.lists(st.floats(0.05, 20), min_size=judges, max_size=judges), label="stubbornness"
    )
    names = [f"j{judge}" for judge in range(judges)]
    groups = [f"g{number}" for number, size in enumerate(sizes) for _ in range(size)]
    if json_lines:
        text = "\n".join(
            json.dumps({"g": group, **dict(zip(names, row, strict=True))})
            for group, row in zip(groups, rows, strict=True)
        )
        path = write(tmp_path, text, "t.jsonl")
    else:
        body = [
            [group, *("" if score is None else repr(score) for score in row)]
            for group, row in zip(groups, rows, strict=True)
        ]
        path = write(tmp_path, csv_text([["g", *names], *body]))
    options = TableSettings(
        judges=tuple(names), stubbornness=tuple(stubbornness), group="g" if grouped else None
    )
    results = table_of(settled_text(path, options))

    def number(cell: str) -> float | None:
        return None if cell == "" else float(cell)

    for result, row in zip(results, rows, strict=True):
        consensus, mean, dispersion = lu_oracle(row, stubbornness)
        expected = [*consensus, mean, dispersion]
        found = [
            number(result[name])
            for name in [*(f"consensus_{name}" for name in names), "mean", "dispersion"]
        ]
        assert [value is None for value in found] == [value is None for value in expected]
        for a, b in zip(found, expected, strict=True):
            assert a is None or b is None or abs(a - b) < 1e-12
    start = 0
    for size in sizes if grouped else [1] * len(rows):
        accepted, chosen = pick_oracle(rows[start : start + size], stubbornness, 0.6, 0.1)
        part = results[start : start + size]
        assert [result["accepted"] == "true" for result in part] == accepted
        assert [i for i, result in enumerate(part) if result["chosen"] == "true"] == (
            [] if chosen is None else [chosen]
        )
        start += size


def test_thresholds_are_those_given(tmp_path: Path) -> None:
    path = write(tmp_path, "V,L,C\n.9,.3,.9\n")
    (row,) = table_of(settled_text(path, TableSettings(epsilon=0.11)))
    assert row["accepted"] == "true"
    (row,) = table_of(settled_text(path, TableSettings(epsilon=0.11, tau=0.71)))
    assert row["accepted"] == "false"


def test_figures_are_float64_and_x64_is_not_left_on(tmp_path: Path) -> None:
    path = write(tmp_path, "V,L,C\n.9,.3,.9\n")
    (row,) = table_of(settled_text(path))
    _, mean, dispersion = lu_oracle([0.9, 0.3, 0.9], [1.5, 1.0, 0.8])
    assert mean is not None and dispersion is not None
    assert abs(float(row["mean"]) - mean) < 4e-16
    assert abs(float(row["dispersion"]) - dispersion) < 4e-16
    assert jnp.asarray(np.float64(1)).dtype == jnp.float32


def test_a_group_of_any_size(tmp_path: Path) -> None:
    count = score_table.SETTLED_ROWS * 2 + 1
    generator = np.random.default_rng(0)
    raw = generator.uniform(size=(count, 3))
    raw[12345] = 1.0
    rows = [["one", *map(repr, row.tolist())] for row in raw]
    path = write(tmp_path, csv_text([["g", "V", "L", "C"], *rows]))
    results = table_of(settled_text(path, TableSettings(group="g")))
    assert [i for i, row in enumerate(results) if row["chosen"] == "true"] == [12345]


def test_stubbornness_by_name() -> None:
    assert default_stubbornness(["V", "L", "C"]) == (1.5, 1.0, 0.8)
    assert default_stubbornness(["contextual", "Visual", "LOGICAL"]) == (0.8, 1.5, 1.0)
    assert default_stubbornness(["l", "v"]) == (1.0, 1.5)
    assert default_stubbornness(["V", "L", "C", "D"]) == (1.0, 1.0, 1.0, 1.0)
    assert default_stubbornness(["alice", "bob"]) == (1.0, 1.0)


def test_stubbornness_follows_the_order_of_judges(tmp_path: Path) -> None:
    path = write(tmp_path, "V,L,C\n.9,.5,.35\n")
    given_order = TableSettings(judges=("C", "V", "L"), stubbornness=(0.8, 1.5, 1.0))
    (row,) = table_of(settled_text(path, given_order))
    (by_name,) = table_of(settled_text(path))
    assert round(float(row["mean"]), 4) == round(float(by_name["mean"]), 4) == 0.6185
    (equal,) = table_of(settled_text(path, TableSettings(stubbornness=(1.0, 1.0, 1.0))))
    assert float(equal["mean"]) == pytest.approx(1.75 / 3, abs=1e-15)


def test_compilations_are_bounded(tmp_path: Path) -> None:
    before = decisions.decide_each._cache_size()
    generator = np.random.default_rng(1)
    for count in (1, 37, 900):
        sizes = generator.integers(1, 17, count)
        groups = np.repeat(np.arange(count), sizes).tolist()
        rows = [[str(group), *["0.5"] * 3] for group in groups]
        path = write(tmp_path, csv_text([["g", "V", "L", "C"], *rows]))
        settled_text(path, TableSettings(group="g", tau=0.1 * count))
    assert decisions.decide_each._cache_size() - before <= 3  # padded to 1, 4 or 16


def test_settle_rows_takes_groups_of_mixed_size() -> None:
    sizes = np.array([3, 1, 5, 2])
    raw = np.random.default_rng(2).uniform(size=(11, 3))
    mask = np.ones((11, 3), bool)
    mask[3, 1:] = False
    settled = settle_rows(raw, mask, sizes, (1.5, 1.0, 0.8), 0.6, 0.1)
    start = 0
    for size in sizes.tolist():
        chosen = np.flatnonzero(settled.chosen[start : start + size])
        assert len(chosen) == (0 if start == 3 else 1)
        start += size


# Text that survives

cell = st.text(
    st.one_of(
        st.sampled_from(list(",;\"'\n\r\t \ufeff")),
        st.characters(exclude_categories=["Cs"], exclude_characters="\0"),
    ),
    max_size=8,
)
score_text = st.sampled_from(["0.5", " 0.5 ", "5e-1", ".5", "1", "0", "", "  ", "1.0", "+0.25"])


@deterministic
@given(
    rows=st.lists(st.tuples(cell, score_text, score_text, cell), min_size=1, max_size=6),
    names=st.lists(cell, min_size=2, max_size=2),
    delimiter=st.sampled_from([",", ";"]),
    end=st.sampled_from(["\n", "\r\n"]),
    mark=st.booleans(),
    out=st.sampled_from(["out.csv", "out.jsonl"]),
)
@example(  # csv.writer quotes a lone carriage return only if its own line end holds one.
    rows=[("a\rb", "0.5", "1", "\r")],
    names=["x\ry", ""],
    delimiter=",",
    end="\n",
    mark=False,
    out="out.csv",
)
def test_cells_survive(
    rows: list[tuple[str, str, str, str]],
    names: list[str],
    delimiter: str,
    end: str,
    mark: bool,
    out: str,
    tmp_path: Path,
) -> None:
    header = ["a" + names[0], "j1", "j2", "b" + names[1]]
    # A quoted line end of the other kind is part of its cell, whatever ends the rows.
    body = ("\ufeff" if mark else "") + csv_text([header, *rows], delimiter, "\r\n").replace(
        "\r\n", end
    )
    expected = list(csv.reader(io.StringIO(body.removeprefix("\ufeff"), newline=""),
                               delimiter=delimiter))  # fmt: skip
    path = write(tmp_path, body)
    settle_file(path, tmp_path / out, TableSettings(judges=("j1", "j2")))
    text = (tmp_path / out).read_bytes().decode()
    if out.endswith(".csv"):
        found = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True))
        assert [row[:4] for row in found] == expected
    else:
        objects = [json.loads(line) for line in text.split("\n")[:-1]]
        assert all(list(obj)[:4] == expected[0] for obj in objects)
        assert [list(obj.values())[:4] for obj in objects] == expected[1:]


json_value = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@deterministic
@given(
    rows=st.lists(
        st.tuples(json_value, st.sampled_from(["0.50", "5e-1", "1", "null", '"0.5"', '""'])),
        min_size=1,
        max_size=5,
    ),
    end=st.sampled_from(["\n", "\r\n", "\n\n"]),
    ascii_only=st.booleans(),
)
def test_json_lines_are_kept_to_the_letter(
    rows: list[tuple[object, str]], end: str, ascii_only: bool, tmp_path: Path
) -> None:
    sources = [
        '{"x": ' + json.dumps(value, ensure_ascii=ascii_only) + f' ,"j1":{score}, "j2": 0.25 }}'
        for value, score in rows
    ]
    data = end.join(sources).encode("utf-8", errors="surrogatepass")
    try:
        data.decode()
    except UnicodeDecodeError:
        return  # A lone surrogate written as itself is no UTF-8 file.
    path = write(tmp_path, data, "t.jsonl")
    settle_file(path, tmp_path / "out.ndjson", TableSettings(judges=("j1", "j2")))
    lines = (tmp_path / "out.ndjson").read_bytes().decode().split("\n")[:-1]
    assert len(lines) == len(sources)
    for line, source, (_, score) in zip(lines, sources, rows, strict=True):
        assert line.startswith(source[:-1].rstrip())
        added = list(json.loads(line).items())[3:]
        names = ["consensus_j1", "consensus_j2", "mean", "dispersion", "accepted", "chosen"]
        assert [name for name, _ in added] == names
        assert (added[2][1] is None) == (score in ("null", '""'))
        assert isinstance(added[4][1], bool)


def test_json_lines_to_csv(tmp_path: Path) -> None:
    text = (
        '{"id": 1.50, "j1": 0.5, "j2": 1, "n": {"a": [1e5, "x,\\"", null, true]}}\n'
        '{"j2": 0.5, "id": "\\ud800", "n": false}\n'
        "{}\n"
    )
    path = write(tmp_path, text, "table.txt")
    settle_file(path, tmp_path / "out.csv", TableSettings(judges=("j1", "j2")))
    rows = table_of((tmp_path / "out.csv").read_bytes().decode())
    assert [row["id"] for row in rows] == ["1.50", "\\ud800", ""]
    assert [row["n"] for row in rows] == ['{"a": [1e5, "x,\\"", null, true]}', "false", ""]
    assert [row["mean"] for row in rows] == ["0.75", "", ""]
    settle_file(path, tmp_path / "out.jsonl", TableSettings(judges=("j1", "j2")))
    last = (tmp_path / "out.jsonl").read_text().splitlines()[-1]
    assert last == (
        '{"consensus_j1": null, "consensus_j2": null, "mean": null, "dispersion": null, '
        '"accepted": false, "chosen": false}'
    )


def test_decimal_commas_of_a_semicolon_file(tmp_path: Path) -> None:
    path = write(tmp_path, "id;V;L;C\na,b;0,9;0,3;0,9\nc.d;1;0;\n")
    text = settled_text(path, TableSettings(judges=("V", "L", "C")))
    example, whole = table_of(text, ";")
    assert (example["id"], example["V"], whole["id"]) == ("a,b", "0,9", "c.d")
    assert round(float(example["mean"].replace(",", ".")), 4) == 0.7077
    assert "." not in example["dispersion"] and (example["chosen"], whole["L"]) == ("true", "0")
    settle_file(path, tmp_path / "out.jsonl", TableSettings(judges=("V", "L", "C")))
    first = json.loads((tmp_path / "out.jsonl").read_text().splitlines()[0])
    assert round(first["mean"], 4) == 0.7077


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.csv", "V,L,C\n1,0,1\n"),
        ("t.csv", "V;L;C\r\n1;0;1\r\n"),
        ("t.csv", '\ufeff"V";"L,1;x";C\n1;0;1'),
        ("t.csv", '"V\n1";L;C\n1;0;1'),
        ("t.csv", "\n V , L ,C\n1,0,1\n\n\n"),
        ("t", "V;L;C\n1;0;1"),
        ("t.txt", '\n{"V": 1, "L": 0, "C": 1}'),
        ("t.NDJSON", '\ufeff{"V": 1, "L": 0, "C": 1}\r\n'),
    ],
)
def test_forms_of_a_file(name: str, text: str, tmp_path: Path) -> None:
    path = write(tmp_path, text, name)
    with score_reader.open_scores(path) as table:
        (block,) = table.blocks
    assert block.scores.tolist() == [[1.0, 0.0, 1.0]]
    assert block.mask.all()
    assert table.delimiter == (";" if ";C" in text else ",")


# Errors name their place


@pytest.mark.parametrize(
    ("text", "options", "parts"),
    [
        ("", {}, ["the file is empty"]),
        ("\ufeff\n\n", {}, ["the file is empty"]),
        ("V,L\n", {}, ["a header and no rows"]),
        ("V\n.5\n", {}, ["header (line 1), column 'V'", "two judges"]),
        ("V\tL\n.5\t.5\n", {}, ["two judges", "tabs"]),
        ("V,g\n.5,a\n", {"group": "g"}, ["column 'V'", "two judges"]),
        ("V,L,V\n.5,.5,.5\n", {}, ["header (line 1), column 'V'", "columns 1 and 3"]),
        ("V,L, V \n.5,.5,.5\n", {}, ["column 'V'", "twice"]),
        ("V,L,\n.5,.5,.5\n", {}, ["column 3", "no name"]),
        ("V,L\n.5,.5\n.5,1.2\n", {}, ["row 2 (line 3), column 'L'", "outside [0, 1]"]),
        ("V,L\n.5,.5\n-1e-9,1.2\n", {}, ["row 2 (line 3), column 'V'", "outside [0, 1]"]),
        ("V,L\n.5,nan\n", {}, ["row 1 (line 2), column 'L': 'nan' is no score", "empty"]),
        ("V,L\n.5,-NaN\n", {}, ["column 'L': '-NaN' is no score"]),
        ("V,L\n.5,inf\n", {}, ["row 1 (line 2), column 'L'", "outside"]),
        ("V,L\n.5,1_0\n", {}, ["row 1 (line 2), column 'L'", "not a number"]),
        ("V,L\n.5,0_1\n", {}, ["row 1 (line 2), column 'L'", "not a number"]),
        ("V,L\n.5,80%\n", {}, ["row 1 (line 2), column 'L'", "not a number"]),
        ('V,L\n.5,"0,8"\n', {}, ["row 1 (line 2), column 'L'", "decimal comma", "write 0.8"]),
        ("V;L\n.5;0,8\n", {}, ["row 1 (line 2), column 'L'", "decimal comma", "write 0.8"]),
        ("V;L\n0,5;0,8\n0.5;0\n", {"block": 1}, ["row 2 (line 3), column 'V'", "decimal point"]),
        ("V,L\n.5\n", {}, ["row 1 (line 2): column 2 is missing"]),
        ("V,L\n.5,.5,.5\n", {}, ["row 1 (line 2): column 3 is extra"]),
        ("V,L\n.5,.5\n.5,x\n.5\n", {}, ["row 2 (line 3), column 'L'", "not a number"]),
        (
            "id,V,L\na,.5,.5\n",
            {},
            ["row 1 (line 2), column 'id': 'a' is not a number", "--judges V L"],
        ),
        (
            "id,q,the judge,L\n7,q,.5,.5\n",
            {"group": "q"},
            ["column 'id'", "outside", "--judges 'the judge' L"],
        ),
        ("V,L,C\n.5,.5,.5\n", {"judges": ("V", "K")}, ["column 'K'", "no such column", "'C'"]),
        (
            "visual,logical\n.5,.5\n",
            {"judges": ("Visual", "logicl")},
            ["column 'Visual'", "did you mean 'visual'?"],
        ),
        ("V,L\n.5,.5\n", {"judges": ("V", "L", "V")}, ["column 'V'", "twice"]),
        ("V,L,g\n.5,.5,a\n", {"judges": ("V", "g"), "group": "g"}, ["column 'g'", "the group"]),
        ("V,L\n.5,.5\n", {"group": "q"}, ["column 'q'", "--group", "columns: 'V', 'L'"]),
        ("V,L,g\n.5,.5,a\n.5,.5,\n", {"group": "g"}, ["row 2 (line 3), column 'g'", "no group"]),
        (
            "V,L,g\n1,1,a\n1,1,b\n1,1,b\n1,1,a\n1,1,b\n",
            {"group": "g"},
            ["row 4 (line 5), column 'g': group 'a' comes back"],
        ),
        (
            "V,L,g\n1,1,a\n1,1,b\n1,1,b\n1,1,a\n1,1,b\n",
            {"group": "g", "block": 2},
            ["row 4 (line 5), column 'g': group 'a' comes back"],
        ),
        ("V,L\n.5,.5\n", {"stubbornness": (1.0,)}, ["--stubbornness gives 1 for 2 judges (V, L)"]),
        ("V,L\n.5,.5\n", {"stubbornness": (1.0, 0.0)}, ["column 'L'", "stubbornness 0 must be"]),
        ("V,L\n.5,.5\n", {"stubbornness": (-1.0, 1.0)}, ["column 'V'", "stubbornness -1 must be"]),
        ("V,L\n.5,.5\n", {"stubbornness": (1.0, float("nan"))}, ["column 'L'", "stubbornness nan"]),
        ("V,L\n.5,.5\n", {"stubbornness": (1.0, float("inf"))}, ["column 'L'", "stubbornness inf"]),
        # Positive and finite, but its reciprocal is subnormal: solved, it would be NaN throughout.
        ("V,L\n.5,.5\n", {"stubbornness": (1e308, 1.0)}, ["column 'V'", "stubbornness 1e+308"]),
        ("V,L\n.5,.5\n", {"stubbornness": (1.0, 1e-310)}, ["column 'L'", "stubbornness 1e-310"]),
        ("V,L\n.5,.5\n", {"tau": float("nan")}, ["tau"]),
        ("V,L,mean\n.5,.5,1\n", {"judges": ("V", "L")}, ["column 'mean' (column 3)", "rename"]),
        ("V,L,consensus_L\n.5,.5,1\n", {"judges": ("V", "L")}, ["column 'consensus_L'"]),
        ('V,L\n.5,".5"x\n', {}, ["row 1 (line 2): not well-formed CSV"]),
        ('V,L\n.5,.5\n\n.5,"x\ny', {}, ["row 2 (line 4): not well-formed CSV"]),
        ('"V,L\n.5,.5', {}, ["header (line 1): not well-formed CSV"]),
    ],
)
def test_errors_of_a_csv(
    text: str,
    options: dict[str, object],
    parts: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(score_reader, "BLOCK_ROWS", options.pop("block", 8192))
    check_error(write(tmp_path, text), TableSettings(**options), parts)  # pyright: ignore


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (b"\n\n", ["the file is empty"]),
        (b'{"a": 1}', ["header (line 1), column 'a'", "two judges"]),
        (b'{"a": 1, "b": 1, "a": 0}', ["row 1 (line 1), column 'a'", "twice"]),
        (b'{"a": 1, "b": 1}\n\n{"a": 1, "b": 1, "b": 0}', ["row 2 (line 3), column 'b'", "twice"]),
        (b'{"a": 1, "b": 1}\n\n{"a": 1, "c": 1}', ["row 2 (line 3), column 'c'", "null"]),
        (b'{"a": 1, "b": 1}\n{"a": 1, "b": 1.5}', ["row 2 (line 2), column 'b'", "outside"]),
        (b'{"a": 1, "b": NaN}', ["row 1 (line 1), column 'b': 'NaN' is no score"]),
        (b'{"a": 1, "b": -Infinity}', ["row 1 (line 1), column 'b'", "outside"]),
        (b'{"a": 1, "b": true}', ["row 1 (line 1), column 'b'", "not a number"]),
        (b'{"a": 1, "b": [0.5]}', ["row 1 (line 1), column 'b'", "not a number"]),
        (b'{"a": 1, "b": 1},', ["row 1 (line 1): not one JSON object a line", "character 17"]),
        (b'{"a": 1, "b": 1}\n[1, 2]', ["row 2 (line 2): not a JSON object"]),
        (b'{"a": 1, "b": 1}\n{"a": 1', ["row 2 (line 2): not one JSON object a line"]),
        (b'{"a": ' + b"[" * 100_000, ["row 1 (line 1)", "nested too deeply"]),
        (b'{"a": 1, "b": 1}\n{"a": "\xff"}', ["line 2: byte 8 is not UTF-8"]),
    ],
)
def test_errors_of_json_lines(text: bytes, parts: list[str], tmp_path: Path) -> None:
    check_error(write(tmp_path, text, "t.jsonl"), DEFAULTS, parts)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (b"V,L\n.5,.5\n.5,\xe9\n", ["line 3: byte 4 is not UTF-8"]),
        ("V,L\n.5,.5\n".encode("utf-16"), ["line 1", "not UTF-8"]),
        ("V,L\n.5,.5\n".encode("utf-16-le"), ["line 1", "not UTF-8"]),
        (b"[\n{", ["JSON array", "one JSON object a line"]),
    ],
)
def test_errors_of_any_file(text: bytes, parts: list[str], tmp_path: Path) -> None:
    check_error(write(tmp_path, text, "table"), DEFAULTS, parts)


def check_error(path: Path, options: TableSettings, parts: list[str]) -> None:
    with pytest.raises(ScoreTableError) as caught:
        settled_text(path, options)
    message = str(caught.value)
    assert message.startswith(str(path)) and "\n" not in message
    for part in parts:
        assert part in message, message


def test_a_bad_row_is_reported_after_the_rows_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, "V,L\n.5,.5\n.5,7\n.5,.5,.5\n")
    check_error(path, TableSettings(judges=("V", "L")), ["row 2 (line 3), column 'L'"])


@deterministic
@given(
    cells=st.lists(st.text(st.sampled_from('ab,"\n'), max_size=6), min_size=1, max_size=12),
    blanks=st.lists(st.integers(0, 2), min_size=12, max_size=12),
    end=st.sampled_from(["\n", "\r\n"]),
    data=st.data(),
)
def test_lines_are_those_of_an_editor(
    cells: list[str], blanks: list[int], end: str, data: st.DataObject, tmp_path: Path
) -> None:
    bad = data.draw(st.integers(0, len(cells) - 1))
    text = csv_text([["note", "V", "L"]], end=end)
    line = 0
    for row, (note, blank) in enumerate(zip(cells, blanks, strict=False)):
        text += end * blank
        if row == bad:
            line = text.count("\n") + 1
        text += csv_text([[note, ".5", "2" if row == bad else ".5"]], end=end)
    path = write(tmp_path, text)
    check_error(
        path, TableSettings(judges=("V", "L")), [f"row {bad + 1} (line {line}), column 'L'"]
    )


# The output file is whole or absent


def test_an_error_in_the_last_row_leaves_no_file(tmp_path: Path) -> None:
    rows = [["0.5", "0.5"]] * (score_reader.BLOCK_ROWS + 1)
    path = write(tmp_path, csv_text([["V", "L"], *rows, ["0.5", "x"]]))
    for out in (tmp_path / "out.csv", tmp_path / "out.jsonl"):
        with pytest.raises(ScoreTableError):
            settle_file(path, out, DEFAULTS)
        assert sorted(tmp_path.iterdir()) == [path]


def test_an_error_leaves_an_existing_file_as_it_was(tmp_path: Path) -> None:
    path = write(tmp_path, "V,L\n0.5,0.5\n0.5,x\n")
    before = path.read_bytes()
    out = write(tmp_path, "mine", "out.csv")
    with pytest.raises(ScoreTableError):
        settle_file(path, out, DEFAULTS)
    with pytest.raises(ScoreTableError):
        settle_file(path, path, DEFAULTS)
    assert (out.read_text(), path.read_bytes()) == ("mine", before)
    assert sorted(tmp_path.iterdir()) == [out, path]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit, MemoryError])
def test_an_interrupt_leaves_no_file(stop: type[BaseException], tmp_path: Path) -> None:
    path = write(tmp_path, "V,L\n0.5,0.5\n")

    def interrupt(position: int) -> None:
        assert len(list(tmp_path.iterdir())) == 2  # A partial file is there at this point.
        raise stop

    with pytest.raises(stop):
        settle_file(path, tmp_path / "out.csv", DEFAULTS, interrupt)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("signals", [1, 2])
def test_ctrl_c_waits_for_the_end_of_a_block_the_second_one_does_not(
    signals: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = write(tmp_path, "V,L\n0.5,0.5\n")
    reached: list[str] = []

    def settle(*arguments: object) -> None:
        *_, tell = arguments
        for _ in range(signals):
            os.kill(os.getpid(), signal.SIGINT)
        reached.append("end of block")
        assert callable(tell)
        tell(3)
        reached.append("next block")

    monkeypatch.setattr(score_table, "settle_file", settle)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(SystemExit) as stopped:
        cli.main(["solve", str(path), "--out", str(tmp_path / "out.csv")])
    assert stopped.value.code == 130
    assert "interrupted" in capsys.readouterr().err
    assert reached == (["end of block"] if signals == 1 else [])
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_full_disk_leaves_no_file(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, "V,L\n0.5,0.5\n")

    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(OSError, match="No space"):
        settle_file(path, tmp_path / "out.csv", DEFAULTS)
    assert list(tmp_path.iterdir()) == [path]


def test_the_file_is_synced_before_it_appears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, "V,L\n0.5,0.5\n")
    out = tmp_path / "out.csv"
    calls: list[str] = []
    sync, replace = os.fsync, os.replace

    def logged_sync(descriptor: int) -> None:
        calls.append(f"sync {os.fstat(descriptor).st_size > 0} {out.exists()}")
        sync(descriptor)

    def logged_replace(source: Path, target: Path) -> None:
        calls.append(f"replace {Path(source).parent == target.parent}")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", logged_sync)
    monkeypatch.setattr(os, "replace", logged_replace)
    settle_file(path, out, DEFAULTS)
    assert calls == ["sync True False", "replace True"]
    assert len(out.read_text().splitlines()) == 2


def test_out_may_be_the_input_or_a_link(tmp_path: Path) -> None:
    path = write(tmp_path, "V,L\n0.5,0.5\n")
    path.chmod(0o640)
    link = tmp_path / "link.csv"
    link.symlink_to(path)
    settle_file(path, link, DEFAULTS)
    assert link.is_symlink() and path.read_text().startswith("V,L,consensus_V")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.parametrize(
    ("out", "part"),
    [
        ("out.txt", "must end in"),
        ("out", "must end in"),
        ("folder.csv", "not a file"),
        ("missing/out.csv", "folder does not exist"),
    ],
)
def test_bad_places_for_out(out: str, part: str, tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    path = write(tmp_path, "V,L\n0.5,0.5\n")
    with pytest.raises((ScoreTableError, TargetError), match=part):
        settle_file(path, tmp_path / out, DEFAULTS)
    assert sorted(tmp_path.iterdir()) == [tmp_path / "folder.csv", path]


def test_a_read_only_folder_is_no_place_for_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The tests may run as root, who may write anywhere.
    monkeypatch.setattr(os, "access", lambda folder, mode: folder != tmp_path)
    with pytest.raises(TargetError, match="out.csv: its folder is read-only"):
        check_target(tmp_path / "out.csv")


# A stream


def test_memory_does_not_grow_with_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score_reader, "BLOCK_ROWS", 256)

    def peak(rows: int) -> int:
        body = [[f"g{row // 2}", "0.5", "0.75"] for row in range(rows)]
        path = write(tmp_path, csv_text([["g", "V", "L"], *body]))
        tracemalloc.start()
        try:
            settle_file(path, tmp_path / "out.csv", TableSettings(group="g"))
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(512)  # Compiles.
    assert peak(8192) - peak(1024) < 200_000  # 8 bytes a group are 32 kB.


def test_long_cells_make_smaller_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score_reader, "BLOCK_BYTES", 100_000)
    path = write(tmp_path, "t,V,L\n" + f"{'x' * 10_000},0.5,0.5\n" * 256)
    with score_reader.open_scores(path, ["V", "L"]) as table:
        sizes = [len(block) for block in table.blocks]
    assert sum(sizes) == 256 and max(sizes) == 64


@deterministic
@given(st.lists(st.lists(st.integers(0, 60).map(str), max_size=6), max_size=12))
def test_seen_groups_are_a_set(batches: list[list[str]]) -> None:
    seen, model = score_table._SeenGroups(), set[str]()
    for batch in batches:
        expected = next(
            (i for i, group in enumerate(batch) if group in model or group in batch[:i]), None
        )
        assert seen.add(batch) == expected
        if expected is not None:
            return
        model |= set(batch)
        stored = sum(run.nbytes for run in seen._runs)
        assert stored == 8 * len(model)
        assert len(seen._runs) <= 1 + np.log2(1 + len(model))


def test_parts_of_a_block_know_their_place(tmp_path: Path) -> None:
    path = write(tmp_path, "g,V,L\na,0,1\n\nb,1,1\nb,0,0\n")
    with score_reader.open_scores(path, group="g") as table:
        (block,) = table.blocks
    part = block.part(1, 3)
    assert [part.place(0), part.place(1)] == ["row 2 (line 4)", "row 3 (line 5)"]
    assert (part.groups, part.scores.tolist()) == (["b", "b"], [[1.0, 1.0], [0.0, 0.0]])
    whole = score_reader.joined([block.part(0, 1), part])
    assert (whole.cells, whole.lines) == (block.cells, block.lines)
    assert whole.place(2) == block.place(2) and (whole.scores == block.scores).all()


def test_progress_reaches_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score_reader, "BLOCK_ROWS", 512)
    path = write(tmp_path, "V,L\n" + "0.5,0.5\n" * 3000)
    told: list[int] = []
    settle_file(path, io.StringIO(), DEFAULTS, told.append)
    assert told == sorted(told) and told[-1] == path.stat().st_size and len(told) == 6


# The command


def run(*arguments: str) -> int:
    try:
        cli.main(arguments)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 1
    return 0


def test_solve_prints_csv(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, 'q;V;L;C\n"é\n";.9;.3;.9\nx;.7;.7;.7\n')
    options = ["--judges", "V", "L", "C", "--group", "q", "--tau", "0.7", "--epsilon", "0.2"]
    assert run("solve", str(path), *options) == 0
    rows = table_of(capsys.readouterr().out, ";")
    assert [row["q"] for row in rows] == ["é\n", "x"]
    assert [row["accepted"] for row in rows] == ["true", "false"]


def test_solve_writes_json_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "a,b\n.9,.3\n")
    out = tmp_path / "out.jsonl"
    assert run("solve", str(path), "--stubbornness", "2", "1", "--out", str(out)) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")
    _, mean, _ = lu_oracle([0.9, 0.3], [2, 1])
    assert json.loads(out.read_text())["mean"] == pytest.approx(mean, abs=1e-15)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["solve", "nowhere.csv"], "nowhere.csv: No such file"),
        (["solve", "."], "Is a directory"),
        (["solve", "bad.csv"], "bad.csv, row 1 (line 2), column 'L'"),
        (["solve", "good.csv", "--out", "x.pdf"], "x.pdf: --out must end in"),
        (["solve", "good.csv", "--out", "no/x.csv"], "no/x.csv: its folder does not exist"),
        (["solve", "good.csv", "--judges", "V", "M"], "did you mean"),
        (["slove", "good.csv"], "did you mean solve?"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str],
    part: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "V,Me\n.5,.5\n", "good.csv")
    write(tmp_path, "V,L\n.5,5\n", "bad.csv")
    assert run(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert captured.err.startswith("verdict: ") and part in captured.err


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == run() == 0
    overview = capsys.readouterr().out
    assert "verdict solve scores.csv" in overview and "Settle a table" in overview
    assert run("solve", "--help") == 0
    detail = capsys.readouterr().out
    for word in ("examples:", "--judges", "--stubbornness", "--group", "--out", "accepted"):
        assert word in detail


def test_a_progress_bar_shows_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, "V,L\n.5,.5\n", "watched.csv")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    out = str(tmp_path / "out.csv")
    monkeypatch.setattr(cli, "PATIENCE_SECONDS", 1e9)
    assert run("solve", str(path), "--out", out) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(cli, "PATIENCE_SECONDS", 0.0)
    assert run("solve", str(path), "--out", out) == 0
    assert "watched.csv" in capsys.readouterr().err


def test_sigterm_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, "V,L\n.5,.5\n")
    monkeypatch.setattr(os, "fsync", lambda descriptor: os.kill(os.getpid(), signal.SIGTERM))
    assert run("solve", str(path), "--out", str(tmp_path / "out.csv")) == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == [path]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_reader_that_goes_away_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, "V,L\n" + ".5,.5\n" * 5000)
    ours, theirs = os.pipe()
    os.close(ours)
    with open(theirs, "w", encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert run("solve", str(path)) == 1
    assert capfd.readouterr().err == ""
