"""What is the life of one run: its right, its turn, its launch, its record?

The order is the argument. A proposal is reserved first, so that it is executed once, and a place
is waited for before its grant is used, so that a busy daemon uses none up. What runs is prepared
from the original request and must have the digest that was granted. The grant's use and the row
``running`` are one transaction, written before the engine hears of it. A launch that fails before
the command started gives the grant back.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from sandboxd.clock import now_ms
from sandboxd.connection import PeerGone
from sandboxd.errors import Conflict, NotFound, SandboxdError, SetupFailed, Unavailable
from sandboxd.execution import Client, Engine, changed, denied, not_started, running, unless_gone
from sandboxd.log import log
from sandboxd.prepared import Prepared
from sandboxd.proposals import Open, Proposals
from sandboxd.protocol import Denial, Event, Request, Run
from sandboxd.store import Store
from sandboxd.turnstile import Turnstile


@dataclass(slots=True, eq=False)
class _Active:
    cancelled: bool = False
    done: asyncio.Event = field(default_factory=asyncio.Event)


class Runs:
    """All runs, active ones in memory and everything in the store."""

    def __init__(
        self, engine: Engine, store: Store, proposals: Proposals, turnstile: Turnstile
    ) -> None:
        self._engine = engine
        self._store = store
        self._proposals = proposals
        self._turnstile = turnstile
        self._active: dict[str, _Active] = {}
        self._unrecorded: dict[str, Run] = {}
        self._closing = False

    def __len__(self) -> int:
        return len(self._active)

    async def run(self, client: Client, request: Request, workspace_fd: int | None) -> Run:
        """Propose, and execute at once if policy allows that; else say what became of it."""
        proposal = self._proposals.propose(client.uid, request, workspace_fd)
        match proposal.state:
            case "ready":
                try:
                    return await self.execute(client, proposal.id)
                except BaseException:
                    self._withdraw(client.uid, proposal.id, request)
                    raise
            case "used":  # by an earlier call with the same idempotency key
                return self._earlier_run(proposal.id)
            case "denied":
                run = denied(proposal)
                self._store.put_run(run)
                return run
            case _:
                return not_started(proposal)

    async def execute(self, client: Client, proposal_id: str) -> Run:
        """Execute a proposal that is ready; of one that is not, say what it is instead.

        Raises:
            Conflict: it was used already.
            SetupFailed, Unavailable: nothing was started, and its grant is as good as before.
            PeerGone: the client hung up before anything was started.

        """
        held = self._proposals.claim(client.uid, proposal_id)
        if held is None:
            return not_started(self._proposals.get(client.uid, proposal_id))
        try:
            return await self._take_turn(client, held)
        finally:
            if held.proposal.state == "ready":
                self._proposals.release(held)

    def get(self, uid: int | None, run_id: str) -> Run:
        """Return a run of ``uid`` (None: of anybody); of others' there is only `NotFound`."""
        run = self._unrecorded.get(run_id) or self._store.run(run_id)
        if run is None or uid not in {None, run.uid}:
            raise NotFound("cannot find this run", field="run")
        return run

    def signal(self, uid: int, run_id: str, signum: int) -> None:
        """Send a signal to a running command."""
        run = self.get(uid, run_id)
        if not self._engine.signal(run_id, signum):
            raise Conflict(f"cannot signal this run: it is {run.status}")

    def latest(self, limit: int, *, active: bool) -> list[Run]:
        """Return the latest runs, newest first; only those that have not ended if ``active``."""
        return self._store.runs(limit, active=active)

    def kill(self, run_id: str) -> None:
        """End anybody's run now."""
        run = self.get(None, run_id)
        if run_id not in self._active:
            raise Conflict(f"cannot end this run: it is {run.status}")
        self._cancel(run_id)

    async def stop(self) -> None:
        """Start nothing more, cancel what runs, and wait until all of it is recorded."""
        self._closing = True
        for run_id in list(self._active):
            self._cancel(run_id)
        for active in list(self._active.values()):
            await active.done.wait()

    async def _take_turn(self, client: Client, held: Open) -> Run:
        allowlist = self._proposals.allowlist
        while True:
            policy = allowlist.digest
            prepared = self._prepare(held)
            if not isinstance(prepared, Prepared):
                return self._refuse(held, prepared)
            async with self._place(client, prepared):
                if policy == allowlist.digest:
                    return await self._launch(client, held, prepared)
            prepared.close()  # policy was reloaded while this waited

    def _prepare(self, held: Open) -> Prepared | tuple[Denial, ...]:
        """Prepare once more, and compare with what was granted."""
        judgement = self._proposals.allowlist.judge(held.request, held.workspace_fd)
        prepared = judgement.prepared
        if prepared is None:
            return judgement.denials
        if prepared.digest == held.proposal.digest:
            return prepared
        prepared.close()
        return (changed(held.proposal, prepared),)

    def _refuse(self, held: Open, denials: tuple[Denial, ...]) -> Run:
        """End a proposal that is no longer what was granted."""
        run = denied(self._proposals.end(held, "denied", denials=denials))
        self._store.put_run(run)
        return run

    @contextlib.asynccontextmanager
    async def _place(self, client: Client, prepared: Prepared) -> AsyncIterator[None]:
        name, concurrency = prepared.profile.name, prepared.bounds.concurrency
        try:
            await unless_gone(
                self._turnstile.enter(client.uid, name, concurrency), client.connection.gone
            )
        except BaseException:
            prepared.close()
            raise
        try:
            yield
        finally:
            self._turnstile.leave(name)

    async def _launch(self, client: Client, held: Open, prepared: Prepared) -> Run:
        """Use the grant and hand ``prepared`` over to the engine."""
        ready = held.proposal
        if self._closing or client.connection.gone.is_set():
            prepared.close()
            raise Unavailable("cannot start anything: the daemon or its client is going away")
        used = dataclasses.replace(ready, state="used")
        try:
            record = running(ready, self._store.grant_of(ready.id))
            self._record_late_ones()
            live = held.lifetime.left_s > 0 and self._store.claim(
                used, record, now=now_ms(), durable=held.approved
            )
        except BaseException:
            prepared.close()
            raise
        if not live:
            prepared.close()
            return not_started(self._proposals.end(held, "expired"))
        held.proposal = used
        active = self._active[record.id] = _Active()
        try:
            run = await self._drive(client, prepared, record, active)
        except (SetupFailed, Unavailable) as fault:
            log("not_started", run=record.id, command=ready.command, problem=fault.message)
            self._store.give_back(ready, record.id)
            held.proposal = ready
            raise
        except BaseException:
            self._record(dataclasses.replace(record, status="lost"))
            self._proposals.let_go(held)
            raise
        else:
            self._record(run)
            self._proposals.let_go(held)
            return run
        finally:
            del self._active[record.id]
            active.done.set()

    async def _drive(
        self, client: Client, prepared: Prepared, record: Run, active: _Active
    ) -> Run:
        """Let the engine run it to its end; a client that hangs up cancels it."""

        async def tell(event: Event) -> None:
            if active.cancelled:
                self._engine.cancel(record.id)  # it was not known to the engine before
            await client.tell(event)

        task = asyncio.ensure_future(
            self._engine.run(
                prepared,
                run_id=record.id,
                proposal=record.proposal,
                grant=record.grant,
                uid=client.uid,
                stdin_fd=client.stdin_fd,
                on_event=tell,
            )
        )
        with contextlib.suppress(PeerGone):
            await unless_gone(_end_of(task), client.connection.gone)
        if not task.done():
            self._cancel(record.id)
        return await task

    def _cancel(self, run_id: str) -> None:
        self._active[run_id].cancelled = True
        self._engine.cancel(run_id)

    def _record(self, run: Run) -> None:
        """Record how a run ended, or keep that until the store can be written again."""
        log("run_ended", run=run.id, command=run.command, status=run.status)
        try:
            self._store.put_run(run)
        except Unavailable as error:
            log("unrecorded", run=run.id, problem=error.message)
            self._unrecorded[run.id] = run

    def _record_late_ones(self) -> None:
        """Before anything new starts, what has ended must be on record."""
        for run_id, run in list(self._unrecorded.items()):
            self._store.put_run(run)
            del self._unrecorded[run_id]

    def _withdraw(self, uid: int, proposal_id: str, request: Request) -> None:
        """Drop what `run` proposed and could not start, unless a key lets the client try again."""
        if request.idempotency_key is None:
            with contextlib.suppress(SandboxdError):  # then time ends it, and why is on its way
                self._proposals.cancel(uid, proposal_id)

    def _earlier_run(self, proposal_id: str) -> Run:
        """Return the run that the same request with the same key had."""
        run = self._store.run_of(proposal_id)
        if run is None or run.status == "running":
            raise Conflict("cannot run this again: its run has not ended", field="idempotency_key")
        return self._unrecorded.get(run.id, run)


async def _end_of(task: asyncio.Future[Run]) -> None:
    await asyncio.wait({task})
