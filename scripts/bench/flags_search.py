"""Prints how often BM25 finds the evidence for a question of the world of flags.

    python scripts/bench/flags_search.py

SQLite's FTS5 over head and text, both in one column. A hit is useful by the rule of the world
(`World.is_useful`), over its whole text and over its excerpt. Without a tokenizer the excerpt is
measured in words: two tokens a word, as a small vocabulary needs for this text.
"""

from __future__ import annotations

import re
import sqlite3

import tyro

from svrl_jax.datasets.flags import SHOWN, World, excerpt, load, test_questions
from svrl_jax.datasets.flags.attributes import BY_KEY
from svrl_jax.trajectory import Snippet

TOP = (1, 3, 5)


def build(world: World) -> sqlite3.Connection:
    """An index in memory; row i is snippet i."""
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE VIRTUAL TABLE snippets USING fts5(body, tokenize = 'porter')")
    connection.executemany(
        "INSERT INTO snippets (rowid, body) VALUES (?, ?)",
        (
            (place, f"{snippet.title} {snippet.text}")
            for place, snippet in enumerate(world.snippets)
        ),
    )
    return connection


def search(connection: sqlite3.Connection, world: World, query: str, count: int) -> list[Snippet]:
    """The snippets that fit any word of a query best."""
    words = " OR ".join(f'"{word}"' for word in re.findall(r"\w+", query))
    rows = connection.execute(
        "SELECT rowid FROM snippets WHERE snippets MATCH ? ORDER BY bm25(snippets), rowid LIMIT ?",
        (words, count),
    )
    return [world.snippets[place] for (place,) in rows]


def tokens(text: str) -> int:
    return 2 * len(text.split())


def main(count: int = 300) -> None:
    """Runs the first test questions.

    Args:
        count: how many.
    """
    world = load()
    connection = build(world)
    items = test_questions(world)[:count]
    print(f"{len(world.snippets)} snippets, {len(items)} test questions")
    print(f"{'query':<30} {'text':<8}" + "".join(f" top {top:<4}" for top in TOP))
    for name, with_country in (("country attribute", True), ("attribute", False)):
        ranks: dict[str, list[int]] = {"whole": [], "excerpt": []}
        for item in items:
            fact = item.fact
            words = BY_KEY[fact.attribute].words
            query = f"{fact.country} {words}" if with_country else words
            found = search(connection, world, query, max(TOP))
            shown = [excerpt(snippet, query, tokens, SHOWN) for snippet in found]
            for text, snippets in (("whole", found), ("excerpt", shown)):
                useful = [world.is_useful(s, fact.country, fact.golds) for s in snippets]
                ranks[text].append(useful.index(True) if True in useful else max(TOP))
        for text, places in ranks.items():
            shares = [sum(place < top for place in places) / len(places) for top in TOP]
            print(f"{name:<30} {text:<8}" + "".join(f" {share:<8.3f}" for share in shares))


if __name__ == "__main__":
    tyro.cli(main)
