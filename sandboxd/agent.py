"""What may an agent ask for?

``io.sandboxd.Agent`` on agent.sock. There is no method here that approves anything, and none that
shows what belongs to another uid.
"""

from __future__ import annotations

import fcntl
import os
import signal
import stat

from sandboxd.errors import UsageError
from sandboxd.execution import Client, unless_gone
from sandboxd.messages import (
    CommandsReply,
    ExecuteOf,
    Nothing,
    OfProposal,
    OfRun,
    ProposalReply,
    RunReply,
    SignalOf,
    VerdictReply,
    WaitFor,
)
from sandboxd.proposals import Proposals
from sandboxd.proposing import check_request
from sandboxd.protocol import AGENT_INTERFACE, Request
from sandboxd.runs import Runs
from sandboxd.varlink import Caller, Interface, method

_MAX_WAIT_MS = 24 * 3600 * 1000
_SIGNALS = frozenset(
    {"CONT", "HUP", "INT", "KILL", "QUIT", "STOP", "TERM", "TSTP", "USR1", "USR2", "WINCH"}
)


class Agent(Interface):
    """Propose calls of allowlisted commands and execute them under their profiles."""

    name = AGENT_INTERFACE

    def __init__(self, proposals: Proposals, runs: Runs) -> None:
        self._proposals = proposals
        self._runs = runs

    @method(Nothing, CommandsReply)
    async def list_commands(self, _caller: Caller, _: Nothing) -> CommandsReply:
        """List the commands there are, with a JSON Schema of their arguments."""
        return CommandsReply(commands=self._proposals.allowlist.commands())

    @method(Request, VerdictReply)
    async def check(self, caller: Caller, request: Request) -> VerdictReply:
        """Say what would become of a request. Nothing is kept."""
        _without_stdin(request)
        check_request(request)
        workspace_fd = caller.descriptor(request.workspace)
        return VerdictReply(verdict=self._proposals.check(request, workspace_fd))

    @method(Request, ProposalReply)
    async def propose(self, caller: Caller, request: Request) -> ProposalReply:
        """Have a request judged and kept until it is executed or its time is over."""
        _without_stdin(request)
        workspace_fd = caller.descriptor(request.workspace)
        return ProposalReply(proposal=self._proposals.propose(caller.uid, request, workspace_fd))

    @method(OfProposal, ProposalReply)
    async def get_proposal(self, caller: Caller, of: OfProposal) -> ProposalReply:
        """Return a proposal as it is now."""
        return ProposalReply(proposal=self._proposals.get(caller.uid, of.proposal))

    @method(WaitFor, ProposalReply)
    async def wait_proposal(self, caller: Caller, wait: WaitFor) -> ProposalReply:
        """Return a proposal when it is no longer pending, or at the timeout."""
        if wait.timeout_ms is not None and not 0 <= wait.timeout_ms <= _MAX_WAIT_MS:
            raise UsageError("cannot wait so long: 0 to 86400000 ms", field="timeout_ms")
        timeout_s = None if wait.timeout_ms is None else wait.timeout_ms / 1000
        waiting = self._proposals.wait(caller.uid, wait.proposal, timeout_s)
        return ProposalReply(proposal=await unless_gone(waiting, caller.connection.gone))

    @method(OfProposal, ProposalReply)
    async def cancel_proposal(self, caller: Caller, of: OfProposal) -> ProposalReply:
        """Withdraw a proposal that is pending or ready."""
        return ProposalReply(proposal=self._proposals.cancel(caller.uid, of.proposal))

    @method(ExecuteOf, RunReply, streams=True)
    async def execute(self, caller: Caller, of: ExecuteOf) -> RunReply:
        """Execute a proposal that is ready, once. With more: an event for all that happens."""
        return RunReply(run=await self._runs.execute(_client(caller, of.stdin), of.proposal))

    @method(Request, RunReply, streams=True)
    async def run(self, caller: Caller, request: Request) -> RunReply:
        """Propose and, if policy allows it without asking, execute. With more: events too."""
        client = _client(caller, request.stdin)
        workspace_fd = caller.descriptor(request.workspace)
        return RunReply(run=await self._runs.run(client, request, workspace_fd))

    @method(OfRun, RunReply)
    async def get_run(self, caller: Caller, of: OfRun) -> RunReply:
        """Return a run as it is now."""
        return RunReply(run=self._runs.get(caller.uid, of.run))

    @method(SignalOf, Nothing)
    async def signal(self, caller: Caller, of: SignalOf) -> Nothing:
        """Send a signal to a running command."""
        names = {int(each): each.name.removeprefix("SIG") for each in signal.Signals}
        if names.get(of.signal) not in _SIGNALS:
            raise UsageError(
                f"cannot send signal {of.signal}: it is none of {', '.join(sorted(_SIGNALS))}",
                field="signal",
            )
        self._runs.signal(caller.uid, of.run, of.signal)
        return Nothing()


def _without_stdin(request: Request) -> None:
    if request.stdin is not None:
        raise UsageError("cannot keep standard input: give it to Execute", field="stdin")


def _client(caller: Caller, stdin: int | None) -> Client:
    stdin_fd = caller.descriptor(stdin)
    if stdin_fd is not None:
        _check_pipe(stdin_fd)
    return Client(caller.connection, caller.tell, stdin_fd)


def _check_pipe(fd: int) -> None:
    """Let nothing but the read end of a pipe(7) become a command's standard input."""
    readable = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
    if not (stat.S_ISFIFO(os.fstat(fd).st_mode) and readable):
        raise UsageError("cannot use this as standard input: not a pipe to read", field="stdin")
