"""How did a run end, and because of what?

Pure. What the command itself did, what the kernel counted and what the daemon ended it for become
one status. A limit is named only where something besides the signal's number speaks for it:
exit(137) is no kill, and a SIGKILL of the command's own hand is no limit. The one exception is
SIGXFSZ, of which the kernel leaves no other trace.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Literal

from launcher.plan import CgroupUsage
from sandboxd.protocol import LimitName, Status

# What the daemon itself ended a run for.
Cause = Literal["wall", "cpu", "memory", "output", "cancelled"]
# RLIMIT_CPU is counted in timer ticks, getrusage(2) by the clock: on a busy machine they differ.
_CPU_SHARE = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Everything known about an end.

    ``returncode`` is negative for a signal, None where init ended before its command was reaped:
    then ``init_returncode`` is init's own. ``cpu_us`` is -1 where it is not known. What was not
    ``started`` was cancelled before.
    """

    returncode: int | None
    started: bool = True
    init_returncode: int | None = None
    cause: Cause | None = None
    overdue: bool = False
    usage: CgroupUsage | None = None
    cpu_us: int = -1
    cpu_limit_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The members of a `Run` that say how it ended."""

    status: Status
    exit_code: int | None = None
    signal: int | None = None
    limit: LimitName | None = None
    limits_hit: tuple[LimitName, ...] = ()


def outcome_of(ending: Ending) -> Outcome:
    """Name status, exit code or signal, and the limit that ended it, if one did."""
    status, limit = _judge(ending)
    exit_code = number = None
    if ending.returncode is None:
        number = int(signal.SIGKILL) if ending.started and status != "lost" else None
    elif ending.returncode < 0:
        number = -ending.returncode
    else:
        exit_code = ending.returncode
        if status in {"timed_out", "cancelled"}:
            number = int(signal.SIGTERM)  # what it was sent, and ended by itself upon
    return Outcome(
        status=status,
        exit_code=exit_code,
        signal=number,
        limit=limit,
        limits_hit=_hit(ending.usage, limit),
    )


def _judge(ending: Ending) -> tuple[Status, LimitName | None]:
    if ending.cause == "cancelled":
        return "cancelled", None
    if ending.cause == "wall" or ending.overdue:
        return "timed_out", "wall"
    limit = ending.cause or _limit(ending)
    if limit is not None:
        return "limit_exceeded", limit
    if ending.returncode is None and ending.init_returncode != -signal.SIGKILL:
        return "lost", None
    by_itself = ending.returncode is not None and ending.returncode >= 0
    return ("exited" if by_itself else "signaled"), None


def _limit(ending: Ending) -> LimitName | None:
    """Find the limit for which the kernel ended a command, or because of which it failed."""
    returncode, usage = ending.returncode, ending.usage
    if returncode == 0:
        return None
    if returncode == -signal.SIGXFSZ:
        return "file_size"
    if returncode in {-signal.SIGXCPU, -signal.SIGKILL}:
        over = returncode == -signal.SIGKILL  # the hard limit is a second above the soft one
        if ending.cpu_us >= (ending.cpu_limit_s + over) * 1_000_000 * _CPU_SHARE:
            return "cpu"
    if usage is not None and usage.oom_kills > 0:
        return "memory"
    if usage is not None and usage.pids_refused > 0:
        return "pids"
    return None


def _hit(usage: CgroupUsage | None, limit: LimitName | None) -> tuple[LimitName, ...]:
    """All limits that were met, those included that the command survived."""
    met: dict[LimitName, bool] = {
        "memory": usage is not None and usage.oom_kills > 0,
        "pids": usage is not None and usage.pids_refused > 0,
    }
    names = [name for name, was_met in met.items() if was_met and name != limit]
    return (limit, *names) if limit is not None else tuple(names)
