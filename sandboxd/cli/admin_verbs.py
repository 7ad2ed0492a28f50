"""How does a person see and decide what goes through the daemon?

All texts that an agent chose are shown quoted and escaped.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from launcher.records import to_plain
from sandboxd.cli.endings import signal_name
from sandboxd.cli.ids import naming, whole_proposal, whole_run
from sandboxd.cli.terminal import put_json, put_line, put_table
from sandboxd.client import AdminClient
from sandboxd.protocol import Proposal, Run

_BRIEF = 120  # of an argv in a table; `show` has it whole


def ps(options: argparse.Namespace) -> int:
    """List what runs now."""
    with AdminClient() as client:
        return _list_runs(client.runs(active=True), options)


def runs(options: argparse.Namespace) -> int:
    """List the latest runs."""
    with AdminClient() as client:
        return _list_runs(client.runs(limit=options.limit), options)


def kill(options: argparse.Namespace) -> int:
    """End a run now."""
    run = whole_run(options.run, active=True)
    with AdminClient() as client, naming("run", run):
        client.kill(run)
    if options.json:
        put_json({})
    else:
        put_line(f"{run} killed")
    return 0


def pending(options: argparse.Namespace) -> int:
    """List what waits for approval: exactly what would run, and where."""
    with AdminClient() as client:
        proposals = client.pending()
    if options.json:
        put_json({"proposals": proposals})
        return 0
    for proposal in proposals:
        _show_pending(proposal)
    return 0


def approve(options: argparse.Namespace) -> int:
    """Allow a pending proposal."""
    return _decide(options, lambda client, proposal: client.approve(proposal))


def reject(options: argparse.Namespace) -> int:
    """Refuse a pending proposal."""
    return _decide(options, lambda client, whole: client.reject(whole, options.message))


def reload(options: argparse.Namespace) -> int:
    """Have the daemon read the profiles again."""
    with AdminClient() as client:
        reloaded = client.reload()
    if options.json:
        put_json(reloaded)
    else:
        put_line(f"{reloaded.profiles} profiles, digest {reloaded.digest}")
    return 0


def status(options: argparse.Namespace) -> int:
    """Tell how the daemon is."""
    with AdminClient() as client:
        answer = client.status()
    if options.json:
        put_json(answer)
        return 0
    for name, value in to_plain(answer).items():
        put_line(f"{name + ':':20} {_at(value) if name == 'started_at' else value}")
    return 0


def _list_runs(found: tuple[Run, ...], options: argparse.Namespace) -> int:
    if options.json:
        put_json({"runs": found})
        return 0
    put_table(
        [
            (run.id, _at(run.created_at), _end_of(run), f"uid {run.uid}", run.command, _brief(run))
            for run in found
        ]
    )
    return 0


def _show_pending(proposal: Proposal) -> None:
    put_line(f"{proposal.id}  {proposal.command}  asked by uid {proposal.uid}")
    if proposal.executable is not None:
        put_line(f"  program    {proposal.executable.path}")
    put_line(f"  argv       {_argv(proposal)}")
    put_line(f"  workspace  {proposal.workspace or 'none'}")
    put_line(f"  reason     {proposal.reason!r}")
    put_line(f"  digest     {proposal.digest}")
    put_line(f"  expires    {_at(proposal.expires_at)}")


def _decide(options: argparse.Namespace, decide: Callable[[AdminClient, str], Proposal]) -> int:
    whole = whole_proposal(options.proposal)
    with AdminClient() as client, naming("proposal", whole):
        decided = decide(client, whole)
    if options.json:
        put_json(decided)
    else:
        put_line(f"{decided.id} {decided.state}")
    return 0


def _end_of(run: Run) -> str:
    if run.status == "exited":
        return f"exited {run.exit_code}"
    if run.status == "signaled":
        return f"signaled {signal_name(run.signal)}"
    return f"{run.status} {run.limit}" if run.limit else run.status


def _brief(run: Run) -> str:
    argv = _argv(run)
    return argv if len(argv) <= _BRIEF else argv[:_BRIEF] + " ..."


def _argv(shown: Proposal | Run) -> str:
    return " ".join(map(repr, shown.argv))


def _at(milliseconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(milliseconds / 1000))
