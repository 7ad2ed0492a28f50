"""How are calls proposed, checked and followed from the command line?"""

from __future__ import annotations

import argparse

from sandboxd.cli.arguments import words
from sandboxd.cli.endings import describe_denials
from sandboxd.cli.ids import naming, whole_proposal
from sandboxd.cli.terminal import complain, put_json, put_line, put_table
from sandboxd.client import Client
from sandboxd.protocol import Denial, Proposal

_DENIED, _NOT_IN_ALLOWLIST, _PENDING, _FAULT = 126, 127, 75, 125
_STATUS = {
    "ready": 0,
    "used": 0,
    "pending": _PENDING,
    "denied": _DENIED,
    "rejected": _DENIED,
    "expired": _DENIED,
    "cancelled": _FAULT,
}


def propose(options: argparse.Namespace) -> int:
    """Have a call judged and kept."""
    with Client() as client:
        made = client.propose(options.command, **words(client, options), reason=options.reason)
    return present(made, options)


def wait(options: argparse.Namespace) -> int:
    """Wait until a proposal is decided."""
    whole = whole_proposal(options.proposal)
    with Client() as client, naming("proposal", whole):
        decided = client.wait(whole, timeout=options.timeout)
    return present(decided, options)


def cancel(options: argparse.Namespace) -> int:
    """Take a proposal back."""
    whole = whole_proposal(options.proposal)
    with Client() as client, naming("proposal", whole):
        taken_back = client.cancel(whole)
    present(taken_back, options)
    return 0


def check(options: argparse.Namespace) -> int:
    """Tell what would become of a call."""
    with Client() as client:
        verdict = client.check(options.command, **words(client, options))
    if options.json:
        put_json(verdict)
    else:
        put_line(f"{verdict.decision} by {verdict.rule}")
        _complain_of(verdict.denials)
    if verdict.decision == "deny":
        return _denied_status(verdict.denials)
    return 0 if verdict.decision == "allow" else _PENDING


def commands(options: argparse.Namespace) -> int:
    """List the allowlist."""
    with Client() as client:
        infos = client.commands()
    if options.json:
        put_json({"commands": infos})
        return 0
    put_table(
        [
            (
                info.name,
                f"risk {info.risk}",
                f"workspace {info.workspace}",
                f"network {info.network}",
                info.approval,
                info.summary if info.available else f"unavailable: {info.unavailable_because}",
            )
            for info in infos
        ]
    )
    return 0


def present(proposal: Proposal, options: argparse.Namespace) -> int:
    """Show a proposal; return the exit status that says what became of it."""
    if options.json:
        put_json(proposal)
    else:
        put_line(f"{proposal.id} {proposal.state}")
        if proposal.message:
            complain(f"cannot execute {proposal.id}: the approver says {proposal.message!r}")
        _complain_of(proposal.denials)
    if proposal.state == "denied":
        return _denied_status(proposal.denials)
    return _STATUS[proposal.state]


def _complain_of(denials: tuple[Denial, ...]) -> None:
    if denials:
        complain(describe_denials(denials))


def _denied_status(denials: tuple[Denial, ...]) -> int:
    unknown = any(denial.reason == "NOT_IN_ALLOWLIST" for denial in denials)
    return _NOT_IN_ALLOWLIST if unknown else _DENIED
