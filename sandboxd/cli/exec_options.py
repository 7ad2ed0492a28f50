"""How is the command line of ``sandboxctl exec`` read, without importing argparse?"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field

from sandboxd.errors import UsageError

USAGE = "usage: sandboxctl exec --profile NAME [OPTION ...] -- COMMAND [ARGUMENT ...]"
_HELP = ("-h", "--help")
_STDIN = ("-i", "--stdin")


@dataclass(slots=True)
class ExecOptions:
    """The command line of ``exec``. ``help`` was asked for if it is set, and nothing else."""

    profile: str = ""
    workspace: str | None = None
    interactive: bool = False
    timeout: float | None = None
    limits: dict[str, int] = field(default_factory=dict)
    reason: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    status_fd: int | None = None
    argv: list[str] = field(default_factory=list)
    help: bool = False


def parse_exec(arguments: list[str]) -> ExecOptions:
    """Read the command line.

    Raises:
        UsageError: it is wrong.

    """
    options = ExecOptions()
    left = list(arguments)
    while left:
        word = left.pop(0)
        if word == "--":
            options.argv = left
            break
        if word in _HELP:
            return ExecOptions(help=True)
        if word in _STDIN:
            options.interactive = True
            continue
        name, value = _split(word)
        if value is None:
            value = left.pop(0) if left else ""
        setter = SETTERS.get(name)
        if setter is None or not value:
            raise UsageError(f"cannot read {word!r}\n{USAGE}")
        setter(options, value)
    if not options.profile or not options.argv:
        raise UsageError(f"cannot run nothing: --profile and a command are needed\n{USAGE}")
    return options


def _split(word: str) -> tuple[str, str | None]:
    """Take ``--name=value`` and ``-nvalue`` apart; any other word has no value in it."""
    name, equals, value = word.partition("=")
    if equals and name.startswith("--"):
        return name, value
    if word[:2] in SETTERS and len(word) > 2:
        return word[:2], word[2:]
    return word, None


def _set_profile(options: ExecOptions, value: str) -> None:
    options.profile = value


def _set_workspace(options: ExecOptions, value: str) -> None:
    options.workspace = value


def _set_timeout(options: ExecOptions, value: str) -> None:
    from sandboxd.units import parse_duration

    options.timeout = _read(parse_duration, value) / 1000


def _set_size(name: str) -> Callable[[ExecOptions, str], None]:
    def set_size(options: ExecOptions, value: str) -> None:
        from sandboxd.units import parse_size

        options.limits[name] = _read(parse_size, value)

    return set_size


def _set_pids(options: ExecOptions, value: str) -> None:
    if not value.isdecimal():
        raise UsageError(f"cannot read {value!r}: --pids takes a number")
    options.limits["pids"] = int(value)


def _read(parse: Callable[[str], int], value: str) -> int:
    try:
        return parse(value)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _set_reason(options: ExecOptions, value: str) -> None:
    options.reason = value


def _set_environment(options: ExecOptions, value: str) -> None:
    name, equals, content = value.partition("=")
    if not equals:
        raise UsageError(f"cannot set {value!r}: write NAME=VALUE")
    options.environment[name] = content


def _set_status_fd(options: ExecOptions, value: str) -> None:
    options.status_fd = parse_fd(value)


def parse_fd(text: str) -> int:
    """Read the number of a descriptor that is open.

    Raises:
        UsageError: it is none.

    """
    try:
        fd = int(text)
        os.fstat(fd)
    except (ValueError, OverflowError, OSError):
        raise UsageError(
            f"cannot write the record to {text!r}: it is no open descriptor"
        ) from None
    return fd


SETTERS: dict[str, Callable[[ExecOptions, str], None]] = {
    "-p": _set_profile,
    "--profile": _set_profile,
    "-w": _set_workspace,
    "--workspace": _set_workspace,
    "--timeout": _set_timeout,
    "--memory": _set_size("memory"),
    "--pids": _set_pids,
    "--output": _set_size("output"),
    "--reason": _set_reason,
    "--env": _set_environment,
    "--status-fd": _set_status_fd,
}
HELP = f"""{USAGE}

Run a command line under a profile, with its output, signals and exit status passed through.

options:
  -h, --help            show this help
  -p, --profile NAME    the profile: one whose only argument is a script, such as sh
  -w, --workspace DIR   the directory to grant; without it the current directory is
                        granted, if the profile works in one
  -i, --stdin           give the command this standard input; without it there is none
  --timeout TIME        at most so long, such as "10s"
  --memory SIZE         at most so much, such as "256MiB"
  --pids N              at most so many processes
  --output SIZE         keep at most so much of each stream
  --reason TEXT         shown to whoever decides
  --env NAME=VALUE      set a variable that the profile lets pass
  --status-fd N         write the record, or the fault, to this descriptor as JSON
"""
