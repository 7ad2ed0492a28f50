"""How is a command line run under a profile, as if it had been typed without ``sandboxctl``?

    sandboxctl exec --profile NAME [OPTION…] -- COMMAND [ARGUMENT…]

Output passes through byte for byte as it comes, signals are passed on, the exit status is kept,
and nothing is said but what could not be done. Imports are kept to what a run needs.
"""

from __future__ import annotations

import shlex
import signal
from typing import TYPE_CHECKING

from sandboxd.cli import plain_fault
from sandboxd.cli.endings import Shown, explain
from sandboxd.cli.exec_options import HELP, ExecOptions, parse_exec
from sandboxd.cli.terminal import STDOUT, put_json, write_all
from sandboxd.client import Client
from sandboxd.errors import Conflict, NotFound, SandboxdError, UsageError
from sandboxd.protocol import CommandInfo, Event, Run

if TYPE_CHECKING:
    import argparse

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Interrupted(Exception):
    """A signal came before the command had started."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def run_exec(arguments: list[str]) -> int:
    """Run ``sandboxctl exec`` with these ``arguments`` and return its exit status."""
    options = parse_exec(arguments)
    if options.help:
        write_all(STDOUT, HELP.encode())
        return 0
    try:
        with Client() as client:
            run = _carry_out(client, options)
    except Interrupted as interrupted:
        return 128 + interrupted.number
    except SandboxdError as fault:
        if options.status_fd is not None:
            put_json(plain_fault(fault), options.status_fd)
        raise
    if options.status_fd is not None:
        put_json(run, options.status_fd)
    explain(run)
    return run.exit_status


def carry_out(options: argparse.Namespace) -> int:
    """Run it where argparse has come upon it, behind options of ``sandboxctl`` itself."""
    return run_exec(options.words)


class _Signals:
    """Passes signals on to the command once it has started."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._run = ""
        for number in _FORWARDED:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup(1) leaves it
                signal.signal(number, self._forward)

    def event(self, event: Event) -> None:
        """Note whom to pass them on to."""
        if event.kind == "started":
            self._run = event.run

    def _forward(self, number: int, _frame: object) -> None:
        if not self._run:
            raise Interrupted(number)
        try:
            self._client.signal(self._run, number)
        except (NotFound, Conflict):
            return  # it has ended meanwhile


def _carry_out(client: Client, options: ExecOptions) -> Run:
    signals, shown = _Signals(client), Shown(write_all)

    def on_event(event: Event) -> None:
        signals.event(event)
        shown.event(event)

    run = client.run(
        options.profile,
        arguments={"script": shlex.join(options.argv)},
        workspace=_workspace(client.commands(), options),
        timeout=options.timeout,
        limits=options.limits,
        input=0 if options.interactive else None,
        env=options.environment,
        reason=options.reason,
        on_event=on_event,
    )
    shown.rest(run)
    return run


def _workspace(commands: tuple[CommandInfo, ...], options: ExecOptions) -> str | None:
    """Return the directory asked for, else the current one if the profile takes one.

    A profile that does not exist is left to the daemon, which records the refusal.

    Raises:
        UsageError: it is no profile for command lines.

    """
    name = options.profile
    named = next((info for info in commands if info.name == name), None)
    if named is None:
        return options.workspace
    if not _takes_script(named):
        shells = ", ".join(sorted(info.name for info in commands if _takes_script(info)))
        raise UsageError(
            f"cannot exec under {name!r}: it does not take a script and nothing else; "
            f"profiles that do: {shells or 'none'}"
        )
    return options.workspace or (None if named.workspace == "none" else ".")


def _takes_script(info: CommandInfo) -> bool:
    properties = info.parameters.get("properties")
    if not isinstance(properties, dict) or set(properties) != {"script"}:
        return False
    script = properties["script"]
    return isinstance(script, dict) and script.get("type") == "string"
