"""How do ``run``, ``execute`` and ``show`` present a run?"""

from __future__ import annotations

import argparse
from typing import Self

from sandboxd.cli import plain_fault
from sandboxd.cli.arguments import words
from sandboxd.cli.endings import Shown, describe_denials, explain
from sandboxd.cli.exec_options import parse_fd
from sandboxd.cli.ids import naming, whole_proposal, whole_run
from sandboxd.cli.terminal import put_json, put_line, show_stream
from sandboxd.client import Client
from sandboxd.errors import SandboxdError
from sandboxd.protocol import NOT_STARTED, Run


def run(options: argparse.Namespace) -> int:
    """Run a command and end as it did."""
    shown = Shown(show_stream)
    with Client() as client, _Record(options) as record:
        done = client.run(
            options.command,
            **words(client, options),
            input=0 if options.stdin else None,
            reason=options.reason,
            on_event=shown.event if options.stream and not options.json else None,
        )
        record.keep(done)
    return _present(done, options, shown)


def execute(options: argparse.Namespace) -> int:
    """Execute a proposal and end as its command did."""
    shown = Shown(show_stream)
    with _Record(options) as record:
        whole = whole_proposal(options.proposal)
        with Client() as client, naming("proposal", whole):
            done = client.execute(
                whole,
                input=0 if options.stdin else None,
                on_event=shown.event if options.stream and not options.json else None,
            )
        record.keep(done)
    return _present(done, options, shown)


def show(options: argparse.Namespace) -> int:
    """Show the record of a run."""
    whole = whole_run(options.run)
    with Client() as client, naming("run", whole):
        found = client.get_run(whole)
    if options.json:
        put_json(found)
        return 0
    for name, value in _facts(found):
        put_line(f"{name + ':':13} {value}")
    return 0


class _Record:
    """Writes the record, or the fault in its place, to the descriptor of ``--status-fd``."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._fd = None if options.status_fd is None else parse_fd(options.status_fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, value: BaseException | None, tb: object) -> None:
        if self._fd is not None and isinstance(value, SandboxdError):
            put_json(plain_fault(value), self._fd)

    def keep(self, done: Run) -> None:
        if self._fd is not None:
            put_json(done, self._fd)


def _present(done: Run, options: argparse.Namespace, shown: Shown) -> int:
    if options.json:
        put_json(done)
    else:
        shown.rest(done)
        explain(done)
    return done.exit_status


def _status(found: Run) -> str:
    if found.status in {"running", "lost"}:  # it has no end that is known
        return found.status
    limit = f" ({found.limit})" if found.limit else ""
    return f"{found.status}{limit}, exit status {found.exit_status}"


def _facts(found: Run) -> list[tuple[str, str]]:
    facts = [
        ("run", found.id),
        ("command", found.command),
        ("status", _status(found)),
        ("argv", " ".join(map(repr, found.argv))),
        ("workspace", found.workspace or "none"),
        ("digest", found.digest),
        ("proposal", found.proposal),
        ("grant", found.grant),
        ("reason", repr(found.reason) if found.reason else ""),
        ("uid", str(found.uid)),
        *_measured(found),
        ("limits hit", ", ".join(found.usage.limits_hit)),
        *(("denied", line) for line in describe_denials(found.denials).split("\n")),
    ]
    if found.effective is not None:
        facts += [
            ("profile", f"{found.effective.profile} {found.effective.profile_digest}"),
            ("layers", ", ".join(found.effective.layers)),
            ("limits held", ", ".join(found.effective.limits)),
            ("degraded", ", ".join(found.effective.degraded) or "nothing"),
        ]
    return [(name, value) for name, value in facts if value]


def _measured(found: Run) -> list[tuple[str, str]]:
    """Return what is known once a command has run: how long, with what, and what it printed."""
    if found.status in NOT_STARTED | {"running", "lost"}:
        return []
    facts = [("time", f"{found.setup_ms:.1f} ms to set up, {found.wall_ms:.1f} ms to run")]
    if found.usage.user_ms >= 0:
        used = f"{found.usage.user_ms:.0f} ms user, {found.usage.system_ms:.0f} ms system"
        facts.append(("cpu", used))
    for name, stream in (("stdout", found.stdout), ("stderr", found.stderr)):
        facts.append((name, f"{stream.total_bytes} bytes, {stream.dropped_bytes} dropped"))
    return facts
