"""How does the daemon start its launcher, the only process it ever starts?

Isolated Python (``-I -S``) with an explicit module path, so that nothing in the environment or
the current directory is imported (Y08), and only from places that nobody else can write to.
"""

from __future__ import annotations

import asyncio
import grp
import importlib.util
import os
import pwd
import signal
import socket
import stat
import sys
from contextlib import suppress
from dataclasses import dataclass

from launcher import channel
from sandboxd.errors import SetupFailed

_CONTROL_FD = 3
_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
# SAFETY: closing comes first, so that nothing the daemon itself inherited stays open there.
_BOOTSTRAP = (
    "import os, sys; os.closerange(4, 1 << 20); sys.path += sys.argv[1:]; "
    "from launcher.server import main; main(3)"
)
_DEFAULT_SIGNALS = set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}
_END_S = 5.0


@dataclass(slots=True, kw_only=True)
class Launched:
    """The launcher's process and our end of its channel."""

    pid: int
    pidfd: int
    control: socket.socket

    async def ended(self) -> int:
        """Wait for its end, by force after a while; reap it and return its status.

        The status is negative for a signal. The launcher ends by itself when its channel does.
        """
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(self.pidfd, readable.set)
        try:
            try:
                await asyncio.wait_for(readable.wait(), _END_S)
            except TimeoutError:
                self.kill()
                await readable.wait()
        finally:
            loop.remove_reader(self.pidfd)
        return self._reap()

    def _reap(self) -> int:
        _, status = os.waitpid(self.pid, 0)
        os.close(self.pidfd)
        self.pidfd = -1
        return os.waitstatus_to_exitcode(status)

    def kill(self) -> None:
        """SIGKILL by pidfd; the sandboxes die with it."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)


def start_launcher() -> Launched:
    """Start the launcher in a session of its own, with one channel and nothing else.

    Raises:
        SetupFailed: somebody else could exchange the launcher's code.

    """
    directories = _module_directories()
    ours, theirs = channel.pair()
    with theirs:
        try:
            pid = _spawn(theirs.fileno(), directories)
        except OSError:
            ours.close()
            raise
    try:
        return Launched(pid=pid, pidfd=os.pidfd_open(pid), control=ours)
    except OSError:
        ours.close()  # it ends by that
        os.waitpid(pid, 0)
        raise


def _spawn(control_fd: int, directories: list[str]) -> int:
    return os.posix_spawn(
        sys.executable,
        [sys.executable, "-I", "-S", "-B", "-c", _BOOTSTRAP, *directories],
        _ENVIRONMENT,
        file_actions=[
            (os.POSIX_SPAWN_DUP2, control_fd, _CONTROL_FD),
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
        ],
        setsid=True,
        setsigmask=[],
        setsigdef=_DEFAULT_SIGNALS,
    )


def _module_directories() -> list[str]:
    """Return the directories of the launcher and of the two libraries it uses, all trusted."""
    directories = []
    for name in ("launcher", "pyseccomp", "prctl", "_prctl"):
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise _failed("find the launcher's modules", f"there is no module {name}", 2)
        place = os.path.dirname(spec.origin)
        if spec.submodule_search_locations is not None:
            _trust_content(place)
            place = os.path.dirname(place)
        _trust(spec.origin)
        _trust_upwards(place)
        directories.append(place)
    return list(dict.fromkeys(directories))


def _trust_content(directory: str) -> None:
    for path, _, names in os.walk(directory):
        _trust(path)
        for name in names:
            _trust(os.path.join(path, name))


def _trust_upwards(directory: str) -> None:
    while True:
        _trust(directory)
        if directory == "/":
            return
        directory = os.path.dirname(directory)


def _trust(path: str) -> None:
    """Refuse what somebody other than root or us owns or may write to."""
    status = os.stat(path)
    if status.st_uid not in {0, os.geteuid()}:
        raise _failed("trust the launcher's code", f"{path} belongs to uid {status.st_uid}", 1)
    if status.st_mode & stat.S_ISVTX and stat.S_ISDIR(status.st_mode):
        return  # unlink(2): there everybody can remove and rename only what is his own
    by_group = status.st_mode & stat.S_IWGRP and not _is_own_group(status.st_gid)
    if status.st_mode & stat.S_IWOTH or by_group:
        raise _failed("trust the launcher's code", f"{path} is writable by others", 1)


def _is_own_group(gid: int) -> bool:
    """Tell whether ``gid`` is a group that nobody but this user is in (useradd(8), USERGROUPS)."""
    try:
        name = pwd.getpwuid(os.geteuid()).pw_name
        members = set(grp.getgrgid(gid).gr_mem)
    except KeyError:
        return False
    return gid == os.getegid() == os.geteuid() and members <= {name}


def _failed(step: str, problem: str, errno: int) -> SetupFailed:
    return SetupFailed(f"cannot {step}: {problem}", layer="launcher", step=step, errno=errno)
