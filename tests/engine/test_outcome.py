"""Is the end of a run named truthfully, whatever the numbers are?"""

from __future__ import annotations

import signal
from typing import Any

import pytest

from launcher.plan import CgroupUsage
from sandboxd.outcome import Ending, Outcome, outcome_of

KILL, TERM = int(signal.SIGKILL), int(signal.SIGTERM)


def usage(**counters: int) -> CgroupUsage:
    nothing = {"memory_peak_bytes": 1, "oom_kills": 0, "pids_refused": 0, "cpu_us": 0}
    return CgroupUsage(**(nothing | counters))


OOM, REFUSED = usage(oom_kills=1), usage(pids_refused=3)
BUSY = {"cpu_us": 2_750_000, "cpu_limit_s": 3}  # measured a little below the limit
VERY_BUSY = {"cpu_us": 4_000_000, "cpu_limit_s": 3}

ROWS: list[tuple[str, dict[str, Any], Outcome]] = [
    ("status 0", {"returncode": 0}, Outcome(status="exited", exit_code=0)),
    ("status 137 by exit(3)", {"returncode": 137}, Outcome(status="exited", exit_code=137)),
    (
        "SIGKILL by its own hand",
        {"returncode": -KILL, "usage": usage()},
        Outcome(status="signaled", signal=KILL),
    ),
    (
        "SIGXCPU by its own hand",
        {"returncode": -signal.SIGXCPU, "cpu_us": 2_600_000, "cpu_limit_s": 3},
        Outcome(status="signaled", signal=signal.SIGXCPU),
    ),
    (
        "RLIMIT_CPU, soft",
        {"returncode": -signal.SIGXCPU, **BUSY},
        Outcome(status="limit_exceeded", signal=signal.SIGXCPU, limit="cpu", limits_hit=("cpu",)),
    ),
    (
        "SIGKILL by its own hand when it was busy, below the hard limit",
        {"returncode": -KILL, **BUSY},
        Outcome(status="signaled", signal=KILL),
    ),
    (
        "RLIMIT_CPU, hard",
        {"returncode": -KILL, **VERY_BUSY},
        Outcome(status="limit_exceeded", signal=KILL, limit="cpu", limits_hit=("cpu",)),
    ),
    (
        "RLIMIT_FSIZE",
        {"returncode": -signal.SIGXFSZ},
        Outcome(
            status="limit_exceeded",
            signal=signal.SIGXFSZ,
            limit="file_size",
            limits_hit=("file_size",),
        ),
    ),
    (
        "the kernel's OOM killer",
        {"returncode": -KILL, "usage": OOM},
        Outcome(status="limit_exceeded", signal=KILL, limit="memory", limits_hit=("memory",)),
    ),
    (
        "the OOM killer took init as well",
        {"returncode": None, "init_returncode": -KILL, "usage": OOM},
        Outcome(status="limit_exceeded", signal=KILL, limit="memory", limits_hit=("memory",)),
    ),
    (
        "a child was killed for memory and its parent failed of it",
        {"returncode": 137, "usage": OOM},
        Outcome(status="limit_exceeded", exit_code=137, limit="memory", limits_hit=("memory",)),
    ),
    (
        "a child was killed for memory and its parent did not mind",
        {"returncode": 0, "usage": OOM},
        Outcome(status="exited", exit_code=0, limits_hit=("memory",)),
    ),
    (
        "fork(2) was refused and it failed",
        {"returncode": 2, "usage": REFUSED},
        Outcome(status="limit_exceeded", exit_code=2, limit="pids", limits_hit=("pids",)),
    ),
    (
        "fork(2) was refused and it went on",
        {"returncode": 0, "usage": REFUSED},
        Outcome(status="exited", exit_code=0, limits_hit=("pids",)),
    ),
    (
        "wall time, ended by SIGTERM",
        {"returncode": -TERM, "cause": "wall"},
        Outcome(status="timed_out", signal=TERM, limit="wall", limits_hit=("wall",)),
    ),
    (
        "wall time, SIGTERM handled",
        {"returncode": 3, "cause": "wall"},
        Outcome(status="timed_out", exit_code=3, signal=TERM, limit="wall", limits_hit=("wall",)),
    ),
    (
        "wall time, ended with init",
        {"returncode": None, "init_returncode": -KILL, "cause": "wall"},
        Outcome(status="timed_out", signal=KILL, limit="wall", limits_hit=("wall",)),
    ),
    (
        "the launcher's deadline",
        {"returncode": None, "init_returncode": -KILL, "overdue": True},
        Outcome(status="timed_out", signal=KILL, limit="wall", limits_hit=("wall",)),
    ),
    (
        "the daemon's watchdog",
        {"returncode": -KILL, "cause": "memory"},
        Outcome(status="limit_exceeded", signal=KILL, limit="memory", limits_hit=("memory",)),
    ),
    (
        "too much output",
        {"returncode": -KILL, "cause": "output"},
        Outcome(status="limit_exceeded", signal=KILL, limit="output", limits_hit=("output",)),
    ),
    (
        "cancelled while it met a limit",
        {"returncode": -TERM, "cause": "cancelled", "usage": OOM},
        Outcome(status="cancelled", signal=TERM, limits_hit=("memory",)),
    ),
    (
        "cancelled before it was started",
        {"returncode": None, "started": False, "cause": "cancelled"},
        Outcome(status="cancelled"),
    ),
    (
        "somebody killed init",
        {"returncode": None, "init_returncode": -KILL, "usage": usage()},
        Outcome(status="signaled", signal=KILL),
    ),
    ("init failed", {"returncode": None, "init_returncode": 1}, Outcome(status="lost")),
    ("nobody can say", {"returncode": None}, Outcome(status="lost")),
]


@pytest.mark.parametrize(("why", "ending", "expected"), ROWS, ids=[row[0] for row in ROWS])
def test_an_end_has_one_name(why: str, ending: dict[str, Any], expected: Outcome) -> None:
    assert outcome_of(Ending(**({"cpu_limit_s": 20} | ending))) == expected, why


@pytest.mark.parametrize("code", range(256))
def test_every_exit_status_is_told_as_it_is(code: int) -> None:
    ending = Ending(returncode=code, usage=usage(), cpu_us=0, cpu_limit_s=1)
    assert outcome_of(ending) == Outcome(status="exited", exit_code=code)


@pytest.mark.parametrize("number", sorted(set(range(1, 65)) - {signal.SIGXFSZ}))
def test_every_signal_is_told_as_it_is(number: int) -> None:
    ending = Ending(returncode=-number, usage=usage(), cpu_us=0, cpu_limit_s=1)
    assert outcome_of(ending) == Outcome(status="signaled", signal=number)
