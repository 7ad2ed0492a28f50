"""In which order does init build everything its sandbox consists of?

`STEPS`, read from top to bottom, is the security argument; each comment says what a step needs of
those above it. A step that fails ends the sandbox (`init`); nothing continues past it.
"""

from __future__ import annotations

import os
import select
import stat
from collections.abc import Callable

from launcher import identity, landlock, mounts, network, privileges, syscalls
from launcher.birth import Birth
from launcher.paths import is_beneath
from launcher.plan import Tmpfs
from launcher.trees import Tree

_NAMESPACES = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup", "time")
# sysctl(8) user.*, of this user namespace alone: no nesting (U08), bounded watches (R10).
_USER_SYSCTLS = {f"max_{name}_namespaces": "0" for name in _NAMESPACES}
_USER_SYSCTLS |= {"max_inotify_instances": "64", "max_inotify_watches": "16384"}
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
    limits = birth.plan.limits
    birth.root_fd = mounts.new_tmpfs(
        Tmpfs(target="/", size_bytes=limits.root_bytes, inodes=limits.root_inodes, mode=0o755)
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


def make_skeleton(birth: Birth) -> None:
    """Links and synthetic files, on the root that nobody can write to later."""
    for link in birth.plan.symlinks:
        mounts.make_symlink(birth.root_fd, link.target, link.to, birth.own_devices)
    for name, to in _DEV_LINKS.items():
        mounts.make_symlink(birth.root_fd, f"/dev/{name}", to, birth.own_devices)
    for file in birth.plan.files:
        content = os.fsencode(file.content)
        fd = mounts.make_file(birth.root_fd, file.target, birth.own_devices, content)
        os.close(fd)


def attach_mounts(birth: Birth) -> None:
    """Every bind and tmpfs of the plan, the shallow before the deep ones that lie in them."""
    entries: list[Tree | Tmpfs] = [*birth.trees, *birth.plan.tmpfs]
    for entry in sorted(entries, key=lambda each: (each.target.count("/"), each.target)):
        if isinstance(entry, Tmpfs):
            fd, kind = mounts.new_tmpfs(entry), stat.S_IFDIR
            birth.own_devices.add(os.fstat(fd).st_dev)
        else:
            fd, kind = entry.fd, entry.kind
        mounts.attach(birth.root_fd, fd, entry.target, kind, birth.own_devices)
        os.close(fd)


def attach_kernel_mounts(birth: Birth) -> None:
    """Attach the masked /proc and a devpts of our own."""
    options = {"mode": "600", "ptmxmode": "666"}
    attributes = syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NOEXEC
    for target, fd in (
        ("/proc", birth.proc_view_fd),
        ("/dev/pts", syscalls.new_mount("devpts", options, attributes)),
    ):
        mounts.attach(birth.root_fd, fd, target, stat.S_IFDIR, birth.own_devices)
        os.close(fd)


def seal_root(birth: Birth) -> None:
    """Make the root read-only; all mount points exist by now."""
    syscalls.mount_setattr(birth.root_fd, attr_set=syscalls.MOUNT_ATTR_RDONLY, recursive=False)


def check_mounts(birth: Birth) -> None:
    """Ask the kernel what the view consists of, and find every mount restricted (I8, M09, M23)."""
    writable = [each.target for each in birth.plan.tmpfs]
    writable += [tree.target for tree in birth.trees if tree.writable]
    writable += ["/proc", "/dev/pts"]
    for point, flags in _mount_table(birth.proc_fd):
        in_dev = is_beneath(point, "/dev")
        if "nosuid" not in flags or ("nodev" not in flags and not in_dev):
            raise PermissionError(1, f"{point} is mounted {','.join(sorted(flags))}")
        if "ro" not in flags:
            if "noexec" not in flags:
                raise PermissionError(1, f"{point} is writable and not noexec")
            if not any(is_beneath(point, target) for target in writable):
                raise PermissionError(1, f"{point} is writable and was not granted so")


def _mount_table(proc_fd: int) -> list[tuple[str, set[str]]]:
    """Parse proc_pid_mountinfo(5): mount point and per-mount options."""
    fd = os.open("self/mountinfo", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc_fd)
    with open(fd, "rb") as file:
        rows = [line.split(b" ") for line in file.read().splitlines()]
    return [(_unescape(row[4]), set(row[5].decode().split(","))) for row in rows]


def _unescape(point: bytes) -> str:
    for code in (b"\\040", b"\\011", b"\\012", b"\\134"):
        point = point.replace(code, bytes([int(code[1:], 8)]))
    return os.fsdecode(point)


def bring_loopback_up(birth: Birth) -> None:
    """Raise the one interface, which this sandbox alone has."""
    del birth
    network.loopback_up()


def forbid_nesting(birth: Birth) -> None:
    """No further namespaces, whatever the filter would let through (I12, U08)."""
    for name, value in _USER_SYSCTLS.items():
        flags = os.O_WRONLY | os.O_CLOEXEC
        fd = os.open(f"sys/user/{name}", flags, dir_fd=birth.proc_fd)
        os.write(fd, value.encode())
        os.close(fd)


def name_host(birth: Birth) -> None:
    """Give the UTS namespace its own name (O10)."""
    syscalls.sethostname(birth.plan.host_name)


def make_ruleset(birth: Birth) -> None:
    """Make the ruleset of every command, from descriptors of the finished view."""
    rules = []
    for target, access, directory in _grants(birth):
        flags = os.O_PATH | os.O_CLOEXEC
        fd = os.open(target.lstrip("/") or ".", flags, dir_fd=birth.root_fd)
        rules.append(landlock.Rule(fd=fd, access=access, directory=directory))
    birth.ruleset_fd = landlock.create_ruleset(
        tuple(rules), version=birth.landlock_abi, tcp=birth.plan.network == "loopback"
    )
    birth.release(*(rule.fd for rule in rules))


def _grants(birth: Birth) -> list[tuple[str, int, bool]]:
    grants = [
        ("/", landlock.READ_DIR, True),
        ("/proc", landlock.READ | landlock.WRITE_FILE, True),
        ("/dev/pts", landlock.DEVICE | landlock.READ_DIR, True),
    ]
    grants += [(each.target, landlock.READ_FILE, False) for each in birth.plan.files]
    grants += [(each.target, landlock.WRITE, True) for each in birth.plan.tmpfs]
    for tree in birth.trees:
        if stat.S_ISCHR(tree.kind):
            access = landlock.DEVICE
        else:
            access = landlock.WRITE if tree.writable else landlock.READ_EXECUTE
        grants.append((tree.target, access, stat.S_ISDIR(tree.kind)))
    return grants


def give_up(birth: Birth) -> None:
    """Give up what no later command needs of init; each command gives up the rest itself."""
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
    ("make links and files", make_skeleton),  # the host can no longer be reached by a path
    ("attach mounts", attach_mounts),
    ("attach /proc and /dev/pts", attach_kernel_mounts),
    ("seal the root", seal_root),
    ("check the mounts", check_mounts),
    ("bring up lo", bring_loopback_up),
    ("forbid nested namespaces", forbid_nesting),
    ("set the host name", name_host),
    ("make the Landlock ruleset", make_ruleset),  # needs the finished view
    ("give up privileges", give_up),  # last: the steps above use them
)
