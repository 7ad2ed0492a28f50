"""What must a process be before it may become the daemon?

Whatever it inherits from whoever started it (signal dispositions and mask, umask, working
directory, descriptors, environment, closed standard streams) is put into a known state, so that
the daemon and the launcher below it behave the same from a shell, a service manager or a client.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import stat

from launcher import syscalls
from sandboxd.errors import Unavailable
from sandboxd.log import log

_MOST_DESCRIPTORS = 65_536
_MAX_LOG_BYTES = 8 << 20
# What the daemon or a library below it reads. All else may change how programs behave that it
# starts (LD_PRELOAD, PYTHONPATH) or hold secrets, and is dropped.
_KEPT = frozenset(
    {
        "CREDENTIALS_DIRECTORY",
        "HOME",
        "LANG",
        "LC_ALL",
        "LC_CTYPE",
        "LISTEN_FDNAMES",
        "LISTEN_FDS",
        "LISTEN_PID",
        "LOGNAME",
        "NOTIFY_SOCKET",
        "PATH",
        "SANDBOXD_PROFILES",
        "SANDBOXD_RUNTIME_DIR",
        "SANDBOXD_STATE_DIR",
        "TZ",
        "USER",
        "XDG_CONFIG_HOME",
        "XDG_RUNTIME_DIR",
        "XDG_STATE_HOME",
    }
)


def clean_process(*, passed_descriptors: int, keep: int | None) -> None:
    """Put this process into the state that the daemon relies on.

    ``passed_descriptors`` are those of socket activation, from 3 on; ``keep`` is one more.
    """
    os.umask(0o077)
    os.chdir("/")
    _open_standard_streams()
    _close_others(3 + passed_descriptors, keep)
    _reset_signals()
    for name in os.environ.keys() - _KEPT:
        del os.environ[name]
    _set_limits()


def detach(state_dir: str) -> int:
    """Go on as a background process; return the descriptor that `report` is for.

    The process that was started waits for that report and ends with its status.
    """
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        status = os.read(reader, 1)
        os._exit(status[0] if status else 1)
    os.close(reader)
    os.setsid()
    if os.fork():
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    log_fd = open_log(os.path.join(state_dir, "daemon.log"))
    for stream, fd in enumerate((null, null, log_fd)):
        os.dup2(fd, stream)
    return writer


def report(writer: int | None, status: int) -> None:
    """Tell the process that was started how the start went."""
    if writer is not None:
        os.write(writer, bytes([status]))
        os.close(writer)


def open_log(path: str) -> int:
    """Open the log to append to, after putting one that has grown too large aside."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        fd = os.open(path, flags, 0o600)
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise Unavailable(f"cannot log to {path}: it is not a regular file of this user")
        if status.st_size > _MAX_LOG_BYTES:
            os.close(fd)
            os.rename(path, f"{path}.1")
            fd = os.open(path, flags | os.O_EXCL, 0o600)
    except OSError as error:
        raise Unavailable(f"cannot log to {path}: {error.strerror}") from error
    return fd


def notify(state: str) -> None:
    """Tell the service manager, if there is one (sd_notify(3))."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address.startswith(("/", "@")):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            try:
                sock.connect("\0" + address[1:] if address[0] == "@" else address)
                sock.send(state.encode())
            except OSError as error:
                log("cannot_notify", problem=str(error))


def _open_standard_streams() -> None:
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is fd


def _close_others(first: int, keep: int | None) -> None:
    last = 0xFFFF_FFFF
    if keep is None:
        syscalls.close_range(first, last)
        return
    if keep > first:
        syscalls.close_range(first, keep - 1)
    syscalls.close_range(max(keep + 1, first), last)


def _reset_signals() -> None:
    for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(signum, signal.SIG_DFL)
    for signum in (signal.SIGPIPE, signal.SIGXFSZ):  # as errors of the calls: EPIPE, EFBIG
        signal.signal(signum, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _set_limits() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)  # the hard limit is also the sandboxes'
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
