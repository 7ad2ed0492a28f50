"""What do runs need of their surroundings, and what is the record of a run that never began?"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

from sandboxd.clock import now_ms
from sandboxd.connection import Connection, PeerGone
from sandboxd.errors import Conflict
from sandboxd.prepared import Prepared
from sandboxd.protocol import Denial, Event, Proposal, ReasonCode, Run, Status
from sandboxd.refusals import refuse

T = TypeVar("T")
Tell = Callable[[Event], Awaitable[None]]


class Engine(Protocol):
    """What carries prepared requests out: `sandboxd.engine.Engine`."""

    async def run(  # noqa: PLR0913  # all by keyword
        self,
        prepared: Prepared,
        *,
        run_id: str,
        proposal: str,
        grant: str,
        uid: int,
        stdin_fd: int | None,
        on_event: Tell,
    ) -> Run:
        """Run it; owns ``prepared`` from the call on. Raises SetupFailed or Unavailable."""

    def signal(self, run_id: str, signum: int) -> bool:
        """Send a signal to the command; False if it does not run."""

    def cancel(self, run_id: str) -> bool:
        """End the run now; False if it does not run."""


@dataclass(frozen=True, slots=True)
class Client:
    """For whom a run takes place: its connection, its events, and its standard input."""

    connection: Connection
    tell: Tell
    stdin_fd: int | None

    @property
    def uid(self) -> int:
        """The uid whose run it is."""
        return self.connection.peer.uid


async def unless_gone(work: Coroutine[object, object, T], gone: asyncio.Event) -> T:
    """Await ``work``, but give it up when the peer hangs up.

    Raises:
        PeerGone: it did.

    """
    task = asyncio.ensure_future(work)
    hangup = asyncio.ensure_future(gone.wait())
    try:
        await asyncio.wait({task, hangup}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise PeerGone("it hung up")
    finally:
        hangup.cancel()
        task.cancel()


def running(proposal: Proposal, grant: str) -> Run:
    """Make the record of a run that is about to begin."""
    return _record(proposal, "running", run_id=f"run_{secrets.token_hex(16)}", grant=grant)


def denied(proposal: Proposal) -> Run:
    """Make the record of a run that policy refused."""
    return _record(proposal, "denied", run_id=f"run_{secrets.token_hex(16)}")


def not_started(proposal: Proposal) -> Run:
    """Say by a run without an id why a proposal cannot be executed (yet).

    Raises:
        Conflict: it was withdrawn.

    """
    match proposal.state:
        case "pending":
            advice = f"sandboxctl approve {proposal.id}"
            denial = _denial(proposal, "APPROVAL_REQUIRED", "somebody must approve it", advice)
            return _record(proposal, "pending", denials=(denial,))
        case "rejected":
            denial = _denial(proposal, "REJECTED", f"it was rejected: {proposal.message}", "")
            return _record(proposal, "rejected", denials=(denial,))
        case "expired":
            denial = _denial(proposal, "GRANT_EXPIRED", "its time is over", "propose it again")
            return _record(proposal, "expired", denials=(denial,))
        case "denied":
            return _record(proposal, "denied")
        case _:
            raise Conflict(f"cannot execute this proposal: it is {proposal.state}")


def changed(proposal: Proposal, now: Prepared) -> Denial:
    """Say what is no longer as it was when the proposal was judged."""
    then, program = proposal.executable, now.executable
    same_program = then is not None and (
        (then.path, then.dev, then.ino, then.sha256)
        == (program.path, program.identity.dev, program.identity.ino, program.sha256)
    )
    reason: ReasonCode = "POLICY_CHANGED" if same_program else "EXECUTABLE_CHANGED"
    kind: Literal["policy", "executable"] = "policy" if same_program else "executable"
    return refuse(
        kind,
        proposal.command,
        reason,
        f"cannot execute {proposal.command}: its {kind} has changed since it was proposed",
        profile=proposal.command,
        advice="propose it again",
    )


def _record(
    proposal: Proposal,
    status: Status | Literal["running"],
    *,
    run_id: str = "",
    grant: str = "",
    denials: tuple[Denial, ...] = (),
) -> Run:
    return Run(
        id=run_id,
        command=proposal.command,
        status=status,
        proposal=proposal.id,
        grant=grant,
        digest=proposal.digest,
        created_at=now_ms(),
        denials=denials or proposal.denials,
        denials_complete=True,
        executable=proposal.executable,
        argv=proposal.argv,
        workspace=proposal.workspace,
        reason=proposal.reason,
        uid=proposal.uid,
    )


def _denial(proposal: Proposal, reason: ReasonCode, why: str, advice: str) -> Denial:
    return refuse(
        "policy",
        proposal.command,
        reason,
        f"cannot execute {proposal.command}: {why}",
        profile=proposal.command,
        rule=proposal.rule,
        advice=advice,
    )
