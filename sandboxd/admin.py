"""What may an approver or administrator ask for?

``io.sandboxd.Admin`` on admin.sock: everybody's proposals and runs, the profiles in force, and how
the daemon is. Agents have no business here; the file mode of the socket and its directory keep
them out where they run as another uid.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from sandboxd.errors import UsageError
from sandboxd.messages import (
    CommandsReply,
    Nothing,
    OfProposal,
    OfRun,
    ProposalReply,
    ProposalsReply,
    Rejection,
    ReloadReply,
    RunsReply,
    Selection,
    StatusReply,
)
from sandboxd.proposals import Proposals
from sandboxd.protocol import ADMIN_INTERFACE, DaemonStatus, Run, Stream
from sandboxd.runs import Runs
from sandboxd.varlink import Caller, Interface, method

_MAX_RUNS = 500


class Admin(Interface):
    """Decide on proposals, and look after the daemon."""

    name = ADMIN_INTERFACE

    def __init__(
        self, proposals: Proposals, runs: Runs, status: Callable[[], DaemonStatus]
    ) -> None:
        self._proposals = proposals
        self._runs = runs
        self._status = status

    @method(Nothing, ProposalsReply)
    async def pending(self, _caller: Caller, _: Nothing) -> ProposalsReply:
        """List what waits for approval."""
        return ProposalsReply(proposals=self._proposals.pending())

    @method(OfProposal, ProposalReply)
    async def approve(self, _caller: Caller, of: OfProposal) -> ProposalReply:
        """Grant a pending proposal one execution."""
        return ProposalReply(proposal=self._proposals.approve(of.proposal))

    @method(Rejection, ProposalReply)
    async def reject(self, _caller: Caller, of: Rejection) -> ProposalReply:
        """Refuse a pending proposal and say why."""
        return ProposalReply(proposal=self._proposals.reject(of.proposal, of.message))

    @method(Nothing, CommandsReply)
    async def profiles(self, _caller: Caller, _: Nothing) -> CommandsReply:
        """List the commands of the profiles in force."""
        return CommandsReply(commands=self._proposals.allowlist.commands())

    @method(Nothing, ReloadReply)
    async def reload(self, _caller: Caller, _: Nothing) -> ReloadReply:
        """Load all profiles anew; if one cannot be used, those in force stay."""
        allowlist = self._proposals.allowlist
        allowlist.reload()
        return ReloadReply(profiles=len(allowlist), digest=allowlist.digest)

    @method(Selection, RunsReply)
    async def runs(self, _caller: Caller, selection: Selection) -> RunsReply:
        """List the latest runs, newest first, without what they printed."""
        if not 0 < selection.limit <= _MAX_RUNS:
            raise UsageError(f"cannot list so many runs: 1 to {_MAX_RUNS}", field="limit")
        found = self._runs.latest(selection.limit, active=selection.active)
        return RunsReply(runs=tuple(map(_without_output, found)))

    @method(OfRun, Nothing)
    async def kill(self, _caller: Caller, of: OfRun) -> Nothing:
        """End a run now."""
        self._runs.kill(of.run)
        return Nothing()

    @method(Nothing, StatusReply)
    async def status(self, _caller: Caller, _: Nothing) -> StatusReply:
        """Say how the daemon is."""
        return StatusReply(status=self._status())


def _without_output(run: Run) -> Run:
    return dataclasses.replace(run, stdout=_emptied(run.stdout), stderr=_emptied(run.stderr))


def _emptied(stream: Stream) -> Stream:
    return dataclasses.replace(
        stream,
        encoding="utf-8",
        data="",
        head_bytes=0,
        dropped_bytes=stream.total_bytes,
        truncated=stream.total_bytes > 0,
    )
