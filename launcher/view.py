"""In which order does init turn a blank sandbox into the one its plan describes?

`STEPS`, read from top to bottom, is the security argument; each comment says what a step needs of
those above it. A step that fails ends the sandbox (`init`); nothing continues past it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable

from launcher import landlock, mounts, syscalls
from launcher.birth import Life
from launcher.paths import is_beneath
from launcher.plan import Tmpfs
from launcher.trees import Tree

_NAMESPACES = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup", "time")
# sysctl(8) user.*, of this user namespace alone: no nesting (U08), bounded watches (R10).
_USER_SYSCTLS = {f"max_{name}_namespaces": "0" for name in _NAMESPACES}
_USER_SYSCTLS |= {"max_inotify_instances": "8", "max_inotify_watches": "4096"}


def make_skeleton(life: Life) -> None:
    """Links and synthetic files, on the root that nobody can write to later."""
    for link in life.plan.symlinks:
        mounts.make_symlink(life.birth.root_fd, link.target, link.to, life.birth.own_devices)
    for file in life.plan.files:
        content = os.fsencode(file.content)
        fd = mounts.make_file(life.birth.root_fd, file.target, life.birth.own_devices, content)
        os.close(fd)


def attach_mounts(life: Life) -> None:
    """Every bind and tmpfs of the plan, the shallow before the deep ones that lie in them."""
    entries: list[Tree | Tmpfs] = [*life.trees, *life.plan.tmpfs]
    for entry in sorted(entries, key=lambda each: (each.target.count("/"), each.target)):
        if isinstance(entry, Tmpfs):
            fd, kind = mounts.new_tmpfs(entry), stat.S_IFDIR
            life.birth.own_devices.add(os.fstat(fd).st_dev)
        else:
            fd, kind = entry.fd, entry.kind
        mounts.attach(life.birth.root_fd, fd, entry.target, kind, life.birth.own_devices)
        os.close(fd)


def seal_root(life: Life) -> None:
    """Make the root read-only; all mount points exist by now."""
    syscalls.mount_setattr(
        life.birth.root_fd, attr_set=syscalls.MOUNT_ATTR_RDONLY, recursive=False
    )


def check_mounts(life: Life) -> None:
    """Ask the kernel what the view consists of, and find every mount restricted (I8, M09, M23)."""
    writable = [each.target for each in life.plan.tmpfs]
    writable += [tree.target for tree in life.trees if tree.writable]
    writable += ["/proc", "/dev"]  # what `blank` made; /dev itself lies on the root
    for point, flags in _mount_table(life.birth.proc_fd):
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


def forbid_nesting(life: Life) -> None:
    """No further namespaces, whatever the filter would let through (I12, U08)."""
    for name, value in _USER_SYSCTLS.items():
        flags = os.O_WRONLY | os.O_CLOEXEC
        fd = os.open(f"sys/user/{name}", flags, dir_fd=life.birth.proc_fd)
        os.write(fd, value.encode())
        os.close(fd)


def name_host(life: Life) -> None:
    """Give the UTS namespace its own name (O10)."""
    syscalls.sethostname(life.plan.host_name)


def make_ruleset(life: Life) -> None:
    """Make the ruleset of every command, from descriptors of the finished view."""
    rules = []
    for target, access, directory in _grants(life):
        flags = os.O_PATH | os.O_CLOEXEC
        fd = os.open(target.lstrip("/") or ".", flags, dir_fd=life.birth.root_fd)
        rules.append(landlock.Rule(fd=fd, access=access, directory=directory))
    life.ruleset_fd = landlock.create_ruleset(
        tuple(rules), version=life.birth.landlock_abi, tcp=life.plan.network == "loopback"
    )
    life.birth.release(*(rule.fd for rule in rules))


def _grants(life: Life) -> list[tuple[str, int, bool]]:
    grants = [
        ("/", landlock.READ_DIR, True),
        ("/proc", landlock.READ | landlock.WRITE_FILE, True),
        ("/dev/pts", landlock.DEVICE | landlock.READ_DIR, True),
    ]
    grants += [(each.target, landlock.READ_FILE, False) for each in life.plan.files]
    grants += [(each.target, landlock.WRITE, True) for each in life.plan.tmpfs]
    for tree in [*life.birth.devices, *life.trees]:
        if stat.S_ISCHR(tree.kind):
            access = landlock.DEVICE
        else:
            access = landlock.WRITE if tree.writable else landlock.READ_EXECUTE
        grants.append((tree.target, access, stat.S_ISDIR(tree.kind)))
    return grants


STEPS: tuple[tuple[str, Callable[[Life], None]], ...] = (
    ("make links and files", make_skeleton),
    ("attach mounts", attach_mounts),
    ("seal the root", seal_root),  # all mount points exist by now
    ("check the mounts", check_mounts),
    ("forbid nested namespaces", forbid_nesting),  # fsmount(2) needs one, for a moment
    ("set the host name", name_host),
    ("make the Landlock ruleset", make_ruleset),  # needs the finished view
)
