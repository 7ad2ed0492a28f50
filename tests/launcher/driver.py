"""How do tests drive the real launcher? As the daemon does, with hand-made plans."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from launcher import channel, paths, server
from launcher.plan import (
    Bind,
    Ceiling,
    Command,
    Created,
    Destroy,
    Exited,
    Failed,
    File,
    Forward,
    Gone,
    Hello,
    Identity,
    Launch,
    Limits,
    Plan,
    Ready,
    Refused,
    Rlimit,
    Root,
    Start,
    Started,
    Symlink,
    Tmpfs,
)

HERE = os.path.dirname(os.path.abspath(__file__))
PYTHON = "/usr/bin/python3"
CEILING = Ceiling(
    roots=(Root(path="/", writable=True),),
    denied=("/proc", "/sys", "/run"),
    devices=("/dev/full",),
    memory_bytes=1 << 34,
    pids=1024,
    life_ms=600_000,
    tmpfs_bytes=1 << 32,
    sandboxes=64,
)
RLIMITS = (
    Rlimit(resource="NOFILE", soft=128, hard=128),
    Rlimit(resource="CORE", soft=0, hard=0),
    Rlimit(resource="FSIZE", soft=1 << 28, hard=1 << 28),
)


@dataclass(slots=True)
class Result:
    """Everything that was said about one sandbox with one command."""

    created: Created | Refused | Failed | None = None
    ready: Ready | None = None
    started: Started | None = None
    failed: Failed | None = None
    exited: Exited | None = None
    gone: Gone | None = None
    output: bytes = b""

    def lines(self) -> list[Any]:
        """Return what `inside.py` printed, one value a line."""
        return [json.loads(line) for line in self.output.splitlines()]


@dataclass(slots=True)
class Sandbox:
    """One sandbox, from the daemon's side."""

    launcher: Launcher
    name: str
    channel: socket.socket
    result: Result = field(default_factory=Result)
    pidfd: int = -1

    def start(self, command: Command) -> int:
        """Queue a command; return the read end of its output."""
        read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
        null_fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        channel.send(self.channel, Start(command=command), [null_fd, write_fd, write_fd])
        os.close(write_fd)
        os.close(null_fd)
        return read_fd

    def next(self) -> Ready | Started | Failed | Exited | None:
        """Wait for init's next word, None at end of file."""
        received = channel.receive(self.channel, Ready, Started, Failed, Exited)
        return None if received is None else received[0]  # type: ignore[return-value]  # union

    def forward(self, command: str, number: int) -> None:
        channel.send(self.channel, Forward(command=command, signal=number))

    def close(self) -> Gone:
        """Close the channel and wait until the launcher says that the sandbox is gone."""
        self.channel.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1
        return self.launcher.wait_gone(self.name)


class Launcher:
    """A launcher of our own, in a child process."""

    def __init__(
        self, ceiling: Ceiling = CEILING, sabotage: Callable[[], None] | None = None
    ) -> None:
        self.control, other = channel.pair()
        self.pid = os.fork()
        if self.pid == 0:
            self.control.close()
            if sabotage is not None:
                sabotage()
            server.main(other.detach())
        other.close()
        channel.send(self.control, ceiling)
        received = channel.receive(self.control, Hello)
        assert received is not None
        self.hello = received[0]
        self._count = 0

    def close(self) -> None:
        self.control.close()
        os.waitpid(self.pid, 0)

    def plan(self, workspace: str | None = None, **changes: Any) -> tuple[Plan, list[int]]:
        """Return a usual plan and the descriptors of its binds, which the caller closes."""
        self._count += 1
        binds, fds = [], []
        root_fd = os.open("/", os.O_PATH)
        shown = [("/usr", False), ("/etc/ld.so.cache", False)]
        shown += [(f"/{name}", False) for name in _real_directories()]
        for target, writable in shown + ([(workspace, True)] if workspace else []):
            fd = paths.open_path(root_fd, target)
            fds.append(fd)
            binds.append(
                Bind(
                    descriptor=len(fds),
                    identity=paths.identity(fd),
                    target=target,
                    writable=writable,
                    owned=target == workspace,
                )
            )
        os.close(root_fd)
        plan = Plan(
            sandbox=f"s{self._count}",
            binds=tuple(binds),
            tmpfs=(
                Tmpfs(target="/tmp", size_bytes=16 << 20, inodes=256, mode=0o1777),
                Tmpfs(target="/dev/shm", size_bytes=16 << 20, inodes=256, mode=0o1777),
                Tmpfs(target="/home/sandbox", size_bytes=16 << 20, inodes=256),
            ),
            files=(File(target="/etc/hostname", content="inside\n"),),
            symlinks=tuple(
                Symlink(target=f"/{name}", to=os.readlink(f"/{name}"))
                for name in ("bin", "lib", "lib64", "sbin")
                if os.path.islink(f"/{name}")
            ),
            limits=Limits(memory_bytes=256 << 20, pids=32, life_ms=60_000),
            network="none",
            seccomp="default",
        )
        return dataclasses.replace(plan, **changes), fds

    def launch(
        self, plan: Plan, fds: Sequence[int], first: Command | None = None
    ) -> tuple[Sandbox, int]:
        """Ask for a sandbox with a command already queued; return it and the output's read end.

        ``result.created`` has the launcher's answer. Without a command the second value is -1.
        """
        ours, inits = channel.pair()
        sandbox = Sandbox(launcher=self, name=plan.sandbox, channel=ours)
        read_fd = sandbox.start(first) if first is not None else -1
        channel.send(self.control, Launch(plan=plan), [inits.fileno(), *fds])
        inits.close()
        channel.close_all(fds)
        received = channel.receive(self.control, Created, Refused, Failed)
        assert received is not None
        sandbox.result.created = received[0]
        if received[1]:
            sandbox.pidfd = received[1][0]
        return sandbox, read_fd

    def destroy(self, name: str) -> None:
        channel.send(self.control, Destroy(sandbox=name))

    def wait_gone(self, name: str) -> Gone:
        received = channel.receive(self.control, Gone)
        assert received is not None
        assert received[0].sandbox == name
        return received[0]

    def run(
        self,
        argv: Sequence[str],
        workspace: str | None = None,
        *,
        rlimits: Any = RLIMITS,
        **changes: Any,
    ) -> Result:
        """Make a sandbox, run one command in it to its end, and let the sandbox go."""
        plan, fds = self.plan(workspace, **changes)
        first = command(argv, cwd=workspace or "/", rlimits=rlimits)
        sandbox, read_fd = self.launch(plan, fds, first)
        result = sandbox.result
        if not isinstance(result.created, Created):
            sandbox.channel.close()
            os.close(read_fd)
            return result
        with open(read_fd, "rb") as output:
            result.output = output.read()
        while (said := sandbox.next()) is not None:
            if isinstance(said, Ready):
                result.ready = said
            elif isinstance(said, Started):
                result.started = said
            elif isinstance(said, Failed):
                result.failed = said
                break
            elif isinstance(said, Exited):
                result.exited = said
                break
        result.gone = sandbox.close()
        return result

    def inside(self, *attempts: str, workspace: str | None = None, **changes: Any) -> list[Any]:
        """Run attempts of `inside.py` in one sandbox and return what each says."""
        with open(os.path.join(HERE, "inside.py"), encoding="utf-8") as file:
            program = file.read()
        files = (File(target="/inside.py", content=program),)
        result = self.run(
            [PYTHON, "-I", "/inside.py", *attempts], workspace, files=files, **changes
        )
        assert result.exited is not None, result
        assert result.exited.returncode == 0, result.output.decode()
        return result.lines()


def _real_directories() -> list[str]:
    names = ("bin", "lib", "lib64", "sbin")
    return [n for n in names if os.path.isdir(f"/{n}") and not os.path.islink(f"/{n}")]


def identity_of(path: str) -> Identity:
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        return paths.identity(fd)
    finally:
        os.close(fd)


def command(argv: Sequence[str], *, cwd: str = "/", **changes: Any) -> Command:
    """Return a command that runs ``argv[0]``, a path of the host that is shown inside too."""
    real = os.path.realpath(argv[0])  # as the daemon resolves it when it loads a profile
    usual: dict[str, Any] = {
        "command": "c",
        "executable": real,
        "identity": identity_of(real),
        "argv": tuple(argv),
        "environment": ("PATH=/usr/bin:/bin", "LANG=C.UTF-8", "HOME=/home/sandbox"),
        "cwd": cwd,
        "rlimits": RLIMITS,
    }
    return Command(**(usual | changes))


@contextmanager
def a_launcher(**arguments: Any) -> Iterator[Launcher]:
    launcher = Launcher(**arguments)
    try:
        yield launcher
    finally:
        launcher.close()


def wait_for_end(pid: int, pidfd: int) -> None:
    """Wait until the process behind a pidfd has ended, whoever reaps it."""
    import select

    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    assert poll.poll(20_000), f"process {pid} did not end"


def kill(pidfd: int) -> None:
    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
