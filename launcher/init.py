"""What does pid 1 of a sandbox do?

It builds the view, then starts commands when the daemon says so, reaps whatever ends, and ends
everything when its channel does. The same init serves a run (one command), a session (several) and
a warm sandbox (none yet). It is not dumpable, so no command can look into it, and it never
executes a program itself. Its end is the end of every process inside (pid_namespaces(7)). A step
that fails executes nothing. I1.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from typing import NoReturn, TypeVar

from launcher import blank, channel, programs, syscalls, view
from launcher.birth import Birth, Life
from launcher.commands import Commands
from launcher.lockdown import StepFailed
from launcher.plan import Become, Failed, Ready
from launcher.records import Malformed
from launcher.trees import tree_of

S = TypeVar("S")
Steps = tuple[tuple[str, Callable[[S], None]], ...]


def main(birth: Birth) -> NoReturn:
    """Live as init of one sandbox. Whatever happens, the process never returns to the launcher."""
    status = 1
    try:
        _close_others(birth)
        failure = _run_steps(blank.STEPS, birth)
        life = _wait_for_orders(birth)
        if life is not None:
            failure = failure or _run_steps(view.STEPS, life)
            _live(life, failure)
            status = 0
    except Exception as error:  # noqa: BLE001  # one of the two main loops: say it and end
        sys.stderr.write(f"init: cannot go on: {error!r}\n")
        sys.stderr.flush()
    finally:
        os._exit(status)


def _close_others(birth: Birth) -> None:
    """Close what the launcher had open for other sandboxes and itself."""
    first = 3
    for fd in sorted(birth.inherited_fds()):
        if fd > first:
            syscalls.close_range(first, fd - 1)
        first = fd + 1
    syscalls.close_range(first, 0xFFFF_FFFF)


def _run_steps(steps: Steps[S], subject: S) -> StepFailed | None:
    """Run steps up to the first that fails; nothing continues past that one."""
    for name, step in steps:
        try:
            step(subject)
        except (OSError, NotImplementedError) as error:
            errno = error.errno if isinstance(error, OSError) else None
            text = str(getattr(error, "strerror", None) or error)
            return StepFailed(name, errno or 0, text)
    return None


def _wait_for_orders(birth: Birth) -> Life | None:
    """Wait to be told what to become; None when the launcher ends instead.

    A step that failed before is reported only then: there is nobody to tell before.
    """
    received = channel.receive(birth.orders, Become)
    birth.orders.close()
    if received is None:
        return None
    plan, fds = received[0].plan, received[1]
    if len(fds) != 1 + len(plan.binds):
        raise Malformed("", "a descriptor is missing")
    policy = programs.key(plan.seccomp, network=plan.network != "none", relax=plan.relax)
    return Life(
        birth=birth,
        plan=plan,
        channel=socket.socket(fileno=fds[0]),
        trees=[tree_of(bind, fd) for bind, fd in zip(plan.binds, fds[1:], strict=True)],
        filter_program=birth.programs[policy],
    )


def _live(life: Life, failure: StepFailed | None) -> None:
    name = life.plan.sandbox
    if failure is not None:
        failed = Failed(
            sandbox=name, step=failure.step, errno=failure.errno, detail=failure.detail
        )
        channel.send(life.channel, failed)
        return
    kind, abi = life.birth.leaf.kind, life.birth.landlock_abi
    channel.send(life.channel, Ready(sandbox=name, landlock_abi=abi, cgroup=kind))
    Commands(life).serve()
