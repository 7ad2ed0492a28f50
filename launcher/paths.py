"""How does a string become a descriptor, once, without following anything an attacker placed?

openat2(2) with ``RESOLVE_NO_MAGICLINKS | RESOLVE_NO_SYMLINKS`` everywhere: a symbolic link on the
way is an error (``ELOOP``), never followed. What comes back is ``O_PATH``, so that a FIFO or a
device has no side effect before its type was looked at (open(2), "O_PATH").
"""

from __future__ import annotations

import os
import stat

from launcher import syscalls
from launcher.plan import Identity

_STRICT = syscalls.RESOLVE_NO_MAGICLINKS | syscalls.RESOLVE_NO_SYMLINKS


def open_path(root_fd: int, path: str) -> int:
    """Open the absolute ``path`` below ``root_fd`` as ``O_PATH``, following no link at all.

    Raises:
        OSError: ``ELOOP`` for a symbolic link anywhere on the way, else as open(2).

    """
    return syscalls.openat2(
        root_fd,
        path.lstrip("/") or ".",
        flags=os.O_PATH,
        resolve=_STRICT | syscalls.RESOLVE_IN_ROOT,
    )


def open_beneath(dirfd: int, path: str, flags: int = os.O_PATH) -> int:
    """Open the relative ``path`` below ``dirfd``; leaving it is an error (``EXDEV``)."""
    return syscalls.openat2(dirfd, path, flags=flags, resolve=_STRICT | syscalls.RESOLVE_BENEATH)


def identity(fd: int) -> Identity:
    """fstat(2) as the three facts that tell one object from another."""
    status = os.fstat(fd)
    return Identity(dev=status.st_dev, ino=status.st_ino, kind=stat.S_IFMT(status.st_mode))


def name_of(fd: int) -> str:
    """Return the path under which the kernel knows ``fd`` now (proc(5), /proc/self/fd).

    The answer is a hint: whoever opens it again must compare `identity`.

    Raises:
        FileNotFoundError: the object has no path any more.

    """
    path = os.readlink(f"/proc/self/fd/{fd}")
    if not path.startswith("/") or path.endswith(" (deleted)"):
        raise FileNotFoundError(2, "the object behind the descriptor has no path any more")
    return path


def is_beneath(path: str, root: str) -> bool:
    """Tell whether the canonical ``path`` is ``root`` or lies below it."""
    return root in {path, "/"} or path.startswith(root + "/")
