"""What does init inherit from the launcher at its birth?"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field

from launcher.cgroup import Leaf
from launcher.identity import Ids
from launcher.plan import Plan
from launcher.trees import Tree


@dataclass(slots=True, kw_only=True)
class Birth:
    """One sandbox in the making: decided by the launcher, completed by the steps of `view`.

    ``host_proc_fd`` is the host's procfs, for the id maps; ``go_fd`` becomes readable when a
    launcher of root has written them (-1: init writes its own). ``launcher_fd`` is a pidfd.
    """

    plan: Plan
    ids: Ids
    leaf: Leaf
    trees: list[Tree]
    channel: socket.socket
    filter_program: bytes
    landlock_abi: int
    host_proc_fd: int
    launcher_fd: int
    probe_fd: int
    go_fd: int = -1
    root_fd: int = -1
    proc_fd: int = -1
    proc_view_fd: int = -1
    ruleset_fd: int = -1
    own_devices: set[int] = field(default_factory=set)

    def inherited_fds(self) -> Iterator[int]:
        """Yield every descriptor init needs; all others are the launcher's business. F06."""
        yield from (tree.fd for tree in self.trees)
        yield from self.leaf.join_fds
        yield from self.leaf.counter_fds.values()
        yield from (self.host_proc_fd, self.launcher_fd, self.probe_fd, self.channel.fileno())
        if self.go_fd >= 0:
            yield self.go_fd

    def release(self, *fds: int) -> None:
        """Close descriptors that the steps to come do not need."""
        for fd in fds:
            os.close(fd)
