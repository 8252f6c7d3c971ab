"""A cache's entries in a SQLite file, for the processes of one machine."""

from __future__ import annotations

import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

from svrl_jax.search.cache import CacheError, CacheKey

BUSY_S = 30.0
"""Seconds that a process waits for another one's write."""


class SqliteStore:
    """Entries in one file, written in WAL mode: readers do not wait for a writer.

    Threads share an object, processes open one each (SQLite's connections do not survive a fork).
    The file must be on a local disk: WAL needs shared memory. An entry survives the process at
    once, and a power cut once SQLite has flushed it.
    """

    def __init__(self, path: Path) -> None:
        """Opens the file, made if need be.

        Raises:
            CacheError: it cannot be opened, or holds something else.
        """
        self._path = path
        self._lock = threading.Lock()
        try:
            self._database = sqlite3.connect(
                path, timeout=BUSY_S, isolation_level=None, check_same_thread=False
            )
            _use_wal(self._database)
            self._database.execute("PRAGMA synchronous = NORMAL")
            self._database.execute(
                "CREATE TABLE IF NOT EXISTS search_cache "
                "(key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID"
            )
        except sqlite3.Error as error:
            raise CacheError(f"{path}: {error}") from error

    def get(self, key: CacheKey) -> str | None:
        """The entry, None if there is none.

        Raises:
            CacheError: the file cannot be read.
        """
        try:
            with self._lock:
                return self._value(key.text())
        except sqlite3.Error as error:
            raise CacheError(f"{self._path}: {error}") from error

    def put(self, key: CacheKey, value: str) -> str:
        """Stores an entry unless there is one, and gives the one that then stands.

        Raises:
            CacheError: the file cannot be written.
        """
        text = key.text()
        try:
            with self._lock:
                self._database.execute(
                    "INSERT INTO search_cache VALUES (?, ?) ON CONFLICT DO NOTHING", (text, value)
                )
                stored = self._value(text)
        except sqlite3.Error as error:
            raise CacheError(f"{self._path}: {error}") from error
        return value if stored is None else stored

    def close(self) -> None:
        """Ends the use of the file."""
        with self._lock:
            self._database.close()

    def _value(self, key: str) -> str | None:
        statement = "SELECT value FROM search_cache WHERE key = ?"
        with closing(self._database.execute(statement, (key,))) as cursor:
            row = cursor.fetchone()
        return None if row is None else row[0]


def _use_wal(database: sqlite3.Connection) -> None:
    """Switches the file to WAL; SQLite does not wait by itself when several processes do so."""
    until = time.monotonic() + BUSY_S
    while True:
        try:
            database.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
        time.sleep(0.01)
