"""What must the arguments of an allowed system call be?

A rule can only refuse: what passes every rule of its call goes on to the table of
`launcher.policy`. Rules read registers, never memory behind a pointer, because the command could
change that between the check and the use (seccomp_unotify(2), "Race conditions").

Which half of a 64-bit register is compared follows the kernel's own parameter types (S03, S04):
where it takes an ``int`` it ignores the high word, and so does a rule; where it takes a ``long``
or a pointer, a rule is ``wide`` and a high word that is not zero never matches.

The policy has no rule for mmap(2), futex(2), read(2) and the like, so that the kernel answers
these from its bitmap of constant actions (S17). Writable and executable memory is the subject of
PR_SET_MDWE (prctl(2)), not of a rule. This module is data only.
"""

from __future__ import annotations

import errno
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

WORD = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """True if ``argument & mask`` lies in one of ``ranges``, which are sorted and disjoint.

    ``wide`` compares all 64 bits, the high word with zero. ``negated`` turns the answer round.
    """

    argument: int
    ranges: tuple[tuple[int, int], ...]
    mask: int = WORD
    wide: bool = False
    negated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Where ``given`` matches, ``require`` must match too, or the call fails with ``errno``."""

    require: Match
    errno: int
    given: Match | None = None


Rules = tuple[Rule, ...]


def _ranges(values: tuple[int | range, ...]) -> tuple[tuple[int, int], ...]:
    pairs = [(v, v) if isinstance(v, int) else (v.start, v.stop - 1) for v in values]
    return tuple(sorted(pairs))


def _among(argument: int, *values: int | range, mask: int = WORD, wide: bool = False) -> Match:
    return Match(argument=argument, ranges=_ranges(values), mask=mask, wide=wide)


def _not_among(argument: int, *values: int | range, mask: int = WORD, wide: bool = False) -> Match:
    ranges = _ranges(values)
    return Match(argument=argument, ranges=ranges, mask=mask, wide=wide, negated=True)


def _none_of(argument: int, bits: int) -> Match:
    return _among(argument, 0, mask=bits)


def _some_of(argument: int, bits: int) -> Match:
    return _not_among(argument, 0, mask=bits)


# clone(2), unshare(2): <linux/sched.h>. clone's own flags have no CLONE_NEWTIME: that bit is part
# of the exit signal.
_CLONE_NAMESPACES = 0x7E02_0000
_UNSHARE_ALLOWED = 0x200 | 0x400 | 0x40000  # CLONE_FS, CLONE_FILES, CLONE_SYSVSEM

_clone = (Rule(require=_none_of(0, _CLONE_NAMESPACES), errno=errno.EPERM),)
_unshare = (
    Rule(require=_among(0, 0, mask=WORD & ~_UNSHARE_ALLOWED, wide=True), errno=errno.EPERM),
)

# ioctl(2): <asm-generic/ioctls.h>, <linux/fs.h>, <linux/kd.h>, <linux/vt.h>. The command is an
# unsigned int (CVE-2019-10063). TIOCSTI and TIOCLINUX type into the terminal (F01, F02).
_IOCTL_REFUSED = (
    *(0x5412, 0x541C, 0x541D, 0x5423),  # TIOCSTI, TIOCLINUX, TIOCCONS, TIOCSETD
    *(0x1277, 0x127D, 0x127F),  # BLKDISCARD, BLKSECDISCARD, BLKZEROOUT
    range(0x4B00, 0x4C00),  # KD*: keyboard, fonts, graphics mode of a console
    range(0x5600, 0x5700),  # VT_*: virtual terminals
    0x40806685,  # FS_IOC_ENABLE_VERITY
    *(0xC0045877, 0xC0045878),  # FIFREEZE, FITHAW
)
_IOCTL_TYPES_REFUSED = (0x2400, 0xAE00, 0xAF00)  # perf_event, KVM, vhost: all of each
_IOCTL_STRICT = (
    range(0x5401, 0x5405),  # TCGETS, TCSETS, TCSETSW, TCSETSF
    *(0x802C542A, 0x402C542B, 0x402C542C, 0x402C542D),  # TCGETS2, TCSETS2, TCSETSW2, TCSETSF2
    *(0x5413, 0x5414),  # TIOCGWINSZ, TIOCSWINSZ
    *(0x540F, 0x5410, 0x5429),  # TIOCGPGRP, TIOCSPGRP, TIOCGSID
    *(0x541B, 0x5421, 0x5450, 0x5451, 0x5452),  # FIONREAD, FIONBIO, FIONCLEX, FIOCLEX, FIOASYNC
    *(0x40049409, 0x4020940D),  # FICLONE, FICLONERANGE
    *(0x80045430, 0x40045431, 0x5441),  # TIOCGPTN, TIOCSPTLCK, TIOCGPTPEER
)
_SIOCGIF = (
    *(0x8910, 0x8912, 0x8913, 0x8915),  # SIOCGIFNAME, -CONF, -FLAGS, -ADDR
    *(0x8917, 0x8919, 0x891B, 0x891D),  # SIOCGIFDSTADDR, -BRDADDR, -NETMASK, -METRIC
    *(0x8921, 0x8927, 0x8933, 0x8942),  # SIOCGIFMTU, -HWADDR, -INDEX, -TXQLEN
)

_ioctl = (
    Rule(require=_not_among(1, *_IOCTL_REFUSED), errno=errno.EPERM),
    Rule(require=_not_among(1, *_IOCTL_TYPES_REFUSED, mask=0xFF00), errno=errno.EPERM),
)
_ioctl_strict = (Rule(require=_among(1, *_IOCTL_STRICT), errno=errno.ENOTTY),)
_ioctl_strict_network = (Rule(require=_among(1, *_IOCTL_STRICT, *_SIOCGIF), errno=errno.ENOTTY),)

# socket(2): <linux/socket.h>, <linux/net.h>. All three arguments are ints.
_UNIX, _INET, _INET6 = 1, 2, 10
_STREAM, _DGRAM, _SEQPACKET = 1, 2, 5
_TYPE_MASK = 0xF

_socket_type = Rule(
    require=_among(1, _STREAM, _DGRAM, _SEQPACKET, mask=_TYPE_MASK), errno=errno.EPERM
)
_socket = (
    Rule(require=_among(0, _UNIX, _INET, _INET6), errno=errno.EAFNOSUPPORT),
    _socket_type,
    Rule(
        given=_among(1, _SEQPACKET, mask=_TYPE_MASK), require=_among(0, _UNIX), errno=errno.EPERM
    ),
)
_socket_unix = (Rule(require=_among(0, _UNIX), errno=errno.EAFNOSUPPORT), _socket_type)
_socketpair = (Rule(require=_among(0, _UNIX), errno=errno.EAFNOSUPPORT),)
_setsockopt = (
    Rule(
        given=_among(1, 1),  # SOL_SOCKET
        require=_not_among(2, 50, 52),  # SO_ATTACH_BPF, SO_ATTACH_REUSEPORT_EBPF
        errno=errno.EPERM,
    ),
)

# prctl(2): <linux/prctl.h>. The option is an int, its arguments are longs.
_PRCTL_ALLOWED = (
    *(1, 2, 3, 4, 15, 16),  # PDEATHSIG, DUMPABLE, NAME
    *(21, 22, 23, 24, 29, 30),  # SECCOMP, CAPBSET, TIMERSLACK
    *(36, 37, 38, 39, 40, 41, 42),  # CHILD_SUBREAPER, NO_NEW_PRIVS, TID_ADDRESS, THP_DISABLE
    *(47, 52, 53),  # CAP_AMBIENT, SPECULATION_CTRL: see the two rules below
    *(50, 51, 63, 64),  # SVE and SME vector lengths
    *(54, 55, 56, 60, 61),  # pointer authentication keys, tagged addresses
    *(59, 65, 66),  # SYSCALL_USER_DISPATCH, MDWE
    *(74, 75, 76),  # shadow stacks
    0x53564D41,  # PR_SET_VMA
)
_PRCTL_REFUSED = (
    *(8, 28, 31, 32, 33),  # KEEPCAPS, SECUREBITS, TASK_PERF_EVENTS, MCE_KILL
    *(35, 57, 62, 0x59616D61),  # SET_MM, IO_FLUSHER, SCHED_CORE, SET_PTRACER
)

_prctl = (
    Rule(require=_not_among(0, *_PRCTL_REFUSED), errno=errno.EPERM),
    Rule(require=_among(0, *_PRCTL_ALLOWED), errno=errno.EINVAL),
    Rule(  # PR_CAP_AMBIENT_IS_SET, -LOWER, -CLEAR_ALL; not -RAISE
        given=_among(0, 47), require=_among(1, 1, 3, 4, wide=True), errno=errno.EPERM
    ),
    Rule(  # PR_SPEC_DISABLE, -FORCE_DISABLE, -DISABLE_NOEXEC: only tighter
        given=_among(0, 53), require=_among(2, 4, 8, 16, wide=True), errno=errno.EPERM
    ),
)

# personality(2): PER_LINUX, PER_LINUX32, each with UNAME26, and the query. An unsigned int.
_PERSONALITIES = (0, 0x8, 0x20000, 0x20008, 0xFFFF_FFFF)
_NO_RANDOMIZE = 0x40000  # ADDR_NO_RANDOMIZE

_personality = (Rule(require=_among(0, *_PERSONALITIES), errno=errno.EPERM),)
_personality_strict = (Rule(require=_among(0, 0, 0xFFFF_FFFF), errno=errno.EPERM),)
_personality_debug = (
    Rule(
        require=_among(0, *_PERSONALITIES, *(v | _NO_RANDOMIZE for v in _PERSONALITIES[:-1])),
        errno=errno.EPERM,
    ),
)


# W02: no file of the caller's becomes set-user-ID or set-group-ID. A mode is a 16-bit umode_t.
def _mode(argument: int) -> Rules:
    return (Rule(require=_none_of(argument, stat.S_ISUID | stat.S_ISGID), errno=errno.EPERM),)


def _mode_if_created(flags: int, mode: int) -> Rules:
    # O_CREAT and __O_TMPFILE: without them the kernel ignores the mode, which may be anything.
    created = _some_of(flags, 0o100 | 0o20000000)
    return tuple(Rule(given=created, require=r.require, errno=r.errno) for r in _mode(mode))


def _node(mode: int) -> Rules:
    kinds = _among(mode, 0, stat.S_IFREG, stat.S_IFIFO, stat.S_IFSOCK, mask=0o170000)
    return (*_mode(mode), Rule(require=kinds, errno=errno.EPERM))


# A process may read the limits of another, which gdb(1) and ps(1) do, but set its own only.
_prlimit64 = (
    Rule(
        given=_not_among(2, 0, wide=True),
        require=_among(0, 0),
        errno=errno.EPERM,
    ),
)

# seccomp(2): the newest listener wins, so there is none (S11).
_seccomp = (
    Rule(require=_among(0, range(4)), errno=errno.EINVAL),
    Rule(given=_among(0, 1), require=_none_of(1, 8), errno=errno.EBUSY),
)

_memfd_create_strict = (  # MFD_NOEXEC_SEAL
    Rule(require=_not_among(1, 0, mask=8), errno=errno.EPERM),
)

DEFAULT: Mapping[str, Rules] = {
    "clone": _clone,
    "unshare": _unshare,
    "ioctl": _ioctl,
    "socket": _socket,
    "socketpair": _socketpair,
    "setsockopt": _setsockopt,
    "prctl": _prctl,
    "personality": _personality,
    "chmod": _mode(1),
    "fchmod": _mode(1),
    "fchmodat": _mode(2),
    "fchmodat2": _mode(2),
    "creat": _mode(1),
    "mknod": _node(1),
    "mknodat": _node(2),
    "open": _mode_if_created(1, 2),
    "openat": _mode_if_created(2, 3),
    "prlimit64": _prlimit64,
    "seccomp": _seccomp,
}
# execveat(2) keeps AT_EMPTY_PATH: it is how the launcher starts the command, from a descriptor.
STRICT: Mapping[str, Rules] = {
    **DEFAULT,
    "ioctl": _ioctl_strict_network,
    "personality": _personality_strict,
    "memfd_create": _memfd_create_strict,
}
STRICT_OFFLINE: Mapping[str, Rules] = {**STRICT, "ioctl": _ioctl_strict, "socket": _socket_unix}
DEBUG: Mapping[str, Rules] = {"personality": _personality_debug}
