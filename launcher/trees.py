"""How does what the host grants become detached mounts that a sandbox can attach?

The only part of the launcher that looks at the host's tree. A plan's descriptor was opened in the
daemon's mount namespace, from which nothing may be cloned here; so the object is opened again in
our own namespace under the name the kernel gives for the descriptor, and must have the very same
identity (device, inode, type) or the plan is refused. From there on there are only descriptors.
I6.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from launcher import paths, syscalls
from launcher.plan import Bind

# Device nodes every sandbox has, with their numbers (Documentation/admin-guide/devices.txt).
DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9)}
DEVICES |= {"tty": (5, 0)}
_BASE = syscalls.MOUNT_ATTR_NOSUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """A detached mount and the place inside at which it belongs."""

    fd: int
    target: str
    kind: int
    writable: bool


@contextmanager
def reopened(root_fd: int, fd: int, bind: Bind) -> Iterator[tuple[int, str]]:
    """Open again, in this mount namespace, what ``fd`` stands for; yield ``(fd, host path)``.

    Raises:
        PermissionError: the descriptor, or what stands under its name, is another object.

    """
    if paths.identity(fd) != bind.identity:
        raise PermissionError(1, f"the descriptor for {bind.target} is another object")
    name = paths.name_of(fd)
    own_fd = paths.open_path(root_fd, name)
    try:
        if paths.identity(own_fd) != bind.identity:
            raise PermissionError(1, f"{name} is another object than the one granted")
        yield own_fd, name
    finally:
        os.close(own_fd)


def attributes(*, writable: bool, device: bool) -> int:
    """Return the mount attributes of a bind: they are only ever added to the host's. M10."""
    wanted = _BASE
    wanted |= 0 if device else syscalls.MOUNT_ATTR_NODEV
    wanted |= syscalls.MOUNT_ATTR_NOEXEC if writable or device else 0
    return wanted | (0 if writable or device else syscalls.MOUNT_ATTR_RDONLY)


def detach(own_fd: int, bind: Bind, userns_fd: int | None) -> Tree:
    """Clone the mount at ``own_fd`` with everything below it, restricted as the bind says. M09."""
    tree_fd = syscalls.open_tree(own_fd, recursive=True)
    try:
        device = stat.S_ISCHR(bind.identity.kind)
        wanted = attributes(writable=bind.writable, device=device)
        if userns_fd is None:
            syscalls.mount_setattr(tree_fd, attr_set=wanted)
        else:
            wanted |= syscalls.MOUNT_ATTR_IDMAP
            syscalls.mount_setattr(tree_fd, attr_set=wanted, userns_fd=userns_fd)
    except OSError:
        os.close(tree_fd)
        raise
    return tree_of(bind, tree_fd)


def tree_of(bind: Bind, tree_fd: int) -> Tree:
    """Describe the detached mount made for ``bind``."""
    kind = bind.identity.kind
    writable = bind.writable or stat.S_ISCHR(kind)
    return Tree(fd=tree_fd, target=bind.target, kind=kind, writable=writable)


def open_devices(root_fd: int) -> dict[str, int]:
    """Open the base device nodes and check that each is the device it is called. M05.

    Raises:
        PermissionError: something else stands there.

    """
    opened = {}
    for name, (major, minor) in DEVICES.items():
        fd = paths.open_path(root_fd, f"/dev/{name}")
        status = os.fstat(fd)
        if not stat.S_ISCHR(status.st_mode) or status.st_rdev != os.makedev(major, minor):
            raise PermissionError(1, f"/dev/{name} is not device {major}:{minor}")
        opened[name] = fd
    return opened


def device_trees(devices: dict[str, int]) -> list[Tree]:
    """Clone the base device nodes for one sandbox."""
    cloned: list[Tree] = []
    try:
        for name, fd in devices.items():
            bind = Bind(descriptor=-1, identity=paths.identity(fd), target=f"/dev/{name}")
            cloned.append(detach(fd, bind, None))
    except OSError:
        for tree in cloned:
            os.close(tree.fd)
        raise
    return cloned
