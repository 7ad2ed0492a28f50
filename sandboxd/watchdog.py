"""Does a sandbox use more processor time or memory than it may, where the kernel does not watch?

RLIMIT_CPU counts each process alone, and without a cgroup nothing bounds the memory of all
together (R06, L06). One timer samples every watched sandbox with psutil. A process is looked up
once, when it appears; from then on only those of sandboxes are read, and the share of time spent
here is bounded.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

import psutil  # type: ignore[import-untyped]  # it ships no annotations

_FIRST_S = 0.1  # shorter runs are never looked at
_INTERVAL_S = 0.1
_INTERVAL_MEMORY_S = 0.05
_SHARE = 10  # at most one tenth of the time goes into sampling

Exceeded = Callable[[Literal["cpu", "memory"]], None]


@dataclass(slots=True, kw_only=True, eq=False)
class Watch:
    """One sandbox and its bounds. ``memory_bytes`` is None where a cgroup bounds it."""

    init: psutil.Process
    cpu_s: float
    memory_bytes: int | None
    on_exceeded: Exceeded
    members: dict[int, psutil.Process] = field(default_factory=dict)
    own_s: dict[int, float] = field(default_factory=dict)
    past_s: float = 0.0
    stopped: bool = False

    def keep(self, alive: set[int]) -> None:
        """Forget the members that have ended, but not what they used."""
        for pid in self.members.keys() - alive:
            del self.members[pid]
            self.past_s += self.own_s.pop(pid, 0.0)

    def stop(self) -> None:
        """Watch no more."""
        self.stopped = True


class Watchdog:
    """All watched sandboxes of one event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._watches: dict[int, Watch] = {}
        self._owners: dict[int, int] = {}  # pid → pid of its sandbox's init, 0 for all others
        self._timer: asyncio.TimerHandle | None = None

    def watch(
        self, init_pid: int, *, cpu_ms: int, memory_bytes: int | None, on_exceeded: Exceeded
    ) -> Watch | None:
        """Begin to watch; ``on_exceeded`` is called once at most. None if it is gone already."""
        try:
            init = psutil.Process(init_pid)
        except psutil.NoSuchProcess:
            return None
        watch = Watch(
            init=init, cpu_s=cpu_ms / 1000, memory_bytes=memory_bytes, on_exceeded=on_exceeded
        )
        self._loop.call_later(_FIRST_S, self._add, watch)
        return watch

    def close(self) -> None:
        """Watch nothing any more."""
        for watch in self._watches.values():
            watch.stop()
        if self._timer is not None:
            self._timer.cancel()

    def _add(self, watch: Watch) -> None:
        if watch.stopped:
            return
        self._watches[watch.init.pid] = watch
        # An earlier tick may have taken this sandbox's processes for strangers.
        self._owners = {pid: owner for pid, owner in self._owners.items() if owner}
        self._owners[watch.init.pid] = watch.init.pid
        if self._timer is None:
            self._tick()

    def _tick(self) -> None:
        self._timer = None
        self._watches = {pid: each for pid, each in self._watches.items() if not each.stopped}
        if not self._watches:
            self._owners.clear()
            return
        began = time.monotonic()
        self._find_members()
        for watch in self._watches.values():
            exceeded = _exceeded(watch)
            if exceeded is not None:
                watch.stop()
                watch.on_exceeded(exceeded)
        spent = time.monotonic() - began
        for_memory = any(each.memory_bytes is not None for each in self._watches.values())
        interval = _INTERVAL_MEMORY_S if for_memory else _INTERVAL_S
        self._timer = self._loop.call_later(max(interval, _SHARE * spent), self._tick)

    def _find_members(self) -> None:
        alive = set(psutil.pids())
        self._owners = {p: o for p, o in self._owners.items() if p in alive or p in self._watches}
        for watch in self._watches.values():
            watch.keep(alive)
        for pid in sorted(alive - self._owners.keys()):
            self._find_owner(pid)

    def _find_owner(self, pid: int) -> int:
        """Return, and remember, the init of the sandbox that ``pid`` is in, 0 if in none."""
        if pid in self._owners:
            return self._owners[pid]
        self._owners[pid] = 0  # also ends the search should parents form a ring by reuse of pids
        try:
            process = psutil.Process(pid)
            owner = self._find_owner(process.ppid()) if pid > 1 else 0
        except psutil.NoSuchProcess:
            del self._owners[pid]
            return 0
        self._owners[pid] = owner
        if owner in self._watches:
            self._watches[owner].members[pid] = process
        return owner


def _exceeded(watch: Watch) -> Literal["cpu", "memory"] | None:
    # Samples are no snapshot: a process reaped in between counts in its parent too. So ask twice.
    if _cpu_s(watch) >= watch.cpu_s and _cpu_s(watch) >= watch.cpu_s:
        return "cpu"
    limit = watch.memory_bytes
    if limit is None or _total(watch.members.values(), _resident) <= limit:
        return None
    # What processes share was counted for each of them; this is exact, and too slow for each time.
    return "memory" if _total(watch.members.values(), _proportional) > limit else None


def _cpu_s(watch: Watch) -> float:
    """Return a processor time that the sandbox has used at least.

    Two ways to count, and each misses something: the times of all that live and of what they have
    waited for, without those that nobody waited for (SIGCHLD ignored); and what each process had
    used when it was last seen, without those that were never seen.
    """
    waited_s = _times_s(watch.init)[1]
    for pid, process in watch.members.items():
        own_s, children_s = _times_s(process)
        if own_s < 0:  # it has just ended
            watch.past_s += watch.own_s.pop(pid, 0.0)
        else:
            watch.own_s[pid] = own_s
            waited_s += children_s
    return sum(watch.own_s.values()) + max(waited_s, watch.past_s)


def _times_s(process: psutil.Process) -> tuple[float, float]:
    """Return its own processor time, -1 if it is gone, and that of children it has waited for."""
    try:
        times = process.cpu_times()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return -1, 0
    return times.user + times.system, times.children_user + times.children_system


def _total(
    processes: Iterable[psutil.Process], measure: Callable[[psutil.Process], float]
) -> float:
    return sum(map(measure, processes))


def _resident(process: psutil.Process) -> float:
    try:
        return float(process.memory_info().rss)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0.0


def _proportional(process: psutil.Process) -> float:
    """PSS of /proc/PID/smaps_rollup; of a process that hides it, all that is resident."""
    try:
        return float(process.memory_full_info().pss)
    except psutil.AccessDenied:
        return _resident(process)
    except psutil.NoSuchProcess:
        return 0.0
