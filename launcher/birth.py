"""What does init inherit from the launcher, and what is it told later?"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field

from launcher.cgroup import Leaf
from launcher.identity import Ids
from launcher.plan import Plan
from launcher.programs import Key
from launcher.trees import Tree


@dataclass(slots=True, kw_only=True)
class Birth:
    """A blank sandbox: everything that is the same whatever it will become.

    ``orders`` is where the launcher says what, once. ``host_proc_fd`` is the host's procfs,
    for the id maps; ``go_fd`` becomes readable when a launcher of root has written them (-1: init
    writes its own). ``launcher_fd`` is a pidfd. The rest is filled in by the steps of `blank`.
    """

    ids: Ids
    leaf: Leaf
    orders: socket.socket
    devices: list[Tree]
    programs: dict[Key, bytes]
    landlock_abi: int
    host_proc_fd: int
    launcher_fd: int
    probe_fd: int
    go_fd: int = -1
    root_fd: int = -1
    proc_fd: int = -1
    proc_view_fd: int = -1
    own_devices: set[int] = field(default_factory=set)

    def inherited_fds(self) -> Iterator[int]:
        """Yield every descriptor init needs; all others are the launcher's business. F06."""
        yield from (tree.fd for tree in self.devices)
        yield from self.leaf.join_fds
        yield from self.leaf.counter_fds.values()
        yield from (self.host_proc_fd, self.launcher_fd, self.probe_fd, self.orders.fileno())
        if self.go_fd >= 0:
            yield self.go_fd

    def release(self, *fds: int) -> None:
        """Close descriptors that the steps to come do not need."""
        for fd in fds:
            os.close(fd)


@dataclass(slots=True, kw_only=True)
class Life:
    """A sandbox that was told its plan; ``trees`` are what it is granted of the host."""

    birth: Birth
    plan: Plan
    channel: socket.socket
    trees: list[Tree]
    filter_program: bytes
    ruleset_fd: int = -1
