"""How do the daemon's lock and its listening sockets come to be, and nobody else's?

The directories are the daemon's own, mode 0700. The lock is flock(2) on a file there; who holds it
may replace a dead socket, and nothing else is ever replaced. A socket is bound to a name that
nobody looks at, mode 0600, and then renamed, so it never stands there half made.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat

from sandboxd.errors import Conflict, Unavailable

_FIRST_ACTIVATED = 3  # SD_LISTEN_FDS_START, sd_listen_fds(3)


def own_directory(path: str) -> None:
    """Make ``path`` a directory that only this uid may enter, or refuse what stands there.

    Raises:
        Unavailable: it is something else, or somebody else's, or others may enter it.

    """
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        status = os.lstat(path)
    except OSError as error:
        raise Unavailable(f"cannot make directory {path}: {error.strerror}") from error
    if not stat.S_ISDIR(status.st_mode):
        raise Unavailable(f"cannot use {path}: it is not a directory")
    if status.st_uid != os.geteuid():
        raise Unavailable(f"cannot use {path}: it belongs to uid {status.st_uid}")
    if stat.S_IMODE(status.st_mode) & 0o077:
        mode = stat.S_IMODE(status.st_mode)
        raise Unavailable(f"cannot use {path}: its mode is {mode:04o}, which lets others in")


def lock(path: str) -> int:
    """Lock the file ``path`` for this process and write its pid there. Returns a descriptor.

    Raises:
        Conflict: another daemon holds it; the text names its pid.

    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise Unavailable(f"cannot open lock {path}: {error.strerror}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, 32, 0).decode(errors="replace").strip()
        os.close(fd)
        raise Conflict(
            f"cannot start: a daemon runs already, pid {holder or 'unknown'}, and holds {path}"
        ) from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def listen(path: str) -> socket.socket:
    """Return a socket bound to ``path``, mode 0600. The caller holds the lock.

    Raises:
        Unavailable: something else stands there, or somebody listens there.

    """
    _check_replaceable(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    born = f"{path}.new"
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(born)  # of a daemon that died between bind(2) and rename(2)
        old_mask = os.umask(0o177)
        try:
            sock.bind(born)
        finally:
            os.umask(old_mask)
        os.rename(born, path)
    except OSError as error:
        sock.close()
        raise Unavailable(f"cannot listen at {path}: {error.strerror or error}") from error
    return sock


def remove(path: str) -> None:
    """Remove a socket of this daemon's at its end."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def activated_count() -> int:
    """Return how many descriptors, from 3 on, a service manager has passed to this process."""
    try:
        meant = int(os.environ["LISTEN_PID"]) == os.getpid()
        return int(os.environ["LISTEN_FDS"]) if meant else 0
    except (KeyError, ValueError):
        return 0


def activated() -> dict[str, socket.socket]:
    """Take over the listening sockets that a service manager has passed, by name.

    Raises:
        Unavailable: they are not the two that this daemon serves.

    """
    count = activated_count()
    names = os.environ.get("LISTEN_FDNAMES", "").split(":") if count else []
    for variable in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"):
        os.environ.pop(variable, None)
    if len(names) != count or not set(names) <= {"agent", "admin"} or len(set(names)) != count:
        raise Unavailable(f"cannot use the sockets passed: they are named {':'.join(names)!r}")
    return {name: _listening(_FIRST_ACTIVATED + index, name) for index, name in enumerate(names)}


def _listening(fd: int, name: str) -> socket.socket:
    os.set_inheritable(fd, False)
    try:
        sock = socket.socket(fileno=fd)
        suits = sock.family == socket.AF_UNIX and sock.type == socket.SOCK_STREAM
        accepts = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise Unavailable(f"cannot use the {name} socket passed: {error.strerror}") from error
    if not (suits and accepts):
        raise Unavailable(f"cannot use the {name} socket passed: no listening Unix stream socket")
    return sock


def _check_replaceable(path: str) -> None:
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode):
        raise Unavailable(f"cannot listen at {path}: something else stands there")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return
        except OSError:  # EAGAIN: a full backlog, so somebody listens
            pass
    raise Unavailable(f"cannot listen at {path}: another process does")
