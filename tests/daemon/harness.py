"""A daemon in a process of its own, and a client that sends raw bytes."""

from __future__ import annotations

import array
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from typing import Any, Self

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
PATIENCE_S = 30.0

PROFILES = {
    "echo": """
        name = "echo"
        risk = "low"
        executable = { path = "/usr/bin/printf" }
        arguments = { text = { type = "string", max_length = 131072, default = "hello" } }
        argv = { template = ["--", "%s\\n", "{text}"] }
        approval = { mode = "allow" }
    """,
    "ask": """
        name = "ask"
        executable = { path = "/usr/bin/mktemp" }
        arguments = { suffix = { type = "string", default = "" } }
        argv = { template = ["--tmpdir=.", "--suffix={suffix}", "XXXXXXXX"] }
        workspace = { access = "write" }
        approval = { mode = "ask" }
    """,
    "quick": """
        name = "quick"
        executable = { path = "/usr/bin/true" }
        argv = { template = [] }
        approval = { mode = "ask", expires = "1s" }
    """,
    "never": """
        name = "never"
        executable = { path = "/usr/bin/true" }
        argv = { template = [] }
        approval = { mode = "deny" }
    """,
    "broken": """
        name = "broken"
        executable = { path = "/usr/bin/true" }
        argv = { template = [] }
        approval = { mode = "ask" }
    """,
    "sleep": """
        name = "sleep"
        executable = { path = "/usr/bin/sleep" }
        argv = { template = ["1000"] }
        approval = { mode = "allow" }
        limits = { concurrency = 2 }
    """,
    "yes": """
        name = "yes"
        executable = { path = "/usr/bin/yes" }
        argv = { template = [] }
        approval = { mode = "allow" }
    """,
    "cat": """
        name = "cat"
        executable = { path = "/usr/bin/cat" }
        argv = { template = [] }
        approval = { mode = "allow" }
    """,
}


class Wire:
    """A connection that checks nothing of what it sends. Iterating gives replies to the end."""

    def __init__(self, path: str) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(PATIENCE_S)
        self.sock.connect(path)
        self._received = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def send(self, data: bytes, *fds: int) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        sent = self.sock.sendmsg([data], rights)
        if sent < len(data):
            self.sock.sendall(data[sent:])

    def receive(self) -> dict[str, Any] | None:
        """Return the next reply, or None when the daemon has closed the connection."""
        while b"\0" not in self._received:
            try:
                data = self.sock.recv(1 << 16)
            except ConnectionResetError:  # closed while something of ours was unread
                data = b""
            if not data:
                assert not self._received, "half a reply"
                return None
            self._received += data
        frame, self._received = self._received.split(b"\0", 1)
        reply = json.loads(frame)
        assert isinstance(reply, dict)
        return reply

    def call(
        self, method: str, *fds: int, more: bool = False, **parameters: Any
    ) -> dict[str, Any]:
        """Call a method of whichever interface it belongs to and return the first reply."""
        self.send(frame(method, more=more, **parameters), *fds)
        reply = self.receive()
        assert reply is not None
        return reply

    def ask(self, method: str, *fds: int, **parameters: Any) -> Any:
        """Call a method that must succeed and return the one member of its reply."""
        reply = self.call(method, *fds, **parameters)
        assert "error" not in reply, reply
        (value,) = reply["parameters"].values()
        return value


def frame(method: str, *, more: bool = False, **parameters: Any) -> bytes:
    if "." not in method:
        admin = {"Pending", "Approve", "Reject", "Profiles", "Reload", "Runs", "Kill", "Status"}
        method = f"io.sandboxd.{'Admin' if method in admin else 'Agent'}.{method}"
    call: dict[str, Any] = {"method": method, "parameters": parameters}
    if more:
        call["more"] = True
    return json.dumps(call).encode() + b"\0"


def fault(reply: dict[str, Any] | None) -> str:
    """Return the last part of an error's name, or an empty string."""
    assert reply is not None
    return str(reply.get("error", "")).rpartition(".")[2]


class Daemon:
    """A running daemon below ``directory``."""

    def __init__(self, directory: str, config: str = "", *arguments: str) -> None:
        self.directory = directory
        self.runtime_dir = os.path.join(directory, "run")
        self.state_dir = os.path.join(directory, "state")
        self.profiles_dir = os.path.join(directory, "profiles")
        self.workspace = os.path.join(directory, "work")
        self.agent_path = os.path.join(self.runtime_dir, "agent.sock")
        self.admin_path = os.path.join(self.runtime_dir, "admin.sock")
        self.log_path = os.path.join(directory, "log")
        self.arguments = arguments
        for path in (self.profiles_dir, self.workspace):
            os.makedirs(path, mode=0o755, exist_ok=True)
        for name, text in PROFILES.items():
            self.write_profile(name, text)
        self.config = os.path.join(directory, "sandboxd.toml")
        with open(self.config, "w", encoding="ascii") as file:
            file.write(textwrap.dedent(config))
        os.chmod(self.config, 0o600)
        self.process: subprocess.Popen[bytes] | None = None

    def write_profile(self, name: str, text: str) -> None:
        path = os.path.join(self.profiles_dir, f"{name}.toml")
        with open(path, "w", encoding="ascii") as file:
            file.write(textwrap.dedent(text))
        os.chmod(path, 0o644)

    def command(self) -> list[str]:
        program = [sys.executable, os.path.join(HERE, "direct_engine.py"), "--foreground"]
        places = ["--runtime-dir", self.runtime_dir, "--state-dir", self.state_dir]
        return [
            *program,
            *places,
            "--profiles",
            self.profiles_dir,
            "--config",
            self.config,
            *self.arguments,
        ]

    def start(self, **options: Any) -> Daemon:
        """Start it and wait until it says that it is ready."""
        address = os.path.join(self.directory, "notify")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify, self._log() as log:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(address)
            notify.bind(address)
            os.chmod(address, 0o666)  # the daemon may be another user's
            environment = os.environ | {"PYTHONPATH": TOP, "NOTIFY_SOCKET": address}
            environment |= options.pop("env", {})
            self.process = subprocess.Popen(self.command(), env=environment, stderr=log, **options)
            pidfd = os.pidfd_open(self.process.pid)
            heard, _, _ = select.select([notify.fileno(), pidfd], [], [], PATIENCE_S)
            os.close(pidfd)
            if notify.fileno() not in heard:
                self.stop(signal.SIGKILL)
                raise AssertionError(f"it did not come up: {self.log()}")
            assert notify.recv(64) == b"READY=1"
        return self

    def fails_to_start(self, **options: Any) -> tuple[int, list[dict[str, Any]]]:
        """Start one that must not come up; return its exit status and log."""
        environment = os.environ | {"PYTHONPATH": TOP}
        done = subprocess.run(
            self.command(),
            env=environment,
            stderr=subprocess.PIPE,
            timeout=PATIENCE_S,
            check=False,
            **options,
        )
        return done.returncode, [json.loads(line) for line in done.stderr.splitlines()]

    def stop(self, signum: int = signal.SIGTERM) -> int:
        """End it and return its exit status."""
        assert self.process is not None
        self.process.send_signal(signum)
        status = self.process.wait(PATIENCE_S)
        self.process = None
        return status

    def agent(self) -> Wire:
        return Wire(self.agent_path)

    def admin(self) -> Wire:
        return Wire(self.admin_path)

    @contextlib.contextmanager
    def workspace_fd(self) -> Iterator[int]:
        fd = os.open(self.workspace, os.O_PATH | os.O_DIRECTORY)
        try:
            yield fd
        finally:
            os.close(fd)

    def descriptors(self) -> list[str]:
        """Return what each descriptor of the daemon is."""
        assert self.process is not None
        directory = f"/proc/{self.process.pid}/fd"
        found = []
        for name in os.listdir(directory):
            with contextlib.suppress(FileNotFoundError):
                found.append(os.readlink(f"{directory}/{name}"))
        return sorted(found)

    def log(self) -> list[dict[str, Any]]:
        with open(self.log_path, encoding="ascii") as file:
            return [json.loads(line) for line in file]

    @contextlib.contextmanager
    def _log(self) -> Iterator[int]:
        fd = os.open(self.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            yield fd
        finally:
            os.close(fd)
