"""How is a system-call filter put in force, and is it?"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Callable

from launcher import syscalls

_SECCOMP_SET_MODE_FILTER = 1  # <linux/seccomp.h>
_SECCOMP_MODE_FILTER = 2
_PR_GET_SECCOMP = 21  # <linux/prctl.h>


def load(program: bytes) -> None:
    """Put ``program`` in force for this thread and what it forks and executes, for good.

    The caller has set no_new_privs and is single-threaded: other threads would stay free (S14).

    Raises:
        OSError: the kernel refuses the program.

    """
    instructions = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog, <linux/filter.h>
    fprog = struct.pack("HP", len(program) // 8, ctypes.addressof(instructions))
    syscalls.syscall("seccomp", _SECCOMP_SET_MODE_FILTER, 0, fprog)


def verify() -> None:
    """Ask the kernel whether a filter is in force and refuses what this policy refuses.

    Each question is harmless and answered otherwise by a kernel without the filter, whoever
    asks: a rule, the table and the table's default are asked once each.

    Raises:
        PermissionError: naming what is not in force.

    """
    mode = syscalls.prctl(_PR_GET_SECCOMP)
    if mode != _SECCOMP_MODE_FILTER:
        raise PermissionError(f"cannot find the system-call filter in force: mode is {mode}")
    for claim, expected, attempt in _QUESTIONS:
        answer = _errno_of(attempt)
        if answer != expected:
            raise PermissionError(
                f"cannot find the system-call filter in force: {claim} answers {answer}"
            )


# Without the filter these fail with ENOENT, ENOENT and EINVAL.
_QUESTIONS: tuple[tuple[str, int, Callable[[], object]], ...] = (
    ("chmod() to set-user-ID", errno.EPERM, lambda: os.chmod("", 0o4000)),
    ("chroot()", errno.EPERM, lambda: os.chroot("")),
    ("clone3()", errno.ENOSYS, lambda: syscalls.syscall("clone3", None, 0)),
)


def _errno_of(attempt: Callable[[], object]) -> int:
    try:
        attempt()
    except OSError as error:
        return error.errno or 0
    return 0
