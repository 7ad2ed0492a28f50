"""What does the launcher hold of the host, and how does it settle there?"""

from __future__ import annotations

import codecs
import gc
import os
import sys
from dataclasses import dataclass, field

from launcher import cgroup, identity, landlock, privileges, programs, records, syscalls, trees
from launcher.mounts import new_tmpfs
from launcher.plan import (
    Become,
    Ceiling,
    Created,
    Destroy,
    Exited,
    Failed,
    Forward,
    Gone,
    Hello,
    Launch,
    Ready,
    Start,
    Started,
    Tmpfs,
)

_INOTIFY_LIMITS = {"max_inotify_instances": "max_user_instances"}
_INOTIFY_LIMITS |= {"max_inotify_watches": "max_user_watches"}


@dataclass(slots=True, kw_only=True)
class Host:
    """Opened and found out once, before the first plan.

    ``idmaps`` maps (owner uid, owner gid, host uid) to a user namespace for idmapped mounts.
    """

    root_fd: int
    proc_fd: int
    probe_fd: int
    launcher_fd: int
    devices: dict[str, int]
    base: cgroup.Base
    as_root: bool
    landlock_abi: int
    programs: dict[programs.Key, bytes]
    idmaps: dict[tuple[int, int, int], int] = field(default_factory=dict)


def settle(ceiling: Ceiling) -> tuple[Host, Hello]:
    """Enter our own mount namespace, open what is needed of the host, and harden ourselves."""
    as_root = os.geteuid() == 0
    filter_programs = programs.compile_all(ceiling.relaxations)
    base = cgroup.find_base()
    if as_root:
        os.setgroups([])
        syscalls.unshare(syscalls.CLONE_NEWNS)
    else:
        ids = identity.own_ids()
        syscalls.unshare(syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNS)
        proc_fd = _open_proc()
        uid_map, gid_map = f"{ids.uid} {ids.uid} 1", f"{ids.gid} {ids.gid} 1"
        identity.write_maps(proc_fd, "self", uid_map, gid_map)
        _bound_inotify(proc_fd)
        os.close(proc_fd)
    os.chdir("/")
    os.umask(0o022)  # modes of what the view is made of; each command sets its own
    root_fd = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    # The host's later mounts still arrive here (slave); nothing made here leaves. M08.
    syscalls.mount_setattr(root_fd, propagation=syscalls.MS_SLAVE)
    host = Host(
        root_fd=root_fd,
        proc_fd=_open_proc(),
        probe_fd=_make_probe(),
        launcher_fd=os.pidfd_open(os.getpid()),
        devices=trees.open_devices(root_fd),
        base=base,
        as_root=as_root,
        landlock_abi=landlock.abi(),
        programs=filter_programs,
    )
    if host.landlock_abi == 0:
        raise OSError(95, "the kernel has no Landlock")
    privileges.set_no_new_privs()
    privileges.set_dumpable(dumpable=False)
    _import_no_more()
    records.prepare(
        Become, Start, Forward, Ready, Started, Failed, Exited, Launch, Destroy, Created, Gone
    )
    gc.freeze()
    return host, _hello(host)


def _bound_inotify(proc_fd: int) -> None:
    """Leave half of the user's inotify(7) objects to the user: sandboxes are charged to it too."""
    for own, host in _INOTIFY_LIMITS.items():
        with open(f"/proc/self/fd/{proc_fd}/sys/fs/inotify/{host}", encoding="ascii") as file:
            most = int(file.read())
        fd = os.open(f"sys/user/{own}", os.O_WRONLY | os.O_CLOEXEC, dir_fd=proc_fd)
        os.write(fd, str(most // 2).encode())
        os.close(fd)


def _import_no_more() -> None:
    """Forbid later imports: after pivot_root(2) they would look into the sandbox's tree (Y02)."""
    for encoding in ("utf-8", "ascii", "latin-1"):
        codecs.lookup(encoding)
    sys.meta_path.clear()
    sys.path.clear()


def _hello(host: Host) -> Hello:
    return Hello(
        pid=os.getpid(),
        cgroup=host.base.kind,
        cgroup_reason=host.base.reason,
        landlock_abi=host.landlock_abi,
        groups_retained=tuple(sorted(set(os.getgroups()) - {os.getegid()})),
        as_root=host.as_root,
    )


def _open_proc() -> int:
    """Open /proc and ask the kernel whether a procfs stands there. M07."""
    fd = os.open("/proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    if syscalls.fstatfs_type(fd) != syscalls.PROC_SUPER_MAGIC:
        raise PermissionError(1, "/proc is not a procfs")
    return fd


def _make_probe() -> int:
    """Make a file on a mount that is in no view: what Landlock must be seen to refuse."""
    probe_fd = new_tmpfs(Tmpfs(target="/", size_bytes=4096, inodes=4, mode=0o755))
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    os.close(os.open("probe", flags, 0o644, dir_fd=probe_fd))
    return probe_fd
