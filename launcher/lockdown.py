"""In which order does a command lose everything it is not granted, between fork and exec?

`STEPS` is the list; the comments say what each line needs of those above. Each of capabilities,
no_new_privs, Landlock and seccomp is followed by asking the kernel (I9). There is no way from a
failed step to execveat(2): `init` reports the step and ends the process.
"""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import struct
from collections.abc import Callable
from dataclasses import dataclass

from launcher import landlock, privileges, seccomp, syscalls
from launcher.birth import Life
from launcher.plan import Command

_PER_LINUX = 0  # <linux/personality.h>
# Nothing changes this after the start of the process: only SIGCHLD gets a handler, in init.
# 32 and 33 are the C library's own, and whoever started us may have ignored them too.
IGNORED_SIGNALS = tuple(
    number
    for number in range(1, 65)
    if number not in {signal.SIGKILL, signal.SIGSTOP} and syscalls.is_ignored(number)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One command about to be started: its opened executable and its three standard streams."""

    life: Life
    command: Command
    executable_fd: int
    stdio: tuple[int, int, int]
    report_fd: int


def new_session(attempt: Attempt) -> None:
    """setsid(2): own session and process group, no controlling terminal (F01)."""
    del attempt
    os.setsid()


def set_stdio(attempt: Attempt) -> None:
    """Exactly the three descriptors given; no open file description of anybody else's (F05)."""
    # Numbers below 3 among the sources would be overwritten before they are copied (F09).
    lifted = [_lift(fd) for fd in attempt.stdio]
    for number, fd in enumerate(lifted):
        os.dup2(fd, number, inheritable=True)


def _lift(fd: int) -> int:
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10)


def reset_signals(attempt: Attempt) -> None:
    """Every disposition to SIG_DFL and an empty mask (F16): Python ignores SIGPIPE and SIGXFSZ.

    execve(2) itself resets what is handled; what is ignored would stay so.
    """
    del attempt
    signal.set_wakeup_fd(-1)
    for number in IGNORED_SIGNALS:
        syscalls.set_default(number)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def set_scheduling(attempt: Attempt) -> None:
    """umask(2), personality(2) and nice value (Y07)."""
    os.umask(attempt.command.umask)
    syscalls.syscall("personality", _PER_LINUX)
    if os.getpriority(os.PRIO_PROCESS, 0) < attempt.command.nice:
        os.setpriority(os.PRIO_PROCESS, 0, attempt.command.nice)


def set_rlimits(attempt: Attempt) -> None:
    """setrlimit(2) for each pair; capabilities that could raise them are dropped below."""
    for rlimit in attempt.command.rlimits:
        number = getattr(resource, f"RLIMIT_{rlimit.resource}")
        resource.setrlimit(number, (rlimit.soft, rlimit.hard))
        if resource.getrlimit(number) != (rlimit.soft, rlimit.hard):
            raise PermissionError(1, f"RLIMIT_{rlimit.resource} is not in force")


def change_directory(attempt: Attempt) -> None:
    """Into the view; the answer of getcwd(3) must be a path of it (F07)."""
    os.chdir(attempt.command.cwd)
    if not os.getcwd().startswith("/"):
        raise PermissionError(1, "the working directory lies outside the view")


def drop_capabilities(attempt: Attempt) -> None:
    """All five sets, securebits locked."""
    privileges.drop_capabilities(attempt.life.birth.proc_fd)


def set_no_new_privs(attempt: Attempt) -> None:
    """Inherited from init; set and asked again, because the two steps below rest on it."""
    del attempt
    privileges.set_no_new_privs()


def restrict_with_landlock(attempt: Attempt) -> None:
    """In force, and seen to refuse."""
    landlock.restrict(attempt.life.ruleset_fd, attempt.life.birth.probe_fd)


def close_descriptors(attempt: Attempt) -> None:
    """Nothing above 2 survives execveat(2), directories least of all (I4, F06)."""
    del attempt
    syscalls.close_range(3, 0xFFFF_FFFF, syscalls.CLOSE_RANGE_CLOEXEC)


def load_filter(attempt: Attempt) -> None:
    """Put the system-call policy in force, and see it deny."""
    seccomp.load(attempt.life.filter_program)
    seccomp.verify()


STEPS: tuple[tuple[str, Callable[[Attempt], None]], ...] = (
    ("setsid", new_session),
    ("set standard streams", set_stdio),
    ("reset signals", reset_signals),
    ("set umask, personality and nice value", set_scheduling),
    ("set rlimits", set_rlimits),
    ("change directory", change_directory),
    ("drop capabilities", drop_capabilities),  # after the rlimits: nothing can raise them now
    ("set no_new_privs", set_no_new_privs),  # Landlock and seccomp need it without capabilities
    ("restrict with Landlock", restrict_with_landlock),  # after the last open above
    ("close descriptors", close_descriptors),  # after the last use of proc_fd
    ("load the system-call filter", load_filter),  # last: it denies what the steps above use
)


def execute(attempt: Attempt) -> None:
    """Run every step, then execveat(2). Returns only by raising; never after it succeeded.

    Raises:
        StepFailed: naming the step; nothing was executed.

    """
    argv = [os.fsencode(word) for word in attempt.command.argv]
    environment = [os.fsencode(word) for word in attempt.command.environment]
    current = ""
    try:
        for name, step in STEPS:
            current = name
            step(attempt)
        current = "execveat"
        syscalls.execveat(attempt.executable_fd, argv, environment)
    except OSError as error:
        raise StepFailed(current, error.errno or 0, str(error.strerror or error)) from None


class StepFailed(Exception):
    """A step failed. The text is ``errno``, step and detail, as the report pipe carries them."""

    def __init__(self, step: str, errno: int, detail: str) -> None:
        super().__init__(f"cannot {step} (errno {errno}): {detail}")
        self.step = step
        self.errno = errno
        self.detail = detail

    def encode(self) -> bytes:
        """Pack for a pipe: at most PIPE_BUF bytes, so that it is written whole (pipe(7))."""
        text = f"{self.step}\0{self.detail}".encode(errors="replace")[:3000]
        return struct.pack("<i", self.errno) + text

    @classmethod
    def decode(cls, data: bytes) -> StepFailed:
        """Unpack what `encode` wrote."""
        step, _, detail = data[4:].decode(errors="replace").partition("\0")
        return cls(step, struct.unpack_from("<i", data)[0], detail)
