"""What does ``sandboxctl`` do, and with which status does it end?

The status of ``run``, ``execute`` and ``exec`` is the command's own; 124 it timed out, 125 a
fault, 126 denied or rejected, 127 not in the allowlist, 128+n ended by signal n, 75 waits for
approval, 64 wrong usage. ``exec`` is read by hand, since a prefix of command lines is felt at
every start; everything else goes through argparse.
"""

from __future__ import annotations

import sys
from typing import NoReturn

from sandboxd.cli.terminal import complain, put_json, spoken
from sandboxd.errors import SandboxdError, UsageError

_INTERRUPTED = 130
_BROKEN_PIPE = 141  # as a shell says it of a command that SIGPIPE ended


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run ``sandboxctl`` and end the process."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: list[str]) -> int:
    """Run ``sandboxctl`` and return its exit status."""
    try:
        return _dispatch(arguments)
    except SandboxdError as fault:
        if "--json" in arguments and "exec" not in arguments[:1]:
            put_json(plain_fault(fault))
        complain(spoken(fault.message, fault.field))
        return fault.exit_status
    except BrokenPipeError:
        return _BROKEN_PIPE
    except OSError as error:  # of standard output and error; all else is a fault by now
        complain(f"cannot write: {error.strerror}")
        return SandboxdError.exit_status
    except KeyboardInterrupt:
        return _INTERRUPTED


def plain_fault(fault: SandboxdError) -> dict[str, object]:
    """Return a fault as ``--json`` and ``--status-fd`` give it."""
    members: dict[str, object] = {"name": type(fault).__name__, "retryable": fault.retryable}
    return {"fault": members | vars(fault)}


def _dispatch(arguments: list[str]) -> int:
    if arguments[:1] == ["exec"]:
        from sandboxd.cli.exec_verb import run_exec

        return run_exec(arguments[1:])
    if arguments[:2] == ["--json", "exec"]:
        raise UsageError(
            "cannot answer exec with JSON, since it passes output through: --status-fd N gets it"
        )
    from sandboxd.cli.parser import parse

    options = parse(arguments)
    status: int = options.carry_out(options)
    return status
