"""Which verbs does ``sandboxctl`` have, and what does each take?"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from sandboxd.cli import (
    admin_verbs,
    daemon_verbs,
    exec_verb,
    profile_verbs,
    proposal_verbs,
    run_verbs,
)
from sandboxd.cli.exec_options import USAGE as EXEC_USAGE
from sandboxd.cli.terminal import STDOUT, complain, write_all
from sandboxd.units import parse_duration, parse_size

_USAGE_STATUS = 64


class _Parser(argparse.ArgumentParser):
    """Ends with the status for wrong usage, and writes unbuffered."""

    def error(self, message: str) -> NoReturn:
        complain(f"cannot understand the command line: {message}\n{self.format_usage().strip()}")
        sys.exit(_USAGE_STATUS)

    def print_help(self, file: object = None) -> None:
        del file
        write_all(STDOUT, self.format_help().encode())


@dataclass(frozen=True, slots=True)
class _Option:
    """One option or operand, as `argparse.ArgumentParser.add_argument` takes it."""

    names: tuple[str, ...]
    settings: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Verb:
    name: str
    summary: str
    carry_out: Callable[[argparse.Namespace], int]
    options: tuple[_Option, ...] = ()


def _option(*names: str, **settings: object) -> _Option:
    return _Option(names, settings)


def _duration(text: str) -> float:
    try:
        return parse_duration(text) / 1000
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


_COMMAND = _option("command", metavar="NAME", help="the command, by its profile's name")
_PROPOSAL = _option(
    "proposal", metavar="PROPOSAL", help="its id; of a pending one, the beginning is enough"
)
_RUN = _option("run", metavar="RUN", help="its id, or the beginning of it")
_STDIN = _option("--stdin", "-i", action="store_true", help="give it this standard input")
_STATUS_FD = _option("--status-fd", metavar="N", help="write the record to this descriptor")
_STREAM = _option("--stream", action="store_true", help="show output as it comes")
_REQUEST = (
    _COMMAND,
    _option(
        "--arg", "-a", dest="arguments", action="append", default=[], metavar="KEY=VALUE",
        help="an argument; KEY:=JSON for any type, repeat KEY for a list",
    ),
    _option("--workspace", "-w", metavar="DIR", help="the directory to grant"),
    _option("--timeout", type=_duration, metavar="TIME", help='at most so long, such as "10s"'),
    _option("--memory", type=_size, metavar="SIZE", help='at most so much, such as "256MiB"'),
    _option("--pids", type=int, metavar="N", help="at most so many processes"),
    _option("--output", type=_size, metavar="SIZE", help="keep at most so much of each stream"),
    _option(
        "--env", dest="environment", action="append", default=[], metavar="NAME=VALUE",
        help="set a variable that the profile lets pass",
    ),
    _option("--reason", default="", metavar="TEXT", help="shown to whoever decides"),
)  # fmt: skip

VERBS = (
    _Verb("run", "run a command", run_verbs.run, (*_REQUEST, _STDIN, _STREAM, _STATUS_FD)),
    _Verb(
        "exec", "run a command line under a profile: a prefix for commands", exec_verb.carry_out,
        (_option("words", nargs=argparse.REMAINDER),),
    ),
    _Verb("propose", "have a call judged, to execute it later", proposal_verbs.propose, _REQUEST),
    _Verb(
        "execute", "execute a proposal that is ready", run_verbs.execute,
        (_PROPOSAL, _STDIN, _STREAM, _STATUS_FD),
    ),
    _Verb(
        "wait", "wait until a proposal is decided", proposal_verbs.wait,
        (_PROPOSAL, _option("--timeout", type=_duration, metavar="TIME", help="at most so long")),
    ),
    _Verb("cancel", "take a proposal back", proposal_verbs.cancel, (_PROPOSAL,)),
    _Verb("check", "tell what would become of a call", proposal_verbs.check, _REQUEST),
    _Verb("commands", "list the allowlist", proposal_verbs.commands),
    _Verb("ps", "list what runs now", admin_verbs.ps),
    _Verb("kill", "end a run now", admin_verbs.kill, (_RUN,)),
    _Verb(
        "runs", "list the latest runs", admin_verbs.runs,
        (_option("--limit", type=int, default=20, metavar="N", help="at most so many"),),
    ),
    _Verb("show", "show the record of a run", run_verbs.show, (_RUN,)),
    _Verb("status", "tell how the daemon is", admin_verbs.status),
    _Verb("pending", "list what waits for approval", admin_verbs.pending),
    _Verb("approve", "allow a pending proposal", admin_verbs.approve, (_PROPOSAL,)),
    _Verb(
        "reject", "refuse a pending proposal", admin_verbs.reject,
        (_PROPOSAL, _option("--message", "-m", default="", help="what the agent is told")),
    ),
    _Verb("reload", "have the daemon read the profiles again", admin_verbs.reload),
    _Verb("doctor", "prove each protection on this machine", daemon_verbs.doctor),
    _Verb(
        "serve", "run the daemon here, in the foreground", daemon_verbs.serve,
        (_option("options", nargs="*", metavar="OPTION", help='of the daemon, behind "--"'),),
    ),
    _Verb("stop", "end the daemon that runs", daemon_verbs.stop),
    _Verb("version", "tell the version", daemon_verbs.version),
)  # fmt: skip

_NAME = _option("name", metavar="NAME", help="a profile's name")
PROFILE_VERBS = (
    _Verb("list", "list the profiles in force", profile_verbs.list_profiles),
    _Verb("show", "show one profile", profile_verbs.show, (_NAME,)),
    _Verb(
        "check", "load profiles and run their examples", profile_verbs.check,
        (_option("path", nargs="?", metavar="DIR|FILE", help="instead of those in force"),),
    ),
    _Verb("pin", "write the program's sha256 into a profile", profile_verbs.pin, (_NAME,)),
)  # fmt: skip


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line; member ``carry_out`` of what is returned is the verb."""
    parser = _Parser(
        prog="sandboxctl",
        description="Run commands in sandboxes, decide on proposals, look after the daemon.",
        epilog=f"exec, as a prefix of a command line: {EXEC_USAGE.removeprefix('usage: ')}",
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="answer with one JSON object")
    _add(parser, VERBS, ("profile", "look at profiles, check and pin them", PROFILE_VERBS))
    return parser.parse_args(arguments)


def _add(
    parser: argparse.ArgumentParser,
    verbs: tuple[_Verb, ...],
    group: tuple[str, str, tuple[_Verb, ...]] | None = None,
) -> None:
    places = parser.add_subparsers(metavar="VERB", required=True)
    for verb in verbs:
        place = places.add_parser(
            verb.name, help=verb.summary, description=verb.summary, allow_abbrev=False
        )
        # SUPPRESS: what was said before the verb stays.
        place.add_argument(
            "--json",
            action="store_true",
            default=argparse.SUPPRESS,
            help="answer with one JSON object",
        )
        for option in verb.options:
            place.add_argument(*option.names, **option.settings)
        place.set_defaults(carry_out=verb.carry_out)
    if group is not None:
        name, summary, members = group
        _add(places.add_parser(name, help=summary, description=summary), members)
