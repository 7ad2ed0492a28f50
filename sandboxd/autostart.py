"""How does a daemon come to run when a client needs it, exactly once?

Whoever finds nobody listening takes ``start.lock`` in the runtime directory, looks again, and only
then starts the daemon. The process that is started ends when the daemon, by then in a session of
its own, listens or has failed; if it failed, the end of its log is the message.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import socket
import stat
import sys
from collections.abc import Iterator

from sandboxd.endpoints import Endpoints
from sandboxd.errors import Unavailable

IDLE_EXIT_S = 900
_PATIENCE_MS = 30_000
_LISTENING = {0, 3}  # it does; another one does already (sandboxd.daemon)
_LOG_TAIL_BYTES = 2000
_PROJECT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_KEPT = (
    "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ",
    "XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CONFIG_HOME",
)  # fmt: skip
_MAIN = "from sandboxd.daemon import main; sys.exit(main())"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def ensure_running(endpoints: Endpoints) -> None:
    """Return when the daemon of ``endpoints`` accepts connections, having started it if needed.

    Raises:
        Unavailable: it does not come up, or its directories are not safe to use.

    """
    private_directory(endpoints.runtime_dir)
    private_directory(endpoints.state_dir)
    try:
        with _start_lock(os.path.join(endpoints.runtime_dir, "start.lock")):
            if not _listens(endpoints.agent_socket):
                _start(endpoints)
    except OSError as error:
        raise Unavailable(f"cannot start the daemon: {error}") from None


def stop_running(endpoints: Endpoints) -> int | None:
    """End the daemon of ``endpoints`` and wait for it; return its pid, None if none runs.

    Raises:
        Unavailable: it cannot be told to end, or does not.

    """
    pid = holder(endpoints)
    if pid is None:
        return None
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    try:
        if holder(endpoints) != pid:  # else the pid may be another process by now
            return None
        signal.pidfd_send_signal(pidfd, signal.SIGTERM)
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        if not poll.poll(_PATIENCE_MS):
            raise Unavailable(f"cannot stop the daemon, pid {pid}: it does not end")
    except ProcessLookupError:
        return pid  # it has ended by itself
    except OSError as error:
        raise Unavailable(f"cannot stop the daemon, pid {pid}: {error.strerror}") from None
    finally:
        os.close(pidfd)
    return pid


def holder(endpoints: Endpoints) -> int | None:
    """Return the pid of the daemon that holds the lock of ``endpoints``, None if nobody does.

    Raises:
        Unavailable: that cannot be told.

    """
    path = endpoints.lock_path
    try:
        with open(path, encoding="ascii") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(lock.read())
    except FileNotFoundError:
        return None
    except ValueError:
        raise Unavailable(f"cannot tell who holds {path}: a daemon is just starting") from None
    except OSError as error:
        raise Unavailable(f"cannot tell whether a daemon runs: {path}: {error.strerror}") from None
    return None


def private_directory(path: str) -> None:
    """Make the directory ``path`` if need be, and see that nobody else may enter it.

    Raises:
        Unavailable: it is a symbolic link, another user's, or open to others.

    """
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise Unavailable(f"cannot use the directory {path}: {error.strerror}") from None
    try:
        status = os.fstat(fd)
    finally:
        os.close(fd)
    if status.st_uid != os.geteuid():
        raise Unavailable(f"cannot use the directory {path}: it belongs to uid {status.st_uid}")
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise Unavailable(f"cannot use the directory {path}: others may enter it (chmod 700)")


def daemon_argv(*options: str) -> list[str]:
    """Return the argv that runs the daemon of this same package, isolated from the caller's."""
    import sysconfig

    installed = _PROJECT in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    if installed:
        return [sys.executable, "-I", "-m", "sandboxd.daemon", *options]
    code = f"import sys; sys.path.insert(0, {_PROJECT!r})\n{_MAIN}"
    return [sys.executable, "-I", "-c", code, *options]


def daemon_environment(endpoints: Endpoints) -> dict[str, str]:
    """Return what the daemon needs of the caller's environment, and the paths both agree on."""
    environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
    environment |= {
        "PATH": _PATH,
        "SANDBOXD_RUNTIME_DIR": os.path.abspath(endpoints.runtime_dir),
        "SANDBOXD_STATE_DIR": os.path.abspath(endpoints.state_dir),
    }
    directories = [os.path.abspath(path) for path in endpoints.profile_dirs]
    if not any(":" in path for path in directories):  # the daemon has the same defaults
        environment["SANDBOXD_PROFILES"] = ":".join(directories)
    return environment


@contextlib.contextmanager
def _start_lock(path: str) -> Iterator[None]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _listens(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        try:
            sock.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError as error:
            raise Unavailable(f"cannot reach the daemon at {path}: {error.strerror}") from None
    return True


def _start(endpoints: Endpoints) -> None:
    log_path = os.path.join(endpoints.state_dir, "daemon.log")
    pid = _spawn(endpoints, log_path)
    try:
        _await_end(pid, log_path)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except (ChildProcessError, ProcessLookupError):
        return  # the caller ignores SIGCHLD, so there is no status; connecting will tell
    if status not in _LISTENING:
        raise Unavailable(f"cannot start the daemon (status {status}): {_tail(log_path)}")


def _spawn(endpoints: Endpoints, log_path: str) -> int:
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    return os.posix_spawn(
        sys.executable,
        daemon_argv("--idle-exit", str(IDLE_EXIT_S)),
        daemon_environment(endpoints),
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, log_path, append, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,  # a terminal's SIGINT is for the client, not for the daemon
        setsigmask=(),
        setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
    )


def _await_end(pid: int, log_path: str) -> None:
    pidfd = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        if not poll.poll(_PATIENCE_MS):
            raise Unavailable(f"cannot wait any longer for the daemon to start; see {log_path}")
    finally:
        os.close(pidfd)


def _tail(log_path: str) -> str:
    try:
        with open(log_path, "rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - _LOG_TAIL_BYTES))
            text = log.read().decode(errors="replace").strip()
    except OSError as error:
        return f"{log_path}: {error.strerror}"
    return f"{text}\n(the end of {log_path})" if text else f"{log_path} says nothing"
