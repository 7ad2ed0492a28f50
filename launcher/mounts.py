"""How is a mount attached inside a new root without following anything that stands there?

Mount points are made relative to descriptors, one component at a time, with ``O_NOFOLLOW`` and
``O_EXCL`` (M03: CVE-2024-45310 and its kin), and only on file systems made for this sandbox: the
host's trees are never written to (I7, R29). The host's root is already detached when this runs.
"""

from __future__ import annotations

import os
import stat

from launcher import paths, syscalls
from launcher.plan import Tmpfs

TMPFS_ATTRIBUTES = (
    syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV | syscalls.MOUNT_ATTR_NOEXEC
)


def new_tmpfs(tmpfs: Tmpfs) -> int:
    """Make a detached tmpfs(5) bounded in bytes and inodes (R08); return its descriptor."""
    options = {
        "size": str(tmpfs.size_bytes),
        "nr_inodes": str(tmpfs.inodes),
        "mode": f"{tmpfs.mode:o}",
    }
    return syscalls.new_mount("tmpfs", options, TMPFS_ATTRIBUTES)


def make_directory(root_fd: int, target: str, own_devices: set[int]) -> int:
    """Return an ``O_PATH`` descriptor of the directory ``target``, made where it is missing.

    Raises:
        OSError: ``ELOOP`` for a link on the way, ``ENOTDIR``, or ``EROFS`` where a part is missing
            on a file system that is not the sandbox's own.

    """
    fd = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=root_fd)
    for name in target.strip("/").split("/") if target != "/" else ():
        try:
            below = _descend(fd, name, own_devices)
        finally:
            os.close(fd)
        fd = below
    return fd


def _descend(fd: int, name: str, own_devices: set[int]) -> int:
    flags = os.O_PATH | os.O_DIRECTORY
    try:
        return paths.open_beneath(fd, name, flags)
    except FileNotFoundError:
        require_own(fd, name, own_devices)
    os.mkdir(name, 0o755, dir_fd=fd)
    return paths.open_beneath(fd, name, flags)


def require_own(fd: int, name: str, own_devices: set[int]) -> None:
    """Refuse to create ``name`` in a directory that is not on the sandbox's own file systems."""
    if os.fstat(fd).st_dev not in own_devices:
        raise OSError(30, f"{name} is missing, and nothing is ever created on the host")


def make_file(root_fd: int, target: str, own_devices: set[int], content: bytes = b"") -> int:
    """Return an ``O_PATH`` descriptor of a new read-only regular file at ``target``."""
    parent, _, name = target.rpartition("/")
    parent_fd = make_directory(root_fd, parent or "/", own_devices)
    try:
        require_own(parent_fd, name, own_devices)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, 0o444, dir_fd=parent_fd)
        try:
            os.write(fd, content)
        finally:
            os.close(fd)
        return paths.open_beneath(parent_fd, name)
    finally:
        os.close(parent_fd)


def make_symlink(root_fd: int, target: str, to: str, own_devices: set[int]) -> None:
    """Make the symbolic link ``target`` that reads ``to``."""
    parent, _, name = target.rpartition("/")
    parent_fd = make_directory(root_fd, parent or "/", own_devices)
    try:
        require_own(parent_fd, name, own_devices)
        os.symlink(to, name, dir_fd=parent_fd)
    finally:
        os.close(parent_fd)


def attach(root_fd: int, tree_fd: int, target: str, kind: int, own_devices: set[int]) -> None:
    """Attach a detached mount of file type ``kind`` at ``target``, making the mount point."""
    if stat.S_ISDIR(kind):
        point_fd = make_directory(root_fd, target, own_devices)
    else:
        try:
            point_fd = paths.open_path(root_fd, target)
        except FileNotFoundError:
            point_fd = make_file(root_fd, target, own_devices)
    try:
        syscalls.move_mount(tree_fd, point_fd)
    finally:
        os.close(point_fd)
