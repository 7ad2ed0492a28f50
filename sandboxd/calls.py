"""Which methods does the daemon have, and how is each called?

One value a call, so that `sandboxd.client` and `sandboxd.aclient` differ only in how they wait.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any, Generic, TypeVar

from sandboxd import wire
from sandboxd.feed import Feed
from sandboxd.messages import (
    CommandsReply,
    ExecuteOf,
    Nothing,
    OfProposal,
    OfRun,
    ProposalReply,
    ProposalsReply,
    Rejection,
    ReloadReply,
    RunReply,
    RunsReply,
    Selection,
    SignalOf,
    StatusReply,
    VerdictReply,
    WaitFor,
)
from sandboxd.outgoing import Outgoing
from sandboxd.protocol import (
    ADMIN_INTERFACE,
    AGENT_INTERFACE,
    CommandInfo,
    DaemonStatus,
    Proposal,
    Run,
    Verdict,
)

T = TypeVar("T")
Plain = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[T]):
    """One method call. ``read`` decodes the last reply; ``more`` asks for events before it.

    ``repeatable`` calls only look, so a lost connection may be made again and they sent again.
    """

    method: str
    parameters: object
    read: Callable[[Plain], T]
    more: bool = False
    repeatable: bool = False
    descriptors: tuple[int, ...] = ()
    feed: Feed | None = None

    def frame(self) -> bytes:
        """Encode it."""
        return wire.encode_call(self.method, _members(self.parameters), more=self.more)


def propose(out: Outgoing) -> Call[Proposal]:
    """Have a request judged and kept, to be executed later."""
    return _requesting("Propose", out, _proposal)


def run(out: Outgoing, *, more: bool) -> Call[Run]:
    """Have a request judged and carried out at once."""
    return _requesting("Run", out, _run, more=more)


def check(out: Outgoing) -> Call[Verdict]:
    """Ask what would become of a request."""
    return _requesting(
        "Check", out, lambda plain: wire.read(VerdictReply, plain).verdict, repeatable=True
    )


def execute(proposal: str, feed: Feed | None, *, more: bool) -> Call[Run]:
    """Carry out a proposal that is ready."""
    return Call(
        method=f"{AGENT_INTERFACE}.Execute",
        parameters=ExecuteOf(proposal=proposal, stdin=None if feed is None else 0),
        read=_run,
        more=more,
        descriptors=() if feed is None else (feed.read_fd,),
        feed=feed,
    )


def commands() -> Call[tuple[CommandInfo, ...]]:
    """List the allowlist as an agent sees it."""
    return _looking(f"{AGENT_INTERFACE}.ListCommands", Nothing(), _commands)


def get_proposal(proposal: str) -> Call[Proposal]:
    """Look at a proposal."""
    return _looking(f"{AGENT_INTERFACE}.GetProposal", OfProposal(proposal=proposal), _proposal)


def wait_proposal(proposal: str, timeout: float | None) -> Call[Proposal]:
    """Wait until a proposal is no longer pending, or for ``timeout`` seconds."""
    timeout_ms = None if timeout is None else max(0, math.ceil(timeout * 1000))
    waiting = WaitFor(proposal=proposal, timeout_ms=timeout_ms)
    return _looking(f"{AGENT_INTERFACE}.WaitProposal", waiting, _proposal)


def cancel_proposal(proposal: str) -> Call[Proposal]:
    """Take a proposal back."""
    return _changing(f"{AGENT_INTERFACE}.CancelProposal", OfProposal(proposal=proposal), _proposal)


def get_run(run_id: str) -> Call[Run]:
    """Look at the record of a run."""
    return _looking(f"{AGENT_INTERFACE}.GetRun", OfRun(run=run_id), _run)


def signal(run_id: str, number: int) -> Call[None]:
    """Send a signal to a running command."""
    sent = SignalOf(run=run_id, signal=int(number))
    return _changing(f"{AGENT_INTERFACE}.Signal", sent, _nothing)


def pending() -> Call[tuple[Proposal, ...]]:
    """List the proposals that wait for an approver."""
    return _looking(
        f"{ADMIN_INTERFACE}.Pending",
        Nothing(),
        lambda plain: wire.read(ProposalsReply, plain).proposals,
    )


def approve(proposal: str) -> Call[Proposal]:
    """Allow a pending proposal."""
    return _changing(f"{ADMIN_INTERFACE}.Approve", OfProposal(proposal=proposal), _proposal)


def reject(proposal: str, message: str) -> Call[Proposal]:
    """Refuse a pending proposal; the agent is told ``message``."""
    rejection = Rejection(proposal=proposal, message=message)
    return _changing(f"{ADMIN_INTERFACE}.Reject", rejection, _proposal)


def profiles() -> Call[tuple[CommandInfo, ...]]:
    """List the allowlist with what cannot be used and why."""
    return _looking(f"{ADMIN_INTERFACE}.Profiles", Nothing(), _commands)


def reload() -> Call[ReloadReply]:
    """Read the profiles again."""
    return _changing(
        f"{ADMIN_INTERFACE}.Reload", Nothing(), lambda plain: wire.read(ReloadReply, plain)
    )


def runs(selection: Selection) -> Call[tuple[Run, ...]]:
    """List runs, the latest first."""
    return _looking(
        f"{ADMIN_INTERFACE}.Runs", selection, lambda plain: wire.read(RunsReply, plain).runs
    )


def kill(run_id: str) -> Call[None]:
    """End a run of anybody now."""
    return _changing(f"{ADMIN_INTERFACE}.Kill", OfRun(run=run_id), _nothing)


def status() -> Call[DaemonStatus]:
    """Ask how the daemon is."""
    return _looking(
        f"{ADMIN_INTERFACE}.Status", Nothing(), lambda plain: wire.read(StatusReply, plain).status
    )


def _requesting(
    name: str,
    out: Outgoing,
    read: Callable[[Plain], T],
    *,
    more: bool = False,
    repeatable: bool = False,
) -> Call[T]:
    return Call(
        method=f"{AGENT_INTERFACE}.{name}",
        parameters=out.request,
        read=read,
        more=more,
        repeatable=repeatable,
        descriptors=tuple(out.descriptors),
        feed=out.feed,
    )


def _looking(method: str, parameters: object, read: Callable[[Plain], T]) -> Call[T]:
    return Call(method=method, parameters=parameters, read=read, repeatable=True)


def _changing(method: str, parameters: object, read: Callable[[Plain], T]) -> Call[T]:
    return Call(method=method, parameters=parameters, read=read)


def _members(value: object) -> object:
    """Return the members of a dataclass that differ from their defaults."""
    if not is_dataclass(value):
        return value
    members: Plain = {}
    for each in fields(value):
        member = getattr(value, each.name)
        default = each.default if each.default_factory is MISSING else each.default_factory()
        if default is MISSING or member != default:
            members[each.name] = _members(member)
    return members


def _proposal(plain: Plain) -> Proposal:
    return wire.read(ProposalReply, plain).proposal


def _run(plain: Plain) -> Run:
    done = wire.read(RunReply, plain).run
    wire.check_data(done.stdout, done.stderr)
    return done


def _commands(plain: Plain) -> tuple[CommandInfo, ...]:
    return wire.read(CommandsReply, plain).commands


def _nothing(plain: Plain) -> None:
    wire.read(Nothing, plain)
