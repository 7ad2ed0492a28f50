"""What may this process still do, and how is it given up for good?

Capabilities in all five sets (capabilities(7)), securebits, no_new_privs and the dumpable flag.
The only importer of python-prctl, which knows neither the ambient set and its securebits nor
capabilities newer than its build; so after every giving up the kernel itself is asked, through
``/proc/self/status``.
"""

from __future__ import annotations

import os
import signal
import struct

import prctl

from launcher import syscalls

_PR_CAPBSET_DROP = 24  # <linux/prctl.h>
_PR_GET_SECUREBITS = 27
_PR_SET_SECUREBITS = 28
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_CAPABILITY_VERSION_3 = 0x20080522  # <linux/capability.h>
_SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
# <linux/securebits.h>: NOROOT, NO_SETUID_FIXUP, NO_CAP_AMBIENT_RAISE, and all four locked.
SECUREBITS = 0b1110_1111


def read_sets(proc_fd: int) -> dict[str, int]:
    """Return the five capability sets of this process as bit masks.

    Bit N is capability N of <linux/capability.h>; the keys are those of proc_pid_status(5).
    ``proc_fd`` is the root of a procfs that shows this process.
    """
    fd = os.open("self/status", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc_fd)
    try:
        text = os.read(fd, 1 << 16).decode()
    finally:
        os.close(fd)
    return {name: int(text.partition(f"{name}:")[2].split(maxsplit=1)[0], 16) for name in _SETS}


def drop_bounding(proc_fd: int) -> None:
    """Empty the bounding set; needs CAP_SETPCAP. Children inherit it."""
    bounding = read_sets(proc_fd)["CapBnd"]
    for number in range(bounding.bit_length()):
        if bounding >> number & 1:
            syscalls.prctl(_PR_CAPBSET_DROP, number)


def drop_capabilities(proc_fd: int) -> None:
    """Empty all five sets and lock securebits, then ask the kernel. I3.

    The bounding set is already empty: init's `drop_bounding`, which children inherit.

    Raises:
        PermissionError: something is left.

    """
    syscalls.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    syscalls.prctl(_PR_SET_SECUREBITS, SECUREBITS)
    header = struct.pack("<Ii", _CAPABILITY_VERSION_3, 0)
    syscalls.capset(header, bytes(24))
    left = {name: value for name, value in read_sets(proc_fd).items() if value}
    if left:
        raise PermissionError(f"capabilities left: {left}")
    if syscalls.prctl(_PR_GET_SECUREBITS) != SECUREBITS:
        raise PermissionError("securebits are not locked")


def set_no_new_privs() -> None:
    """Set no_new_privs (PR_SET_NO_NEW_PRIVS(2const)), then ask the kernel."""
    prctl.set_no_new_privs(1)
    if prctl.get_no_new_privs() != 1:
        raise PermissionError("no_new_privs is not in force")


def set_dumpable(*, dumpable: bool) -> None:
    """Set the dumpable flag (PR_SET_DUMPABLE(2const)); False hides memory and /proc/PID."""
    prctl.set_dumpable(dumpable)
    if bool(prctl.get_dumpable()) is not dumpable:
        raise PermissionError("the dumpable flag did not change")


def set_parent_death_signal() -> None:
    """Ask for SIGKILL when the parent dies; changing uids clears this, so do it after."""
    prctl.set_pdeathsig(signal.SIGKILL)
