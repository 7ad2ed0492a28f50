"""How is the state file opened, and how does a transaction on it succeed or leave no trace?

The file and SQLite's two companions are born with mode 0600 (the daemon's umask is 0077) in a
directory that only the daemon's uid may enter. Whatever SQLite reports (full disk, read-only file
system, damaged file) becomes `Unavailable`: nothing runs that could not be recorded.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
from collections.abc import Iterator

from sandboxd.errors import Unavailable

SCHEMA_VERSION = 1
_SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE proposals (
    id TEXT PRIMARY KEY, uid INTEGER NOT NULL, state TEXT NOT NULL, digest TEXT NOT NULL,
    idempotency_key TEXT, boot TEXT NOT NULL, record TEXT NOT NULL
);
CREATE INDEX proposals_by_uid ON proposals (uid);
CREATE INDEX proposals_by_state ON proposals (state);
CREATE UNIQUE INDEX proposals_by_key ON proposals (uid, idempotency_key);
CREATE TABLE grants (
    id TEXT PRIMARY KEY, proposal TEXT NOT NULL REFERENCES proposals (id) ON DELETE CASCADE,
    digest TEXT NOT NULL, scope TEXT NOT NULL, uses INTEGER NOT NULL,
    uses_left INTEGER NOT NULL CHECK (uses_left BETWEEN 0 AND uses), source TEXT NOT NULL,
    created_at INTEGER NOT NULL, expires_at INTEGER NOT NULL
);
CREATE INDEX grants_by_proposal ON grants (proposal);
CREATE TABLE runs (
    id TEXT PRIMARY KEY, uid INTEGER NOT NULL, proposal TEXT NOT NULL, status TEXT NOT NULL,
    boot TEXT NOT NULL, record TEXT NOT NULL
);
CREATE INDEX runs_by_proposal ON runs (proposal);
CREATE INDEX runs_by_status ON runs (status);
PRAGMA user_version = {SCHEMA_VERSION};
COMMIT;
"""


class Database:
    """One connection to the state file, used from one thread."""

    def __init__(self, path: str) -> None:
        """Open or create ``path``.

        Raises:
            Unavailable: it is no file of ours, of a later version, or cannot be opened.

        """
        _check_file(path)
        with _typed():
            self._connection = sqlite3.connect(path, isolation_level=None, timeout=1.0)
            try:
                self._prepare()
            except BaseException:
                self._connection.close()
                raise

    def close(self) -> None:
        """Close the file; its write-ahead log is merged into it."""
        self._connection.close()

    def select(self, statement: str, *values: object) -> list[tuple[object, ...]]:
        """Return all rows of a query."""
        with _typed():
            return self._connection.execute(statement, values).fetchall()

    def execute(self, statement: str, *values: object) -> int:
        """Carry out a change inside a `transaction`; return how many rows it concerned."""
        return self._connection.execute(statement, values).rowcount

    @contextlib.contextmanager
    def transaction(self, *, durable: bool = False) -> Iterator[None]:
        """Commit the block's changes as one, or none of them if it raises.

        ``durable``: fsync(2) before returning, so that not even a power failure undoes it.
        """
        with _typed():
            self._connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def _prepare(self) -> None:
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA foreign_keys = ON")
        self._connection.execute("PRAGMA trusted_schema = OFF")
        ((version,),) = self._connection.execute("PRAGMA user_version").fetchall()
        if version == 0:
            self._connection.executescript(_SCHEMA)
        elif version != SCHEMA_VERSION:
            raise Unavailable(f"cannot use state of schema version {version}")


def _check_file(path: str) -> None:
    """Refuse a state file that somebody else could have put there."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_nlink != 1:
        raise Unavailable(f"cannot use {path}: it is not a regular file of this user alone")
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise Unavailable(f"cannot use {path}: others may read or write it")


@contextlib.contextmanager
def _typed() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise Unavailable(f"cannot keep the state: {error}") from error
