"""Which rights on which parts of the view does Landlock leave, and is it really in force?

Landlock (landlock(7)) is a second layer over the mounts: rules are made from descriptors of the
finished view, and what no rule grants is refused even if a mount were wrong. Rights and scopes are
those that the running kernel's ABI knows (K02); ``restrict`` proves one refusal before it returns
(K01).
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass

from launcher import syscalls

_CREATE_RULESET_VERSION = 1  # <linux/landlock.h>
_RULE_PATH_BENEATH = 1

EXECUTE = 1 << 0
WRITE_FILE = 1 << 1
READ_FILE = 1 << 2
READ_DIR = 1 << 3
REFER = 1 << 13
TRUNCATE = 1 << 14
IOCTL_DEV = 1 << 15
_REMOVE_AND_MAKE = 0x1FF0  # REMOVE_DIR to MAKE_SYM, bits 4 to 12
_ALL_FILE = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV

READ = READ_FILE | READ_DIR
READ_EXECUTE = READ | EXECUTE
WRITE = READ | WRITE_FILE | _REMOVE_AND_MAKE | REFER | TRUNCATE
DEVICE = READ_FILE | WRITE_FILE | TRUNCATE | IOCTL_DEV

_NET_BIND_CONNECT_TCP = 3
_SCOPE_ABSTRACT_UNIX_AND_SIGNAL = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """``access`` is granted on what ``fd`` stands for and, for a directory, on all beneath."""

    fd: int
    access: int
    directory: bool


def abi() -> int:
    """Return the kernel's Landlock ABI version, 0 if it has none."""
    try:
        return syscalls.syscall("landlock_create_ruleset", None, 0, _CREATE_RULESET_VERSION)
    except OSError:
        return 0


def handled_access(version: int) -> int:
    """Return the file system rights that this ABI knows, as a mask."""
    rights = 0x1FFF
    for since, right in ((2, REFER), (3, TRUNCATE), (5, IOCTL_DEV)):
        rights |= right if version >= since else 0
    return rights


def create_ruleset(rules: tuple[Rule, ...], *, version: int, tcp: bool) -> int:
    """Make a ruleset and return its descriptor. ``tcp`` leaves TCP bind and connect alone.

    Raises:
        OSError: the kernel has no Landlock, or does not take a rule.

    """
    handled = handled_access(version)
    attr = struct.pack("<Q", handled)
    if version >= 4:
        attr += struct.pack("<Q", 0 if tcp else _NET_BIND_CONNECT_TCP)
    if version >= 6:
        attr += struct.pack("<Q", _SCOPE_ABSTRACT_UNIX_AND_SIGNAL)
    ruleset_fd = syscalls.syscall("landlock_create_ruleset", attr, len(attr), 0)
    for rule in rules:
        access = rule.access & handled & (-1 if rule.directory else _ALL_FILE)
        # struct landlock_path_beneath_attr is packed.
        beneath = struct.pack("<Qi", access, rule.fd)
        syscalls.syscall("landlock_add_rule", ruleset_fd, _RULE_PATH_BENEATH, beneath, 0)
    return ruleset_fd


def restrict(ruleset_fd: int, probe_fd: int) -> None:
    """Put the ruleset in force for this process, and see a file refused that opened before.

    ``probe_fd`` is a directory outside every rule that holds a readable file ``probe``.

    Raises:
        PermissionError: the kernel took the call and refuses nothing.

    """
    os.close(os.open("probe", os.O_RDONLY | os.O_CLOEXEC, dir_fd=probe_fd))
    syscalls.syscall("landlock_restrict_self", ruleset_fd, 0)
    try:
        os.close(os.open("probe", os.O_RDONLY | os.O_CLOEXEC, dir_fd=probe_fd))
    except PermissionError:
        return
    raise PermissionError("Landlock refuses nothing")
