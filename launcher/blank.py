"""What can be built before anybody has said what the sandbox will be?

Namespaces, cgroup, ids, an empty root outside the host's tree, /proc, /dev and the loopback
interface. A blank sandbox belongs to nobody, is used once, and `view` makes it what its plan says.
`STEPS` is read from top to bottom; each comment says what a step needs of those above.
"""

from __future__ import annotations

import os
import select
import stat
from collections.abc import Callable

from launcher import identity, mounts, network, privileges, syscalls
from launcher.birth import Birth
from launcher.plan import Tmpfs
from launcher.trees import Tree

_ROOT_BYTES = 4 << 20
_ROOT_INODES = 4096
_OOM_SCORE_ADJ = b"500"  # commands get more, see init
_PROC_ATTRIBUTES = mounts.TMPFS_ATTRIBUTES
_DEV_LINKS = {"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1"}
_DEV_LINKS |= {"stderr": "/proc/self/fd/2", "ptmx": "pts/ptmx"}


def join_cgroup(birth: Birth) -> None:
    """Join, version 1 only: with version 2 the kernel has put init there at clone3(2)."""
    birth.leaf.join()


def take_ids(birth: Birth) -> None:
    """Become the one mapped user; until here init is a user its namespace does not know."""
    if birth.go_fd < 0:
        identity.map_own_ids(birth.host_proc_fd, birth.ids)
    else:
        if os.read(birth.go_fd, 1) != b"m":
            raise ConnectionError(104, "the launcher has not mapped the ids")
        os.close(birth.go_fd)
    identity.become(birth.ids)
    privileges.set_dumpable(dumpable=False)


def set_oom_score(birth: Birth) -> None:
    """Offer the whole sandbox to the OOM killer before anything else of the host (R15).

    The file belongs to root while this process is not dumpable; nothing is inside yet to look.
    """
    privileges.set_dumpable(dumpable=True)
    try:
        flags = os.O_WRONLY | os.O_CLOEXEC
        fd = os.open("self/oom_score_adj", flags, dir_fd=birth.host_proc_fd)
        os.write(fd, _OOM_SCORE_ADJ)
        os.close(fd)
    finally:
        privileges.set_dumpable(dumpable=False)


def die_with_launcher(birth: Birth) -> None:
    """PR_SET_PDEATHSIG, then look whether the launcher died before it was set (L01)."""
    privileges.set_parent_death_signal()
    poll = select.poll()
    poll.register(birth.launcher_fd, select.POLLIN)
    if poll.poll(0):
        raise ConnectionError(104, "the launcher is gone")


def make_mounts_private(birth: Birth) -> None:
    """No mount made here reaches the host, and none made there reaches us (M08)."""
    del birth
    root_fd = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    syscalls.mount_setattr(root_fd, propagation=syscalls.MS_PRIVATE)
    os.close(root_fd)


def mount_root(birth: Birth) -> None:
    """Stack a tmpfs on the old root; it will hold directories, links and synthetic files."""
    birth.root_fd = mounts.new_tmpfs(
        Tmpfs(target="/", size_bytes=_ROOT_BYTES, inodes=_ROOT_INODES, mode=0o755)
    )
    birth.own_devices.add(os.fstat(birth.root_fd).st_dev)
    old_root_fd = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    syscalls.move_mount(birth.root_fd, old_root_fd)
    os.close(old_root_fd)


def mount_procfs(birth: Birth) -> None:
    """Two instances: a whole one that stays a descriptor of init, and the masked one to show.

    The kernel allows a new procfs only while a whole one is visible in this mount namespace
    (P02), so this comes before pivot_root(2).
    """
    birth.proc_fd = syscalls.new_mount("proc", {}, _PROC_ATTRIBUTES)
    options = {"hidepid": "invisible", "subset": "pid"}
    birth.proc_view_fd = syscalls.new_mount("proc", options, _PROC_ATTRIBUTES)


def leave_the_host(birth: Birth) -> None:
    """pivot_root(2) and detach: from here on no host path can be named (M12)."""
    os.fchdir(birth.root_fd)
    syscalls.pivot_root(".", ".")
    syscalls.umount2(".", syscalls.MNT_DETACH)
    os.chdir("/")


def attach_kernel_mounts(birth: Birth) -> None:
    """Attach the masked /proc, the device nodes and a devpts of our own."""
    options = {"mode": "600", "ptmxmode": "666", "max": "64"}  # the host shares the pool
    attributes = syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NOEXEC
    trees = [
        Tree(fd=birth.proc_view_fd, target="/proc", kind=stat.S_IFDIR, writable=True),
        Tree(
            fd=syscalls.new_mount("devpts", options, attributes),
            target="/dev/pts",
            kind=stat.S_IFDIR,
            writable=True,
        ),
        *birth.devices,
    ]
    for tree in trees:
        mounts.attach(birth.root_fd, tree.fd, tree.target, tree.kind, birth.own_devices)
        os.close(tree.fd)
    for name, to in _DEV_LINKS.items():
        mounts.make_symlink(birth.root_fd, f"/dev/{name}", to, birth.own_devices)


def bring_loopback_up(birth: Birth) -> None:
    """Raise the one interface, which this sandbox alone has."""
    del birth
    network.loopback_up()


def drop_bounding_set(birth: Birth) -> None:
    """Empty the bounding set, here and so in every command; set no_new_privs."""
    privileges.drop_bounding(birth.proc_fd)
    privileges.set_no_new_privs()
    birth.release(birth.host_proc_fd, birth.launcher_fd, *birth.leaf.join_fds)


STEPS: tuple[tuple[str, Callable[[Birth], None]], ...] = (
    ("join the cgroup", join_cgroup),  # first, so that all that follows is charged to it
    ("map and take ids", take_ids),
    ("set the OOM score", set_oom_score),
    ("set the parent-death signal", die_with_launcher),  # changing ids clears it
    ("make mounts private", make_mounts_private),
    ("mount the root", mount_root),
    ("mount procfs", mount_procfs),
    ("pivot_root", leave_the_host),
    ("attach /proc and /dev", attach_kernel_mounts),  # the host is out of reach by now
    ("bring up lo", bring_loopback_up),
    ("drop the bounding set", drop_bounding_set),
)
