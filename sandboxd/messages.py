"""Which parameters do the methods take, and what do they reply?

Beside `sandboxd.protocol.Request`, which Propose, Run and Check take. Members named ``stdin`` and
``workspace`` are indices into the descriptors that come with the frame.
"""

from __future__ import annotations

from dataclasses import dataclass

from sandboxd.protocol import CommandInfo, DaemonStatus, Event, Proposal, Run, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Nothing:
    """No parameters; an empty reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventReply:
    """A reply before the last one of a call with ``more``."""

    event: Event


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandsReply:
    """The allowlist."""

    commands: tuple[CommandInfo, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalReply:
    """A proposal as it is now."""

    proposal: Proposal


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReply:
    """A run as it is now."""

    run: Run


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictReply:
    """What would become of a request."""

    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class OfProposal:
    """Names a proposal."""

    proposal: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitFor:
    """Names a proposal, and how long to wait at most."""

    proposal: str
    timeout_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecuteOf:
    """Names a proposal and the descriptor of a pipe that the command reads."""

    proposal: str
    stdin: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OfRun:
    """Names a run."""

    run: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalOf:
    """Names a run, and a signal(7) by its number."""

    run: str
    signal: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalsReply:
    """Proposals, oldest first."""

    proposals: tuple[Proposal, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """Names a proposal, and says to its maker why it is refused."""

    proposal: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReloadReply:
    """How many profiles are in force, and the digest over all of them."""

    profiles: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """How many runs to list, and whether only those that have not ended."""

    limit: int = 50
    active: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsReply:
    """Runs, newest first, without what they printed."""

    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusReply:
    """How the daemon is."""

    status: DaemonStatus
