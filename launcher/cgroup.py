"""How are memory and processes of one sandbox bounded and counted by the kernel?

A leaf cgroup (cgroups(7)) a sandbox, made by the launcher beside itself and removed when the
sandbox is gone. Version 2 needs a delegated cgroup: the sandbox is born into its leaf
(CLONE_INTO_CGROUP). On hosts that still have version 1, init joins through descriptors of
``cgroup.procs`` it inherits. Where neither can be written, `Base.kind` is ``none`` and says why.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

from launcher.plan import CgroupUsage, Limits

_V1_CONTROLLERS = ("memory", "pids")
_PREFIX = "sandboxd."


@dataclass(slots=True, kw_only=True)
class Base:
    """Where leaves are made: one directory (v2) or one per controller (v1)."""

    kind: Literal["v1", "v2", "none"]
    reason: str = ""
    directories: dict[str, str] = field(default_factory=dict)

    def remove(self) -> None:
        """Remove the launcher's own directories; they are empty by now."""
        for directory in self.directories.values():
            with suppress(OSError):
                os.rmdir(directory)


@dataclass(slots=True, kw_only=True)
class Leaf:
    """The cgroup of one sandbox. Keys of ``directories`` are ``v2`` or v1 controllers."""

    kind: Literal["v1", "v2", "none"]
    directories: dict[str, str]
    join_fds: tuple[int, ...] = ()
    into_fd: int | None = None
    counter_fds: dict[str, int] = field(default_factory=dict)

    def join(self) -> None:
        """In init, version 1: move this process into the leaf."""
        for fd in self.join_fds:
            os.write(fd, b"0")

    def usage(self) -> CgroupUsage | None:
        """Read the counters, from descriptors opened when the leaf was made."""
        if self.kind == "none":
            return None
        text = {name: _pread(fd) for name, fd in self.counter_fds.items()}
        events = _keyed(text.get("memory_events", "")) | _keyed(text.get("oom_control", ""))
        return CgroupUsage(
            memory_peak_bytes=_number(text.get("memory_peak", "")),
            oom_kills=events.get("oom_kill", -1),
            pids_refused=_keyed(text.get("pids_events", "")).get("max", -1),
            cpu_us=_keyed(text.get("cpu_stat", "")).get("usage_usec", -1),
        )

    def close(self) -> None:
        """Close all descriptors."""
        for fd in (*self.join_fds, *self.counter_fds.values()):
            os.close(fd)
        if self.into_fd is not None:
            os.close(self.into_fd)
        self.join_fds, self.counter_fds, self.into_fd = (), {}, None

    def remove(self) -> str:
        """Remove the directories; return the name of one that cannot be removed yet, or ""."""
        for directory in self.directories.values():
            try:
                os.rmdir(directory)
            except FileNotFoundError:
                continue
            except OSError as error:
                return f"{directory}: {error.strerror}"
        return ""


def find_base() -> Base:
    """Look where this process may make leaves, make the directory for them, remove dead ones."""
    own = _own_paths()
    mounts = _mounts()
    reasons = []
    for kind, attempt in (("v2", _base_v2), ("v1", _base_v1)):
        try:
            return attempt(own, mounts)
        except (OSError, LookupError) as error:
            reasons.append(f"{kind}: {error}")
    return Base(kind="none", reason="; ".join(reasons))


def _base_v2(own: dict[str, str], mounts: dict[str, str]) -> Base:
    directory = mounts["cgroup2"] + own[""].rstrip("/")
    with open(f"{directory}/cgroup.controllers", encoding="ascii") as file:
        available = file.read().split()
    for controller in ("memory", "pids"):
        if controller not in available:
            raise LookupError(f"controller {controller} is not available in {directory}")
    # No processes may be where controllers are handed down (cgroups(7), "no internal processes").
    supervisor = f"{directory}/supervisor"
    with suppress(FileExistsError):
        os.mkdir(supervisor)
    _write(f"{supervisor}/cgroup.procs", str(os.getppid()))
    _write(f"{supervisor}/cgroup.procs", "0")
    wanted = [name for name in ("memory", "pids", "cpu") if name in available]
    _write(f"{directory}/cgroup.subtree_control", " ".join(f"+{name}" for name in wanted))
    base = _make_base(directory)
    _write(f"{base}/cgroup.subtree_control", " ".join(f"+{name}" for name in wanted))
    return Base(kind="v2", directories={"v2": base})


def _base_v1(own: dict[str, str], mounts: dict[str, str]) -> Base:
    directories: dict[str, str] = {}
    try:
        for controller in _V1_CONTROLLERS:
            directory = mounts[controller] + own[controller].rstrip("/")
            directories[controller] = _make_base(directory)
    except (OSError, LookupError):
        Base(kind="v1", directories=directories).remove()
        raise
    return Base(kind="v1", directories=directories)


def _make_base(directory: str) -> str:
    """Make the directory of this launcher's leaves and remove those of dead launchers."""
    for name in os.listdir(directory):
        if name.startswith(_PREFIX) and not _is_alive(name):
            _remove_dead(f"{directory}/{name}")
    base = f"{directory}/{_PREFIX}{os.getpid()}.{_start_time(os.getpid())}"
    os.mkdir(base)
    return base


def _remove_dead(directory: str) -> None:
    for leaf in os.listdir(directory):
        if os.path.isdir(f"{directory}/{leaf}"):
            with suppress(OSError):
                os.rmdir(f"{directory}/{leaf}")
    with suppress(OSError):  # a process still dying in it: the next launcher removes it
        os.rmdir(directory)


def _is_alive(name: str) -> bool:
    parts = name.split(".")
    try:
        return _start_time(int(parts[1])) == parts[2]
    except (OSError, ValueError, IndexError):
        return False


def _start_time(pid: int) -> str:
    """Return field 22 of proc_pid_stat(5), which with the pid names one process for ever."""
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        return file.read().rpartition(")")[2].split()[19]


def create_leaf(base: Base, name: str) -> Leaf:
    """Make a leaf, with nothing in it yet and no limits of its own.

    Raises:
        OSError: it cannot be made; nothing is left.

    """
    directories = {key: f"{directory}/{name}" for key, directory in base.directories.items()}
    leaf = Leaf(kind=base.kind, directories=directories)
    try:
        for directory in directories.values():
            os.mkdir(directory)
        if base.kind == "v2":
            _open_v2(leaf, directories["v2"])
        elif base.kind == "v1":
            _open_v1(leaf, directories["memory"], directories["pids"])
    except OSError:
        leaf.close()
        leaf.remove()
        raise
    return leaf


def limit(leaf: Leaf, limits: Limits) -> None:
    """Set the limits of a leaf. That of pids leaves room for init itself.

    Raises:
        OSError: one cannot be set; the caller starts nothing in the leaf.

    """
    if leaf.kind == "v2":
        directory = leaf.directories["v2"]
        _write(f"{directory}/memory.max", str(limits.memory_bytes))
        _write(f"{directory}/memory.oom.group", "1")
        with suppress(FileNotFoundError):  # a kernel without swap has no such file
            _write(f"{directory}/memory.swap.max", "0")
        _write(f"{directory}/pids.max", str(limits.pids + 1))
    elif leaf.kind == "v1":
        memory, pids = leaf.directories["memory"], leaf.directories["pids"]
        _write(f"{memory}/memory.limit_in_bytes", str(limits.memory_bytes))
        with suppress(FileNotFoundError):  # swap accounting may be off
            _write(f"{memory}/memory.memsw.limit_in_bytes", str(limits.memory_bytes))
        _write(f"{pids}/pids.max", str(limits.pids + 1))


def _open_v2(leaf: Leaf, directory: str) -> None:
    leaf.into_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    names = {"memory_events": "memory.events", "pids_events": "pids.events"}
    names |= {"memory_peak": "memory.peak", "cpu_stat": "cpu.stat"}
    _open_counters(leaf, {key: f"{directory}/{name}" for key, name in names.items()})


def _open_v1(leaf: Leaf, memory: str, pids: str) -> None:
    flags = os.O_WRONLY | os.O_CLOEXEC
    leaf.join_fds = tuple(os.open(f"{d}/cgroup.procs", flags) for d in (memory, pids))
    names = {
        "oom_control": f"{memory}/memory.oom_control",
        "memory_peak": f"{memory}/memory.max_usage_in_bytes",
        "pids_events": f"{pids}/pids.events",
    }
    _open_counters(leaf, names)


def _open_counters(leaf: Leaf, names: dict[str, str]) -> None:
    for key, path in names.items():
        with suppress(FileNotFoundError):  # older kernels lack some; `usage` says -1 then
            leaf.counter_fds[key] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def _own_paths() -> dict[str, str]:
    """Parse /proc/self/cgroup: controller (``""`` for v2) to path below its mount."""
    paths: dict[str, str] = {}
    with open("/proc/self/cgroup", encoding="utf-8") as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            paths |= dict.fromkeys(controllers.split(","), path)
    return paths


def _mounts() -> dict[str, str]:
    """Parse /proc/self/mountinfo: ``cgroup2`` or v1 controller to its mount point."""
    points: dict[str, str] = {}
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        for line in file:
            left, _, right = line.rstrip("\n").partition(" - ")
            fstype, _, options = right.split(" ", 2)
            if fstype == "cgroup2":
                points.setdefault("cgroup2", left.split()[4])
            elif fstype == "cgroup":
                for option in options.split(","):
                    points.setdefault(option, left.split()[4])
    return points


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    except OSError as error:
        raise OSError(error.errno, f"write {text!r} to {path}: {error.strerror}") from None
    finally:
        os.close(fd)


def _pread(fd: int) -> str:
    try:
        return os.pread(fd, 4096, 0).decode()
    except OSError:  # the leaf was removed: -1 is the answer for a counter nobody can read
        return ""


def _keyed(text: str) -> dict[str, int]:
    rows = (line.split() for line in text.splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}


def _number(text: str) -> int:
    return int(text) if text.strip().isdigit() else -1
