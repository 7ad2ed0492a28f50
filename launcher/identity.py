"""As whom does a sandbox run, on the host and inside?

Started by an ordinary user: that uid and gid, mapped to themselves (user_namespaces(7)); init
writes its own map, since the launcher may not open the files of a non-dumpable process. Started by
root: an unused uid of the pool, which the launcher maps to `POOL_INSIDE_UID`; the trees granted
are then idmapped mounts, so that their owner appears as that user and what is created belongs to
the owner.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass

from launcher import privileges, syscalls
from launcher.plan import POOL_INSIDE_GID, POOL_INSIDE_UID


@dataclass(frozen=True, slots=True, kw_only=True)
class Ids:
    """The uid and gid of a sandbox: as the host knows them, and as they read inside."""

    host_uid: int
    host_gid: int
    uid: int
    gid: int


def own_ids() -> Ids:
    """Return the ids of a sandbox that runs as the launcher's own user."""
    uid, gid = os.geteuid(), os.getegid()
    return Ids(host_uid=uid, host_gid=gid, uid=uid, gid=gid)


def pool_ids(first: int, size: int, in_use: Iterable[int]) -> Ids:
    """Take the lowest free uid of the pool. U10.

    Raises:
        BlockingIOError: every id is in use.

    """
    taken = set(in_use)
    for number in range(first, first + size):
        if number not in taken:
            ids = (number, number, POOL_INSIDE_UID, POOL_INSIDE_GID)
            return Ids(host_uid=ids[0], host_gid=ids[1], uid=ids[2], gid=ids[3])
    raise BlockingIOError(11, "every id of the pool is in use")


def write_maps(proc_fd: int, pid: str, uid_map: str, gid_map: str) -> None:
    """Write setgroups (deny, U01), gid_map and uid_map of ``/proc/pid``."""
    for name, text in (("setgroups", "deny"), ("uid_map", uid_map), ("gid_map", gid_map)):
        flags = os.O_WRONLY | os.O_CLOEXEC
        fd = os.open(f"{pid}/{name}", flags, dir_fd=proc_fd)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)


def map_own_ids(proc_fd: int, ids: Ids) -> None:
    """In a new user namespace of an ordinary user: map that user to itself.

    Files below /proc/self belong to root while the process is not dumpable, so it is for these
    three writes; only processes of the same user could look, and they are not inside.
    """
    privileges.set_dumpable(dumpable=True)
    try:
        write_maps(proc_fd, "self", f"{ids.uid} {ids.uid} 1", f"{ids.gid} {ids.gid} 1")
    finally:
        privileges.set_dumpable(dumpable=False)


def map_pool_ids(proc_fd: int, pid: int, ids: Ids) -> None:
    """From a launcher of root: map one pool uid and gid into the new user namespace of ``pid``."""
    uid_map = f"{ids.uid} {ids.host_uid} 1"
    write_maps(proc_fd, str(pid), uid_map, f"{ids.gid} {ids.host_gid} 1")


def become(ids: Ids) -> None:
    """In the new user namespace: take the mapped ids, then ask the kernel. Never host uid 0 (I11).

    Raises:
        PermissionError: an id is not the one wanted.

    """
    os.setresgid(ids.gid, ids.gid, ids.gid)
    os.setresuid(ids.uid, ids.uid, ids.uid)
    if os.getresuid() != (ids.uid,) * 3 or os.getresgid() != (ids.gid,) * 3:
        raise PermissionError("the ids did not change")


def idmap_user_namespace(proc_fd: int, owner: tuple[int, int], ids: Ids) -> int:
    """Return a user namespace whose map shows ``owner`` (uid, gid) as the sandbox's host ids.

    For mount_setattr(2) with ``MOUNT_ATTR_IDMAP``. The namespace lives in a process that never
    does anything and is gone when this returns; the descriptor keeps the namespace.
    """
    pid, pidfd = syscalls.clone3(flags=syscalls.CLONE_NEWUSER, exit_signal=signal.SIGCHLD)
    if pid == 0:
        privileges.set_parent_death_signal()
        while True:
            signal.pause()
    try:
        uid_map = f"{owner[0]} {ids.host_uid} 1"
        write_maps(proc_fd, str(pid), uid_map, f"{owner[1]} {ids.host_gid} 1")
        return os.open(f"{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc_fd)
    finally:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
        os.close(pidfd)
