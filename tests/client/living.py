"""A real daemon in a directory of its own, started as clients start it, and ended by its pid."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from sandboxd.endpoints import Endpoints

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PATIENCE_MS = 30_000
CODE = f"import sys; sys.path.insert(0, {TOP!r}); from sandboxd.cli import main; main()"


@dataclass(frozen=True)
class Place:
    """Where one daemon lives, whether or not it runs."""

    directory: str

    @property
    def endpoints(self) -> Endpoints:
        return Endpoints(
            runtime_dir=os.path.join(self.directory, "run"),
            state_dir=os.path.join(self.directory, "state"),
            profile_dirs=(os.path.join(TOP, "profiles"), self.profiles),
        )

    @property
    def profiles(self) -> str:
        return os.path.join(self.directory, "profiles")

    @property
    def workspace(self) -> str:
        return os.path.join(self.directory, "work")

    def environment(self) -> dict[str, str]:
        ends = self.endpoints
        return {
            "SANDBOXD_RUNTIME_DIR": ends.runtime_dir,
            "SANDBOXD_STATE_DIR": ends.state_dir,
            "SANDBOXD_PROFILES": ":".join(ends.profile_dirs),
        }

    def ctl(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
        """Run ``sandboxctl`` to its end."""
        options.setdefault("cwd", self.workspace)
        options.setdefault("stdin", subprocess.DEVNULL)
        if "input" in options:
            del options["stdin"]
        return subprocess.run(
            self.argv(*arguments),
            env=os.environ | self.environment() | options.pop("env", {}),
            capture_output=True,
            check=False,
            timeout=PATIENCE_MS / 1000,
            **options,
        )

    def popen(self, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
        """Start ``sandboxctl``."""
        options.setdefault("stdin", subprocess.DEVNULL)
        return subprocess.Popen(
            self.argv(*arguments),
            env=os.environ | self.environment(),
            cwd=self.workspace,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **options,
        )

    @staticmethod
    def argv(*arguments: str) -> list[str]:
        return [sys.executable, "-I", "-c", CODE, *arguments]

    def pid(self) -> int | None:
        """Return the pid of the daemon if one holds the lock."""
        try:
            with open(self.endpoints.lock_path, encoding="ascii") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return None
        except BlockingIOError:
            with open(self.endpoints.lock_path, encoding="ascii") as lock:
                return int(lock.read())
        return None

    def stop(self, signum: int = signal.SIGTERM) -> None:
        """End the daemon if it runs, and wait until it has ended."""
        pid = self.pid()
        if pid is not None:
            await_end(pid, signum)


def await_end(pid: int, signum: int | None = None) -> None:
    """Wait for the end of a process that need not be a child, after sending it a signal."""
    with contextlib.suppress(ProcessLookupError):
        pidfd = os.pidfd_open(pid)
        try:
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            if signum is not None:
                signal.pidfd_send_signal(pidfd, signum)
            assert poll.poll(PATIENCE_MS), "it does not end"
        finally:
            os.close(pidfd)


def make_place(directory: str) -> Place:
    """Lay out the directories of a daemon that is not yet started."""
    place = Place(directory)
    os.chmod(directory, 0o755)
    for path in (place.profiles, place.workspace):
        os.mkdir(path, 0o755)
    return place
