"""Which system calls does the standard library not have, and how are they called?

Thin, typed wrappers without policy, each named after its manual page. All pass through
``syscall(2)`` so that one place owns argument widths (every argument is a 64-bit word) and
``errno``. A failing call raises ``OSError`` whose text is the call itself.
"""

from __future__ import annotations

import ctypes
import os
import platform

# <asm/unistd.h>; numbers of 424 and above are the same on every architecture.
_NUMBERS_X86_64 = {"capset": 126, "execveat": 322, "pivot_root": 155, "prctl": 157, "seccomp": 317}
_NUMBERS_X86_64 |= {
    "fstatfs": 138,
    "personality": 135,
    "rt_sigaction": 13,
    "setns": 308,
    "sethostname": 170,
    "umount2": 166,
    "unshare": 272,
}
_NUMBERS_AARCH64 = {"capset": 91, "execveat": 281, "pivot_root": 41, "prctl": 167, "seccomp": 277}
_NUMBERS_AARCH64 |= {
    "fstatfs": 44,
    "personality": 92,
    "rt_sigaction": 134,
    "setns": 268,
    "sethostname": 161,
    "umount2": 39,
    "unshare": 97,
}
_NUMBERS_COMMON = {
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "clone3": 435,
    "close_range": 436,
    "openat2": 437,
    "mount_setattr": 442,
    "landlock_create_ruleset": 444,
    "landlock_add_rule": 445,
    "landlock_restrict_self": 446,
}
MACHINE = platform.machine()
_NUMBERS = {
    "x86_64": _NUMBERS_X86_64 | _NUMBERS_COMMON,
    "aarch64": _NUMBERS_AARCH64 | _NUMBERS_COMMON,
}.get(MACHINE, {})

AT_FDCWD = -100  # <linux/fcntl.h>
AT_EMPTY_PATH = 0x1000
AT_RECURSIVE = 0x8000
AT_SYMLINK_NOFOLLOW = 0x100

CLONE_NEWNS = 0x00020000  # <linux/sched.h>
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
CLONE_PIDFD = 0x00001000
CLONE_INTO_CGROUP = 0x200000000

OPEN_TREE_CLONE = 1  # <linux/mount.h>
OPEN_TREE_CLOEXEC = os.O_CLOEXEC
MOVE_MOUNT_F_EMPTY_PATH = 0x04
MOVE_MOUNT_T_EMPTY_PATH = 0x40
FSOPEN_CLOEXEC = 1
FSMOUNT_CLOEXEC = 1
FSCONFIG_SET_FLAG = 0
FSCONFIG_SET_STRING = 1
FSCONFIG_CMD_CREATE = 6
MOUNT_ATTR_RDONLY = 0x01
MOUNT_ATTR_NOSUID = 0x02
MOUNT_ATTR_NODEV = 0x04
MOUNT_ATTR_NOEXEC = 0x08
MOUNT_ATTR_IDMAP = 0x00100000
MOUNT_ATTR_NOSYMFOLLOW = 0x00200000
MS_PRIVATE = 1 << 18  # <linux/mount.h>
MS_SLAVE = 1 << 19
MNT_DETACH = 2  # umount2(2)
PROC_SUPER_MAGIC = 0x9FA0  # <linux/magic.h>

RESOLVE_NO_XDEV = 0x01  # <linux/openat2.h>
RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_BENEATH = 0x08
RESOLVE_IN_ROOT = 0x10

CLOSE_RANGE_CLOEXEC = 4  # close_range(2)

# struct sigaction of <asm/signal.h>: handler, flags, restorer, mask; and the size of the mask.
_SIGACTION_BYTES = 32
_SIGSET_BYTES = 8

Word = int | bytes | ctypes.Array[ctypes.c_char] | ctypes.Array[ctypes.c_char_p] | None

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def _word(value: Word) -> object:
    if value is None:
        return ctypes.c_void_p(0)
    if isinstance(value, int):
        return ctypes.c_ulong(value & 0xFFFF_FFFF_FFFF_FFFF)
    if isinstance(value, bytes):
        return ctypes.c_char_p(value)
    return value


def syscall(name: str, *words: Word) -> int:
    """syscall(2): call ``name`` with up to six words and return its result.

    Raises:
        OSError: the call failed; ``strerror`` holds the call and the kernel's reason.
        NotImplementedError: the number is not known for this architecture.

    """
    number = _NUMBERS.get(name)
    if number is None:
        raise NotImplementedError(f"no number for {name}(2) on {MACHINE}")
    result: int = _libc.syscall(ctypes.c_long(number), *map(_word, words))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}(2): {os.strerror(error)}")
    return result


def _u64s(*values: int) -> bytes:
    return b"".join(value.to_bytes(8, "little") for value in values)


def clone3(*, flags: int, exit_signal: int, cgroup_fd: int | None = None) -> tuple[int, int]:
    """clone3(2) without CLONE_VM: return ``(pid, pidfd)``; in the child ``(0, -1)``.

    ``CLONE_PIDFD`` is added always, ``CLONE_INTO_CGROUP`` when ``cgroup_fd`` is given.
    SAFETY: no at-fork handler of the interpreter runs, so the caller must be single-threaded.
    """
    pidfd = ctypes.c_int(-1)
    flags |= CLONE_PIDFD
    if cgroup_fd is not None:
        flags |= CLONE_INTO_CGROUP
    # struct clone_args, <linux/sched.h>
    args = _u64s(flags, ctypes.addressof(pidfd), 0, 0, exit_signal, 0, 0, 0, 0, 0, cgroup_fd or 0)
    pid = syscall("clone3", args, len(args))
    return (pid, pidfd.value) if pid else (0, -1)


def openat2(dirfd: int, path: str | bytes, *, flags: int, resolve: int, mode: int = 0) -> int:
    """openat2(2); ``O_CLOEXEC`` is always added. Returns a descriptor."""
    how = _u64s(flags | os.O_CLOEXEC, mode, resolve)
    return syscall("openat2", dirfd, os.fsencode(path) + b"\0", how, len(how))


def open_tree(dirfd: int, *, recursive: bool) -> int:
    """open_tree(2) on a descriptor: a detached private copy of the mount it stands on."""
    flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH
    return syscall("open_tree", dirfd, b"\0", flags | (AT_RECURSIVE if recursive else 0))


def move_mount(from_fd: int, to_fd: int) -> None:
    """move_mount(2): attach a detached mount at the directory or file behind ``to_fd``."""
    flags = MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH
    syscall("move_mount", from_fd, b"\0", to_fd, b"\0", flags)


def mount_setattr(
    dirfd: int,
    *,
    attr_set: int = 0,
    propagation: int = 0,
    userns_fd: int = 0,
    recursive: bool = True,
) -> None:
    """mount_setattr(2) on a descriptor: add attributes; nothing is ever cleared."""
    attr = _u64s(attr_set, 0, propagation, userns_fd)
    flags = AT_EMPTY_PATH | (AT_RECURSIVE if recursive else 0)
    syscall("mount_setattr", dirfd, b"\0", flags, attr, len(attr))


def new_mount(fstype: str, options: dict[str, str], attributes: int) -> int:
    """fsopen(2), fsconfig(2), fsmount(2): a new detached mount. Returns its descriptor."""
    fs_fd = syscall("fsopen", fstype.encode() + b"\0", FSOPEN_CLOEXEC)
    try:
        for key, value in options.items():
            words = (key.encode() + b"\0", value.encode() + b"\0")
            syscall("fsconfig", fs_fd, FSCONFIG_SET_STRING, *words, 0)
        syscall("fsconfig", fs_fd, FSCONFIG_CMD_CREATE, None, None, 0)
        return syscall("fsmount", fs_fd, FSMOUNT_CLOEXEC, attributes)
    finally:
        os.close(fs_fd)


def fstatfs_type(fd: int) -> int:
    """fstatfs(2): return ``f_type``, such as ``PROC_SUPER_MAGIC``."""
    buffer = ctypes.create_string_buffer(256)
    syscall("fstatfs", fd, buffer)
    return int.from_bytes(buffer.raw[:8], "little")


def pivot_root(new_root: str, put_old: str) -> None:
    """pivot_root(2)."""
    syscall("pivot_root", os.fsencode(new_root) + b"\0", os.fsencode(put_old) + b"\0")


def umount2(target: str, flags: int) -> None:
    """umount(2)."""
    syscall("umount2", os.fsencode(target) + b"\0", flags)


def unshare(flags: int) -> None:
    """unshare(2); the standard library has it from Python 3.12 only."""
    syscall("unshare", flags)


def sethostname(name: str) -> None:
    """sethostname(2), without importing socket."""
    encoded = name.encode()
    syscall("sethostname", encoded, len(encoded))


def is_ignored(number: int) -> bool:
    """sigaction(2): tell whether a signal is ignored. The C library hides 32 and 33; this not."""
    action = ctypes.create_string_buffer(_SIGACTION_BYTES)
    syscall("rt_sigaction", number, None, action, _SIGSET_BYTES)
    return action.raw[:8] == _u64s(1)  # SIG_IGN


def set_default(number: int) -> None:
    """sigaction(2): set a signal's disposition to SIG_DFL."""
    syscall("rt_sigaction", number, bytes(_SIGACTION_BYTES), None, _SIGSET_BYTES)


def prctl(option: int, *words: int) -> int:
    """prctl(2) for what python-prctl cannot do; unused words are zero."""
    return syscall("prctl", option, *(*words, 0, 0, 0, 0)[:4])


def capset(header: bytes, data: bytes) -> None:
    """capset(2) with the raw structures of <linux/capability.h>."""
    syscall("capset", header, data)


def close_range(first: int, last: int, flags: int = 0) -> None:
    """close_range(2)."""
    syscall("close_range", first, last, flags)


def execveat(fd: int, argv: list[bytes], envp: list[bytes]) -> None:
    """execveat(2) with ``AT_EMPTY_PATH``: run the file behind ``fd``. Returns only by raising."""
    argv_words = (ctypes.c_char_p * (len(argv) + 1))(*argv, None)
    envp_words = (ctypes.c_char_p * (len(envp) + 1))(*envp, None)
    syscall("execveat", fd, b"\0", argv_words, envp_words, AT_EMPTY_PATH)
