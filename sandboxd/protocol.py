"""What do daemon and clients say to each other?

Varlink (NUL-terminated JSON over a Unix stream socket) with the interfaces named here. Every
record is a frozen dataclass that `launcher.records` encodes and decodes strictly, and both sides
use these same classes. Only the standard library is needed.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Any, Literal

from sandboxd.errors import SandboxdError

AGENT_INTERFACE = "io.sandboxd.Agent"
ADMIN_INTERFACE = "io.sandboxd.Admin"
MAX_FRAME_BYTES = 1 << 20
MAX_DEPTH = 32  # nesting of objects and lists in one frame

Status = Literal[
    "exited",
    "signaled",
    "timed_out",
    "limit_exceeded",
    "cancelled",
    "lost",
    "denied",
    "rejected",
    "expired",
    "pending",
]
NOT_STARTED: frozenset[str] = frozenset({"denied", "rejected", "expired", "pending"})
ReasonCode = Literal[
    "NOT_IN_ALLOWLIST",
    "ARGUMENT_INVALID",
    "PATH_NOT_GRANTED",
    "SYMLINK_REFUSED",
    "EXECUTABLE_CHANGED",
    "EXECUTABLE_UNUSABLE",
    "POLICY_CHANGED",
    "APPROVAL_REQUIRED",
    "DENIED_BY_PROFILE",
    "REJECTED",
    "GRANT_EXPIRED",
    "GRANT_EXHAUSTED",
]
LimitName = Literal["wall", "cpu", "memory", "pids", "file_size", "output"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """One captured output stream.

    ``data`` is text if all that was kept is UTF-8, else base64, as ``encoding`` tells.
    ``head_bytes`` of what was kept are the stream's beginning, the rest is its end; between them
    ``dropped_bytes`` are missing. ``sha256`` is of the whole stream, dropped bytes included.
    """

    encoding: Literal["utf-8", "base64"] = "utf-8"
    data: str = ""
    head_bytes: int = 0
    total_bytes: int = 0
    dropped_bytes: int = 0
    truncated: bool = False
    sha256: str = ""

    @classmethod
    def of(cls, kept: bytes, *, head_bytes: int, total_bytes: int, sha256: str) -> Stream:
        """Describe what was kept of a stream of ``total_bytes``."""
        try:
            encoding, data = "utf-8", kept.decode()
        except UnicodeDecodeError:
            encoding, data = "base64", base64.b64encode(kept).decode()
        dropped = total_bytes - len(kept)
        return cls(
            encoding="utf-8" if encoding == "utf-8" else "base64",
            data=data,
            head_bytes=head_bytes,
            total_bytes=total_bytes,
            dropped_bytes=dropped,
            truncated=dropped > 0,
            sha256=sha256,
        )

    def bytes(self) -> bytes:
        """Return exactly the bytes that were kept."""
        return self.data.encode() if self.encoding == "utf-8" else base64.b64decode(self.data)

    def text(self, *, seam: bool = True) -> str:
        """Return what was kept as text; what is not UTF-8 becomes U+FFFD.

        With ``seam``, a line says how much is missing where something is.
        """
        kept = self.bytes()
        if not self.truncated or not seam:
            return kept.decode(errors="replace")
        head, tail = kept[: self.head_bytes], kept[self.head_bytes :]
        mark = f"\n[... {self.dropped_bytes} bytes not shown ...]\n"
        return head.decode(errors="replace") + mark + tail.decode(errors="replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Denial:
    """One thing that was refused, by whom, and what would help.

    ``target`` is the argument, path or name concerned; ``key`` is the same for the same refusal.
    """

    kind: Literal["command", "argument", "path", "executable", "policy", "workspace"]
    target: str
    reason: ReasonCode
    message: str
    rule: str = ""
    advice: str = ""
    count: int = 1
    source: Literal["broker", "kernel", "inferred"] = "broker"
    key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a run used. Times are milliseconds; -1 where nothing could measure it."""

    user_ms: float = -1
    system_ms: float = -1
    max_rss_bytes: int = -1
    memory_peak_bytes: int = -1
    survivors: int = 0
    limits_hit: tuple[LimitName, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """Under what a run really took place. ``limits`` names the mechanisms that held."""

    profile: str
    profile_digest: str
    layers: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    degraded: tuple[str, ...] = ()
    landlock_abi: int = 0
    network: str = "none"
    seccomp: str = "default"
    host_uid: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Executable:
    """The program that ran: path, device and inode as pinned, digest if the profile pins one."""

    path: str
    dev: int
    ino: int
    sha256: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The one record of what became of a request.

    ``status`` says how it ended; ``exit_code``, ``signal`` and ``limit`` are set where that status
    has one. ``created_at`` is UTC in milliseconds since 1970; ``setup_ms`` ends at execveat(2).
    """

    id: str
    command: str
    status: Status | Literal["running"]
    proposal: str = ""
    grant: str = ""
    digest: str = ""
    exit_code: int | None = None
    signal: int | None = None
    limit: LimitName | None = None
    stdout: Stream = field(default_factory=Stream)
    stderr: Stream = field(default_factory=Stream)
    created_at: int = 0
    setup_ms: float = 0
    wall_ms: float = 0
    usage: Usage = field(default_factory=Usage)
    denials: tuple[Denial, ...] = ()
    denials_complete: bool = False
    effective: Effective | None = None
    executable: Executable | None = None
    argv: tuple[str, ...] = ()
    workspace: str = ""
    reason: str = ""
    uid: int = -1

    @property
    def ok(self) -> bool:
        """True if the command ran and ended with exit status 0."""
        return self.status == "exited" and self.exit_code == 0

    @property
    def exit_status(self) -> int:
        """The status a command line ends with for this run (README, "Exit status")."""
        if self.status == "exited" and self.exit_code is not None:
            return self.exit_code
        if self.status == "timed_out":
            return 124
        if self.status in {"signaled", "limit_exceeded", "cancelled"}:
            return 128 + (self.signal or 9)
        if self.status == "pending":
            return 75
        if any(denial.reason == "NOT_IN_ALLOWLIST" for denial in self.denials):
            return 127
        return 125 if self.status in {"lost", "running"} else 126

    def check(self) -> Run:
        """Return self, or raise `RunFailed` unless `ok`."""
        if not self.ok:
            raise RunFailed(self)
        return self


class RunFailed(SandboxdError):
    """`Run.check` was asked for, and the run did not end with exit status 0."""

    def __init__(self, run: Run) -> None:
        super().__init__(f"{run.command}: {run.status}, exit status {run.exit_status}")
        self.run = run


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A validated request. ``state`` "ready" may be executed; "denied" names its ``denials``."""

    id: str
    command: str
    state: Literal["ready", "pending", "denied", "rejected", "expired", "used", "cancelled"]
    digest: str = ""
    argv: tuple[str, ...] = ()
    workspace: str = ""
    rule: str = ""
    reason: str = ""
    message: str = ""
    created_at: int = 0
    expires_at: int = 0
    uid: int = -1
    denials: tuple[Denial, ...] = ()
    executable: Executable | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What would happen to a request: answer of ``Check``. Nothing is stored."""

    decision: Literal["allow", "ask", "deny"]
    rule: str
    argv: tuple[str, ...] = ()
    denials: tuple[Denial, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandInfo:
    """One command of the allowlist, as an agent sees it. ``parameters`` is a JSON Schema."""

    name: str
    summary: str
    risk: Literal["low", "medium", "high"]
    parameters: dict[str, Any]
    workspace: Literal["none", "read", "write"]
    network: str
    approval: Literal["deny", "ask", "allow_safe", "allow"]
    available: bool
    unavailable_because: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened during a run, in order.

    "started": ``pid`` (on the host). "output": ``stream``, ``encoding`` and ``data`` as in
    `Stream`; only the beginning that is kept is sent so, the end is in the record. "ended": the
    final record follows.
    """

    kind: Literal["started", "output", "ended"]
    run: str
    pid: int = 0
    stream: Literal["stdout", "stderr", ""] = ""
    encoding: Literal["utf-8", "base64"] = "utf-8"
    data: str = ""

    def bytes(self) -> bytes:
        """Return exactly the bytes of an output event."""
        return self.data.encode() if self.encoding == "utf-8" else base64.b64decode(self.data)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tightening:
    """What a request may narrow, never widen. Sizes in bytes; None leaves the profile's value."""

    wall_ms: int | None = None
    memory: int | None = None
    pids: int | None = None
    output: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Parameters of ``Propose``, ``Run`` and ``Check``.

    ``workspace`` and ``stdin`` are indices into the descriptors sent with the frame: a directory
    opened by the client, and the read end of a pipe. ``environment`` may set only names the
    profile passes. ``reason`` is shown to people, quoted, and never part of a decision.
    """

    command: str
    arguments: dict[str, Any] = field(default_factory=dict)
    workspace: int | None = None
    stdin: int | None = None
    environment: dict[str, str] = field(default_factory=dict)
    limits: Tightening = field(default_factory=Tightening)
    reason: str = ""
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonStatus:
    """How the daemon is: answer of ``Status``."""

    version: str
    pid: int
    uid: int
    mode: Literal["user", "root"]
    started_at: int
    running: int
    launcher_pid: int
    launcher_restarts: int
    cgroup: str
    cgroup_reason: str
    landlock_abi: int
    groups_retained: tuple[int, ...]
    profiles: int
    state_dir: str
    profile_dirs: tuple[str, ...]
