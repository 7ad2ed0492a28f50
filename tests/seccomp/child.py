"""What does the running kernel answer, with and without a filter? Forked children that try."""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import sys
import traceback
from collections.abc import Callable, Sequence

from launcher import seccomp, syscalls

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long

Call = tuple[int, tuple[int, ...]]


def raw(number: int, *words: int) -> int:
    """Return the errno of the system call ``number``, 0 if it succeeds."""
    padded = [ctypes.c_ulong(word & (2**64 - 1)) for word in (*words, 0, 0, 0, 0, 0, 0)[:6]]
    return ctypes.get_errno() if _libc.syscall(ctypes.c_long(number), *padded) == -1 else 0


def forked(program: bytes | None, work: Callable[[], bytes]) -> tuple[bytes, int]:
    """Do ``work`` under ``program`` in a child. Return its result and the wait status."""
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(read_fd)
            syscalls.prctl(38, 1)  # PR_SET_NO_NEW_PRIVS
            if program is not None:
                seccomp.load(program)
            os.write(write_fd, work())
            code = 0
        except BaseException:  # noqa: BLE001  the child must never run on into pytest
            traceback.print_exc(file=sys.__stderr__)
        finally:
            os._exit(code)
    os.close(write_fd)
    with os.fdopen(read_fd, "rb") as pipe:
        result = pipe.read()
    return result, os.waitpid(pid, 0)[1]


def errnos(program: bytes | None, calls: Sequence[Call]) -> list[int]:
    """Return the errno of each call, all made by one child."""

    def work() -> bytes:
        return b"".join(struct.pack("i", raw(number, *words)) for number, words in calls)

    result, status = forked(program, work)
    assert status == 0, f"the child ended with {status} instead of answering"
    return [answer for (answer,) in struct.iter_unpack("i", result)]


def killed_by(program: bytes, number: int, *words: int) -> int:
    """Return the signal that ends a child which makes the call and has a handler for SIGSYS."""

    def work() -> bytes:
        signal.signal(signal.SIGSYS, lambda *_: None)
        return struct.pack("i", raw(number, *words))

    return os.WTERMSIG(forked(program, work)[1])
