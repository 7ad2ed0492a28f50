"""How is the command line of ``sandboxctl exec`` read, without importing argparse?"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field

from sandboxd.errors import UsageError

USAGE = (
    "usage: sandboxctl exec --profile NAME [-w DIR] [-i] [--timeout 10s] [--reason TEXT] "
    "[--env NAME=VALUE] [--status-fd N] -- COMMAND [ARGUMENT ...]"
)
HELP = f"""{USAGE}

Run a command line under a shell profile, such as sh, with its output passed through.

  -p, --profile NAME  the profile: one whose only argument is a script
  -w DIR              the directory to grant; without it, the current one
  -i                  give the command this standard input; else it is at its end
  --timeout TIME      at most so long, such as "10s"
  --reason TEXT       shown to whoever decides
  --env NAME=VALUE    set a variable that the profile lets pass
  --status-fd N       write the record to this descriptor, as JSON"""


@dataclass(slots=True)
class ExecOptions:
    """The command line of ``exec``."""

    profile: str = ""
    workspace: str | None = None
    interactive: bool = False
    timeout: float | None = None
    reason: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    status_fd: int | None = None
    argv: list[str] = field(default_factory=list)


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
        if word in {"-i", "--stdin"}:
            options.interactive = True
            continue
        name, equals, value = word.partition("=")
        if not equals or not name.startswith("--"):
            name, value = word, left.pop(0) if left else ""
        setter = _SETTERS.get(name)
        if setter is None or not value:
            raise UsageError(f"cannot read {word!r}\n{USAGE}")
        setter(options, value)
    if not options.profile or not options.argv:
        raise UsageError(f"cannot run nothing: --profile and a command are needed\n{USAGE}")
    return options


def _set_profile(options: ExecOptions, value: str) -> None:
    options.profile = value


def _set_workspace(options: ExecOptions, value: str) -> None:
    options.workspace = value


def _set_timeout(options: ExecOptions, value: str) -> None:
    from sandboxd.units import parse_duration

    try:
        options.timeout = parse_duration(value) / 1000
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


_SETTERS: dict[str, Callable[[ExecOptions, str], None]] = {
    "-p": _set_profile,
    "--profile": _set_profile,
    "-w": _set_workspace,
    "--workspace": _set_workspace,
    "--timeout": _set_timeout,
    "--reason": _set_reason,
    "--env": _set_environment,
    "--status-fd": _set_status_fd,
}
