"""Text search over a local corpus: SQLite's FTS5, ranked by BM25.

FTS5 and not tantivy 0.27: it ranks as well, comes with Python, and the milliseconds of a query are
little beside a turn of the policy (and are paid once, behind the cache). On 30,000 snippets
of the World Factbook and 200 questions of the form "What is the FIELD of NAME?", CPU time on a busy
machine with two cores, by scripts/bench/search_index.py:

| index                      | build  | median query | recall@5 | MRR  | to install        |
|----------------------------|--------|--------------|----------|------|-------------------|
| this one                   | 0.85 s | 26 ms        | .945     | .883 | nothing           |
| FTS5 bare                  | 0.43 s | 37 ms        | .945     | .880 | nothing           |
| tantivy, title beside text | 1.09 s | 0.8 ms       | .820     | .632 | 5 MB, 17 unpacked |
| tantivy, one joined field  | 1.01 s | 0.5 ms       | .945     | .880 | 5 MB, 17 unpacked |

Queries of two or three words take a third of that. A corpus of millions belongs behind a retrieval
server.
"""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
import threading
from collections.abc import Sequence

from svrl_jax.grammar import normalize_query
from svrl_jax.search.plain_text import plain, search_query
from svrl_jax.search.protocol import check_top_k
from svrl_jax.trajectory import Snippet

MAX_TERMS = 64
"""Different words of a query that are looked up; a longer one costs more and ranks no better."""

# a CJK character is a term: FTS5's tokenizer would take a whole run of them for one word
_TERM = re.compile(
    r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]"
    r"|[^\W_\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
    r"\U00020000-\U0003ffff]+"
)

_LAYOUT = "fts5-1"
"""Of terms, tokenizer and ranking; changes with any of them."""


def terms(text: str) -> list[str]:
    """The words of a text that are indexed, case folded; a CJK character is a word."""
    return _TERM.findall(normalize_query(plain(text)))


class LocalIndex:
    """Text search over snippets in memory.

    A snippet matches if it holds any word of the query, in English with any ending (Porter's
    stemmer). Better BM25 scores come first (title and text count alike), equal ones by id. A
    query is plain text: it has no operators.

    Attributes:
        name: of the backend.
        version: a digest of the corpus with the layout of the index.
    """

    def __init__(self, snippets: Sequence[Snippet], name: str = "local index") -> None:
        """Builds the index.

        Args:
            snippets: the corpus, in any order.
            name: of the backend.

        Raises:
            ValueError: an id stands twice.
        """
        # a row's number is then the rank of its id
        self._snippets = tuple(sorted(snippets, key=lambda snippet: snippet.id))
        digest = hashlib.sha256()
        previous = None
        for snippet in self._snippets:
            if snippet.id == previous:
                raise ValueError(f"snippet id {snippet.id!r} stands twice in the corpus")
            previous = snippet.id
            fields = (snippet.id, snippet.title, snippet.text, snippet.source)
            digest.update(json.dumps(fields).encode() + b"\n")
        self.name = name
        self.version = f"{_LAYOUT} {digest.hexdigest()[:16]}"
        # FTS5's statistics are of the whole corpus; its connection is shared under a lock
        self._lock = threading.Lock()
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        self._database.execute(
            "CREATE VIRTUAL TABLE corpus USING fts5(title, text, content='', "
            "tokenize='porter unicode61 remove_diacritics 2')"
        )
        self._database.executemany(
            "INSERT INTO corpus (rowid, title, text) VALUES (?, ?, ?)",
            (
                (row, " ".join(terms(snippet.title)), " ".join(terms(snippet.text)))
                for row, snippet in enumerate(self._snippets)
            ),
        )
        self._database.execute("INSERT INTO corpus (corpus) VALUES ('optimize')")
        self._database.commit()

    def search(self, query: str, top_k: int) -> tuple[Snippet, ...]:
        """The best snippets; all that match if they are fewer than `top_k`.

        Raises:
            ValueError: top_k is less than 1.
        """
        check_top_k(top_k)
        words = list(dict.fromkeys(terms(search_query(query))))[:MAX_TERMS]
        if not words:
            return ()
        match = " OR ".join(f'"{word}"' for word in words)
        with self._lock:
            rows = self._database.execute(
                "SELECT rowid FROM corpus WHERE corpus MATCH ? ORDER BY bm25(corpus), rowid "
                "LIMIT ?",
                (match, min(top_k, len(self._snippets))),
            ).fetchall()
        return tuple(self._snippets[row] for (row,) in rows)
