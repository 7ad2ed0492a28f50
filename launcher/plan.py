"""What will a sandbox be? The plan, the ceiling over every plan, the messages that carry them.

A plan is complete and frozen: what it does not list does not exist inside. There is no field that
weakens a protection, so no caller can ask for it. Descriptors are named by their index in the
message that carries them; with each stands the `Identity` it must have, and the launcher compares.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# The ids seen inside a sandbox whose launcher was started by root.
POOL_INSIDE_UID = 1000
POOL_INSIDE_GID = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Which object a descriptor stands for: inode(7), ``st_dev``, ``st_ino``, file type bits."""

    dev: int
    ino: int
    kind: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind:
    """A host directory, file or character device shown at the absolute path ``target``.

    Always nosuid, nodev unless it is a device; read-only unless ``writable``, and then noexec.
    ``owned`` asks a launcher of root to show the tree's owner as the sandbox's own user.
    """

    descriptor: int
    identity: Identity
    target: str
    writable: bool = False
    owned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Tmpfs:
    """An empty writable tmpfs(5): nosuid, nodev, noexec, bounded in bytes and inodes."""

    target: str
    size_bytes: int
    inodes: int
    mode: int = 0o700


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A read-only file made for the sandbox, such as /etc/passwd."""

    target: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Symlink:
    """A symbolic link on the read-only root, such as /bin -> usr/bin."""

    target: str
    to: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of the whole sandbox. ``life_ms`` is the launcher's own deadline from its start."""

    memory_bytes: int
    pids: int
    life_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One sandbox, complete."""

    sandbox: str
    binds: tuple[Bind, ...]
    tmpfs: tuple[Tmpfs, ...]
    files: tuple[File, ...]
    symlinks: tuple[Symlink, ...]
    limits: Limits
    network: Literal["none", "loopback"]
    seccomp: Literal["default", "strict"]
    relax: tuple[str, ...] = ()
    host_name: str = "sandbox"
    cgroup_required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """A host tree that plans may bind from: read-only, or writable too."""

    path: str
    writable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """What no plan may exceed; sent once, before any client can connect.

    A bind must lie below one of ``roots`` and neither in nor above one of ``denied``.
    ``spares`` blank sandboxes are kept ready.
    ``pool_first`` and ``pool_size`` are the host uids and gids of a launcher started by root.
    """

    roots: tuple[Root, ...]
    denied: tuple[str, ...]
    devices: tuple[str, ...]
    memory_bytes: int
    pids: int
    life_ms: int
    tmpfs_bytes: int
    sandboxes: int
    relaxations: tuple[str, ...] = ()
    spares: int = 2
    pool_first: int = 2_000_000_000
    pool_size: int = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Rlimit:
    """One getrlimit(2) pair; ``resource`` is the name without ``RLIMIT_``, such as ``NOFILE``."""

    resource: str
    soft: int
    hard: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One program to start in a sandbox.

    ``executable`` and ``script`` are paths inside; what stands there must have the identity given.
    With a ``script``, ``executable`` is its interpreter and ``argv`` already names the script.
    ``argv`` has at least one element; ``environment`` holds ``NAME=value``.
    """

    command: str
    executable: str
    identity: Identity
    argv: tuple[str, ...]
    environment: tuple[str, ...]
    cwd: str
    rlimits: tuple[Rlimit, ...]
    script: str | None = None
    script_identity: Identity | None = None
    umask: int = 0o022
    nice: int = 0


# daemon → launcher


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Make a sandbox. Descriptors: init's end of its channel, then those of the plan's binds."""

    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Destroy:
    """End a sandbox now (SIGKILL to its init)."""

    sandbox: str


# launcher → init of a blank sandbox


@dataclass(frozen=True, slots=True, kw_only=True)
class Become:
    """Become the sandbox of this plan. Descriptors: the channel, then one tree a bind."""

    plan: Plan


# launcher → daemon


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The launcher is hardened and holds its ceiling.

    ``cgroup`` says which controllers it can use: ``v2``, ``v1`` or ``none`` with the reason.
    ``groups_retained`` are supplementary groups that the kernel did not let it give up.
    """

    pid: int
    cgroup: Literal["v1", "v2", "none"]
    cgroup_reason: str
    landlock_abi: int
    groups_retained: tuple[int, ...]
    as_root: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Created:
    """A sandbox's init exists. Descriptor: its pidfd. ``host_uid`` is the uid it runs as."""

    sandbox: str
    pid: int
    host_uid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The plan is above the ceiling; nothing was made."""

    sandbox: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A step failed and nothing was started. ``command`` is empty for a step of the sandbox."""

    sandbox: str
    step: str
    errno: int
    detail: str
    command: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupUsage:
    """Counters of a sandbox's cgroup (cgroups(7)); -1 where the controller has no such file."""

    memory_peak_bytes: int
    oom_kills: int
    pids_refused: int
    cpu_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """A sandbox's init has ended, with it every process inside; its cgroup is removed.

    ``returncode`` is init's own: negative for a signal. ``overdue`` says that the launcher's
    deadline ended it. ``leftover`` names what could not be removed.
    """

    sandbox: str
    returncode: int
    overdue: bool
    usage: CgroupUsage | None
    leftover: str = ""


# daemon → init


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Start a command. Descriptors: its standard input, output and error."""

    command: Command


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """Send a signal to a command's process group (``everyone``: to all processes inside)."""

    command: str
    signal: int
    everyone: bool = False


# init → daemon


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The view is complete and every layer of the sandbox itself is in force."""

    sandbox: str
    landlock_abi: int
    cgroup: Literal["v1", "v2", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """execveat(2) has taken place, as the kernel itself says."""

    command: str
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Exited:
    """A command has ended. ``returncode`` is negative for a signal; times are microseconds.

    ``survivors`` counts the processes it left behind, which init has ended before this message.
    """

    command: str
    returncode: int
    core_dumped: bool
    user_us: int
    system_us: int
    max_rss_bytes: int
    survivors: int
    usage: CgroupUsage | None
