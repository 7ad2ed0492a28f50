"""Where do blank sandboxes come from, and how does one end?

A blank sandbox (`blank`) is made ahead where there is time for it, because namespaces and, with
cgroup version 1, joining the cgroup take longer than all the rest. It is told one plan and is used
once; when there is none ready, one is made on the spot, in the same way.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from launcher import cgroup, channel, identity, init, syscalls, trees
from launcher.birth import Birth
from launcher.host import Host
from launcher.identity import Ids
from launcher.plan import Become, Ceiling, Plan

NAMESPACES = (
    syscalls.CLONE_NEWUSER
    | syscalls.CLONE_NEWNS
    | syscalls.CLONE_NEWPID
    | syscalls.CLONE_NEWNET
    | syscalls.CLONE_NEWIPC
    | syscalls.CLONE_NEWUTS
    | syscalls.CLONE_NEWCGROUP
)
_REMOVAL_TRIES_MS = (5, 20, 100, 500)


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """The init of one sandbox, as the launcher holds it. ``orders`` is for its plan, once."""

    pid: int
    pidfd: int
    ids: Ids
    leaf: cgroup.Leaf
    orders: socket.socket

    def tell(self, plan: Plan, fds: list[int]) -> None:
        """Say what to become; ``fds`` are the daemon's channel and one tree a bind."""
        channel.send(self.orders, Become(plan=plan), fds)
        self.orders.close()

    def kill(self) -> None:
        """SIGKILL by pidfd: the kernel ends the whole pid namespace. I10, L02."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def reap(self) -> int:
        """Wait by pidfd, never for any child (L09); return the status, negative for a signal."""
        result = os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED)
        if result is None:
            raise ChildProcessError(10, "init is not a child any more")
        return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status

    def release(self) -> str:
        """After `reap`: close everything and remove the cgroup; return what is left, or ""."""
        self.orders.close()
        os.close(self.pidfd)
        self.leaf.close()
        leftover = self.leaf.remove()
        for wait_ms in _REMOVAL_TRIES_MS:  # it becomes empty a moment after the last exit
            if not leftover:
                break
            time.sleep(wait_ms / 1000)
            leftover = self.leaf.remove()
        return leftover


class Nursery:
    """Makes blank sandboxes and keeps ``depth`` of them ready."""

    def __init__(self, host: Host, ceiling: Ceiling) -> None:
        self._host = host
        self._ceiling = ceiling
        self._count = 0
        self._may_refill = True
        self.ready: list[Child] = []

    def take(self, in_use: Iterable[int]) -> Child:
        """Return a blank sandbox; its id is none of ``in_use``.

        Raises:
            OSError: none is ready and none can be made.

        """
        self._may_refill = True
        return self.ready.pop(0) if self.ready else self._make(in_use)

    def wants_one(self) -> bool:
        """Tell whether there is room for another one, and the last attempt succeeded."""
        return self._may_refill and len(self.ready) < self._ceiling.spares

    def refill(self, in_use: Iterable[int]) -> Child | None:
        """Make one ahead. If that fails, say nothing: who needs one next will be told."""
        try:
            child = self._make([*in_use, *(child.ids.host_uid for child in self.ready)])
        except OSError:
            self._may_refill = False
            return None
        self.ready.append(child)
        return child

    def _make(self, in_use: Iterable[int]) -> Child:
        host = self._host
        ids = self._choose_ids(in_use)
        self._count += 1
        with ExitStack() as born, ExitStack() as unborn:
            devices = trees.device_trees(host.devices)
            born.callback(channel.close_all, [tree.fd for tree in devices])
            leaf = cgroup.create_leaf(host.base, f"sandbox-{self._count}")
            unborn.callback(leaf.remove)
            unborn.callback(leaf.close)
            ours, inits = channel.pair()
            unborn.callback(ours.close)
            born.callback(inits.close)
            birth = Birth(
                ids=ids,
                leaf=leaf,
                orders=inits,
                devices=devices,
                programs=host.programs,
                landlock_abi=host.landlock_abi,
                host_proc_fd=host.proc_fd,
                launcher_fd=host.launcher_fd,
                probe_fd=host.probe_fd,
            )
            pid, pidfd = self._clone(birth)
            unborn.pop_all()
        return Child(pid=pid, pidfd=pidfd, ids=ids, leaf=leaf, orders=ours)

    def _choose_ids(self, in_use: Iterable[int]) -> Ids:
        if not self._host.as_root:
            return identity.own_ids()
        return identity.pool_ids(self._ceiling.pool_first, self._ceiling.pool_size, in_use)

    def _clone(self, birth: Birth) -> tuple[int, int]:
        """clone3(2) with all seven namespaces; the child becomes init and never returns."""
        go_write_fd = -1
        if self._host.as_root:
            birth.go_fd, go_write_fd = os.pipe2(os.O_CLOEXEC)
        try:
            pid, pidfd = syscalls.clone3(
                flags=NAMESPACES, exit_signal=signal.SIGCHLD, cgroup_fd=birth.leaf.into_fd
            )
            if pid == 0:
                init.main(birth)
            if go_write_fd >= 0:
                self._map(pid, pidfd, birth.ids)
                with suppress(BrokenPipeError):  # init has failed already, and says so itself
                    os.write(go_write_fd, b"m")
        finally:
            channel.close_all([fd for fd in (birth.go_fd, go_write_fd) if fd >= 0])
        return pid, pidfd

    def _map(self, pid: int, pidfd: int, ids: Ids) -> None:
        try:
            identity.map_pool_ids(self._host.proc_fd, pid, ids)
        except OSError:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
            os.close(pidfd)
            raise
