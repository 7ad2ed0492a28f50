"""What survives the daemon: proposals, grants and runs?

Every call is short and runs on the event loop's thread, so no two changes interleave. The one
transaction that uses an approver's grant up is committed with ``synchronous=FULL`` before anything
is launched; the others with NORMAL, which a crash of the daemon cannot lose either.
"""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from typing import TypeVar

from launcher.records import from_plain, parse, to_plain
from sandboxd.database import Database
from sandboxd.protocol import Proposal, Run

R = TypeVar("R")

_USE_GRANT = """
UPDATE grants SET uses_left = uses_left - 1
WHERE proposal = ? AND digest = ? AND uses_left > 0 AND expires_at > ?
"""
_FORGET_PROPOSALS = """
DELETE FROM proposals WHERE uid = ? AND state NOT IN ('pending', 'ready') AND rowid <=
    (SELECT rowid FROM proposals WHERE uid = ? ORDER BY rowid DESC LIMIT 1 OFFSET ?)
"""
_FORGET_RUNS = """
DELETE FROM runs WHERE status != 'running' AND rowid <=
    (SELECT rowid FROM runs ORDER BY rowid DESC LIMIT 1 OFFSET ?)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """The right to run what has ``digest``, ``uses`` times. Times as in `Proposal`."""

    id: str
    proposal: str
    digest: str
    source: str
    created_at: int
    expires_at: int
    scope: str = "exact"
    uses: int = 1


class Store:
    """The state file's contents. Every method raises `Unavailable` if it cannot do its work."""

    def __init__(self, state_dir: str, *, boot: str, kept_proposals: int, kept_runs: int) -> None:
        self._boot = boot
        self._kept_proposals = kept_proposals
        self._kept_runs = kept_runs
        self._db = Database(os.path.join(state_dir, "state.db"))

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def begin_life(self) -> tuple[int, int]:
        """Settle what an earlier daemon left open: runs are lost, open proposals expired.

        A proposal holds a descriptor of its workspace, which ended with that daemon. Returns how
        many runs and proposals there were.
        """
        with self._db.transaction():
            lost = self._runs("WHERE status = 'running'")
            for run in lost:
                self._put_run(dataclasses.replace(run, status="lost"))
            stale = self._proposals("WHERE state IN ('pending', 'ready')")
            message = "the daemon was restarted"
            for each in stale:
                self._put_state(dataclasses.replace(each, state="expired", message=message))
        return len(lost), len(stale)

    def add_proposal(self, proposal: Proposal, grant: Grant | None, key: str | None) -> None:
        """Record a new proposal, its idempotency key, and the grant if policy itself gives one."""
        with self._db.transaction():
            self._db.execute(
                "INSERT INTO proposals VALUES (?, ?, ?, ?, ?, ?, ?)",
                *(proposal.id, proposal.uid, proposal.state, proposal.digest, key, self._boot),
                _text(proposal),
            )
            if grant is not None:
                self._insert_grant(grant)
            uid = proposal.uid
            self._db.execute(_FORGET_PROPOSALS, uid, uid, self._kept_proposals)

    def set_state(self, proposal: Proposal, grant: Grant | None = None) -> None:
        """Record a proposal's new state, and the grant that comes with it."""
        with self._db.transaction():
            self._put_state(proposal)
            if grant is not None:
                self._insert_grant(grant)

    def claim(self, used: Proposal, run: Run, *, now: int, durable: bool) -> bool:
        """Use the proposal's grant once and record the run; or change nothing.

        False if there is no live grant for its digest. ``durable``: so that not even a power
        failure could bring the grant back.
        """
        with self._db.transaction(durable=durable):
            if self._db.execute(_USE_GRANT, used.id, used.digest, now) != 1:
                return False
            self._put_state(used)
            self._put_run(run)
            self._db.execute(_FORGET_RUNS, self._kept_runs)
        return True

    def give_back(self, proposal: Proposal, run_id: str) -> None:
        """Undo a `claim` whose command never started."""
        with self._db.transaction():
            self._db.execute(
                "UPDATE grants SET uses_left = uses_left + 1 WHERE proposal = ?", proposal.id
            )
            self._put_state(proposal)
            self._db.execute("DELETE FROM runs WHERE id = ?", run_id)

    def put_run(self, run: Run) -> None:
        """Record what a run is now."""
        with self._db.transaction():
            self._put_run(run)
            self._db.execute(_FORGET_RUNS, self._kept_runs)

    def proposal(self, proposal_id: str) -> Proposal | None:
        """Return the proposal as recorded."""
        return _first(self._proposals("WHERE id = ?", proposal_id))

    def proposal_by_key(self, uid: int, key: str) -> Proposal | None:
        """Return the proposal that holds the idempotency key ``key`` of ``uid``."""
        return _first(self._proposals("WHERE uid = ? AND idempotency_key = ?", uid, key))

    def grant_of(self, proposal_id: str) -> str:
        """Return the id of the proposal's latest grant, or an empty string."""
        rows = self._db.select(
            "SELECT id FROM grants WHERE proposal = ? ORDER BY rowid DESC LIMIT 1", proposal_id
        )
        return str(rows[0][0]) if rows else ""

    def run(self, run_id: str) -> Run | None:
        """Return the run as recorded."""
        return _first(self._runs("WHERE id = ?", run_id))

    def run_of(self, proposal_id: str) -> Run | None:
        """Return the latest run of a proposal."""
        return _first(self._runs("WHERE proposal = ? ORDER BY rowid DESC LIMIT 1", proposal_id))

    def runs(self, limit: int, *, active: bool) -> list[Run]:
        """Return the latest runs, newest first; only those still running if ``active``."""
        which = "WHERE status = 'running'" if active else ""
        return self._runs(f"{which} ORDER BY rowid DESC LIMIT ?", limit)

    def _proposals(self, which: str, *values: object) -> list[Proposal]:
        rows = self._db.select(f"SELECT record FROM proposals {which}", *values)  # noqa: S608  # literals
        return [_record(Proposal, row) for row in rows]

    def _runs(self, which: str, *values: object) -> list[Run]:
        rows = self._db.select(f"SELECT record FROM runs {which}", *values)  # noqa: S608  # literals
        return [_record(Run, row) for row in rows]

    def _put_state(self, proposal: Proposal) -> None:
        self._db.execute(
            "UPDATE proposals SET state = ?, record = ? WHERE id = ?",
            *(proposal.state, _text(proposal), proposal.id),
        )

    def _insert_grant(self, grant: Grant) -> None:
        self._db.execute(
            "INSERT INTO grants VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            *(grant.id, grant.proposal, grant.digest, grant.scope, grant.uses, grant.uses),
            *(grant.source, grant.created_at, grant.expires_at),
        )

    def _put_run(self, run: Run) -> None:
        self._db.execute(
            "INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (id) DO UPDATE SET status = excluded.status, record = excluded.record",
            *(run.id, run.uid, run.proposal, run.status, self._boot, _text(run)),
        )


def _text(record: Proposal | Run) -> str:
    return json.dumps(to_plain(record), separators=(",", ":"))


def _record(cls: type[R], row: tuple[object, ...]) -> R:
    return from_plain(cls, parse(str(row[0])), "")


def _first(found: list[R]) -> R | None:
    return found[0] if found else None
