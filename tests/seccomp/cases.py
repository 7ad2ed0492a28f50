"""Which policies are tested, and what must each argument rule do? Written from the specification.

A refused row says what the filter answers; the control, made without a filter, must answer
something else, unless ``same`` says why it cannot. A passing row must answer the same on both
sides. Every call is harmless on both: a descriptor of -1, a pointer to nowhere, a flag that the
kernel refuses after the filter has looked.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from dataclasses import dataclass

from launcher import compiler, syscalls
from launcher.policy_arguments import Rules


@dataclass(frozen=True)
class Policy:
    name: str
    base: str
    network: bool = True
    relax: tuple[str, ...] = ()

    @property
    def program(self) -> bytes:
        return compiler.compile_program(self.base, network=self.network, relax=self.relax)

    @property
    def verdicts(self) -> dict[str, int]:
        return compiler.verdicts(self.base, network=self.network, relax=self.relax)

    @property
    def rules(self) -> dict[str, Rules]:
        return dict(compiler.rules(self.base, network=self.network, relax=self.relax))


POLICIES = (
    Policy("default", "default"),
    Policy("default-offline", "default", network=False),
    Policy("strict", "strict"),
    Policy("strict-offline", "strict", network=False),
    Policy("debug", "default", relax=("debug",)),
    Policy("strict-debug-numa", "strict", network=False, relax=("debug", "numa")),
)
EVERYWHERE = tuple(p.name for p in POLICIES)
DEFAULT = ("default", "default-offline", "debug")
STRICT = ("strict", "strict-offline", "strict-debug-numa")
OFFLINE = ("strict-offline", "strict-debug-numa")
ONLINE = (*DEFAULT, "strict")


@dataclass(frozen=True)
class Row:
    policies: tuple[str, ...]
    call: str
    words: tuple[int, ...]
    refused: int  # 0: the call passes
    same: str = ""


LAST_NUMBER = 470  # listns(2), Linux 6.18
HIGH = 1 << 32
BAD = -1
NOWHERE = 8  # an address that is never mapped


def _refused(
    code: int, call: str, *words: int, policies: tuple[str, ...] = EVERYWHERE, same: str = ""
) -> Row:
    return Row(policies, call, words, code, same)


def _passes(call: str, *words: int, policies: tuple[str, ...] = EVERYWHERE) -> Row:
    return Row(policies, call, words, 0)


# Without CLONE_SIGHAND the kernel refuses CLONE_THREAD, so that no process is made.
_THREAD = 0x10000
_NAMESPACES = [0x20000, *(1 << bit for bit in range(25, 31))]

_CLONE = [
    *(_refused(errno.EPERM, "clone", flag | _THREAD) for flag in _NAMESPACES),
    _refused(errno.EPERM, "clone", HIGH | 0x10000000 | _THREAD),
    _passes("clone", _THREAD | 0x200),
    _passes("clone", HIGH | _THREAD),
    # The flag 1 does not exist: the kernel refuses it after the filter.
    *(_refused(errno.EPERM, "unshare", flag | 1) for flag in (*_NAMESPACES, 0x80)),
    _refused(errno.EPERM, "unshare", _THREAD),
    _refused(errno.EPERM, "unshare", HIGH),
    *(_passes("unshare", flag) for flag in (0, 0x200, 0x400, 0x40000, 0x40600)),
]

IOCTL_REFUSED = (
    *(0x5412, 0x541C, 0x5423, 0x541D),
    *(0x4B00, 0x4B3A, 0x4BFF, 0x5600, 0x5606, 0x56FF),
    *(0xC0045877, 0xC0045878, 0x40806685, 0x1277, 0x127D, 0x127F),
    *(0x2400, 0x40082406, 0xAE00, 0x4020AE46, 0xAF00, 0x4008AF00),
)
IOCTL_STRICT = (
    *(0x5401, 0x5402, 0x5403, 0x5404, 0x802C542A, 0x402C542B, 0x402C542C, 0x402C542D),
    *(0x5413, 0x5414, 0x540F, 0x5410, 0x5429, 0x541B, 0x5421, 0x5452, 0x5451, 0x5450),
    *(0x40049409, 0x4020940D, 0x80045430, 0x40045431, 0x5441),
)
SIOCGIF = (
    *(0x8910, 0x8912, 0x8913, 0x8915, 0x8917, 0x8919, 0x891B, 0x891D, 0x8921, 0x8927, 0x8933),
    0x8942,
)

_IOCTL = [
    *(_refused(errno.EPERM, "ioctl", BAD, c, policies=DEFAULT) for c in IOCTL_REFUSED),
    *(_refused(errno.EPERM, "ioctl", BAD, c | HIGH, policies=DEFAULT) for c in IOCTL_REFUSED),
    *(_refused(errno.ENOTTY, "ioctl", BAD, c, policies=STRICT) for c in IOCTL_REFUSED),
    *(_passes("ioctl", BAD, c) for c in IOCTL_STRICT),
    *(_passes("ioctl", BAD, c | HIGH) for c in IOCTL_STRICT),
    *(_passes("ioctl", BAD, c, policies=ONLINE) for c in SIOCGIF),
    *(_refused(errno.ENOTTY, "ioctl", BAD, c, policies=OFFLINE) for c in SIOCGIF),
    *(_passes("ioctl", BAD, c, policies=DEFAULT) for c in (0x5411, 0x4AFF, 0x4C00, 0x5700)),
    *(_refused(errno.ENOTTY, "ioctl", BAD, c, policies=STRICT) for c in (0x5405, 0x8914, 0)),
]

_RAW, _SEQPACKET = 3, 5
_SOCKET = [
    _passes("socket", 1, 1, 0),
    _passes("socket", 1 | HIGH, 2, 0),
    _passes("socket", 1, _SEQPACKET | 0x80000, 0),
    _refused(errno.EPERM, "socket", 1, _RAW, 0),
    *(_passes("socket", family, 2, 0, policies=ONLINE) for family in (2, 10)),
    *(
        _refused(errno.EAFNOSUPPORT, "socket", family, 2, 0, policies=OFFLINE)
        for family in (2, 10)
    ),
    _refused(errno.EPERM, "socket", 2, _SEQPACKET, 0, policies=ONLINE),
    _refused(
        *(errno.EPERM, "socket", 2, _RAW, 1),
        policies=ONLINE,
        same="an ordinary user may not open a raw socket anyway",
    ),
    _refused(errno.EPERM, "socket", 2 | HIGH, _RAW | HIGH, 255, policies=ONLINE, same="likewise"),
    *(_refused(errno.EAFNOSUPPORT, "socket", 16, kind, 0) for kind in (2, _RAW)),
    _refused(errno.EAFNOSUPPORT, "socket", 16 | HIGH, _RAW, 0),
    *(
        _refused(errno.EAFNOSUPPORT, "socket", family, 1, 0, same="depends on kernel modules")
        for family in (0, 17, 38, 40, 44)
    ),
    _passes("socketpair", 1, 1, 0, NOWHERE),
    _refused(errno.EAFNOSUPPORT, "socketpair", 2, 1, 0, NOWHERE),
    _refused(errno.EAFNOSUPPORT, "socketpair", 16 | HIGH, 2, 0, NOWHERE),
    *(_refused(errno.EPERM, "setsockopt", BAD, 1 | HIGH, name) for name in (50, 52)),
    *(_passes("setsockopt", BAD, 1, name) for name in (49, 51)),
    *(_passes("setsockopt", BAD, 6, name) for name in (50, 52)),
]

PRCTL_ALLOWED = (
    *(1, 2, 3, 4, 15, 16, 29, 30, 21, 22, 23, 24, 36, 37, 38, 39, 40, 41, 42, 47, 52, 53),
    *(50, 51, 54, 55, 56, 59, 60, 61, 63, 64, 65, 66, 74, 75, 76, 0x53564D41),
)
PRCTL_REFUSED = (8, 28, 31, 32, 33, 35, 57, 62, 0x59616D61)

_SPECULATION = 77  # no such misfeature
_PRCTL = [
    *(_refused(errno.EPERM, "prctl", option, 2, 0, 0, 1) for option in (8, 33, 35)),
    _refused(errno.EPERM, "prctl", 62, 99),
    *(_refused(errno.EPERM, "prctl", option) for option in (31, 32)),
    _refused(errno.EPERM, "prctl", 8 | HIGH, 2),
    *(_refused(errno.EPERM, "prctl", option, same="needs a capability") for option in (28, 57)),
    _refused(errno.EPERM, "prctl", 0x59616D61, BAD - 1, same="depends on Yama"),
    *(
        _refused(errno.EINVAL, "prctl", option, BAD, BAD, BAD, BAD, same="or known to newer ones")
        for option in (0, 1000, 0x41555856)
    ),
    _refused(errno.EINVAL, "prctl", 7),
    _passes("prctl", 3),
    _passes("prctl", 3 | HIGH),
    _refused(errno.EPERM, "prctl", 47, 2, 0, 1),
    _refused(errno.EPERM, "prctl", 47, 1 | HIGH),
    *(_passes("prctl", 47, what) for what in (1, 3, 4)),
    _refused(errno.EPERM, "prctl", 53, _SPECULATION, 2),
    _refused(errno.EPERM, "prctl", 53, _SPECULATION, 4 | HIGH),
    *(_passes("prctl", 53, _SPECULATION, control) for control in (4, 8, 16)),
]

_RANDOMIZE_OFF = ("debug", "strict-debug-numa")
_PERSONALITY = [
    *(_passes("personality", persona) for persona in (0, HIGH, 0xFFFFFFFF)),
    *(
        _passes("personality", p, policies=(*DEFAULT, "strict-debug-numa"))
        for p in (8, 0x20000, 0x20008)
    ),
    *(
        _refused(errno.EPERM, "personality", p, policies=("strict", "strict-offline"))
        for p in (8, 0x20000, 0x20008)
    ),
    *(
        _passes("personality", persona | 0x40000, policies=_RANDOMIZE_OFF)
        for persona in (0, 8, 0x20000, 0x20008)
    ),
    *(
        _refused(
            *(errno.EPERM, "personality", persona | 0x40000),
            policies=tuple(p for p in EVERYWHERE if p not in _RANDOMIZE_OFF),
        )
        for persona in (0, 8, 0x20000, 0x20008)
    ),
    _refused(errno.EPERM, "personality", 0x0400000),  # READ_IMPLIES_EXEC
]

_CREATE, _TMPFILE = 0o100, 0o20200000
_NODES = (0, 0o100000, 0o010000, 0o140000)


def _moded(call: str, *before: int) -> Iterable[Row]:
    for bits in (0o4000, 0o2000, 0o6755, 0o4000 | HIGH):
        yield _refused(errno.EPERM, call, *before, bits)
    yield _passes(call, *before, 0o1777)


_MODES = [
    *_moded("chmod", NOWHERE),
    *_moded("fchmod", BAD),
    *_moded("fchmodat", BAD, NOWHERE),
    *_moded("fchmodat2", BAD, NOWHERE),
    *_moded("creat", NOWHERE),
    *_moded("mknod", NOWHERE),
    *_moded("mknodat", BAD, NOWHERE),
    *_moded("open", NOWHERE, _CREATE),
    *_moded("open", NOWHERE, _TMPFILE),
    *_moded("openat", BAD, NOWHERE, _CREATE),
    *_moded("openat", BAD, NOWHERE, _TMPFILE | HIGH),
    _passes("open", NOWHERE, 0o2, 0o6755),
    _passes("openat", BAD, NOWHERE, 0o200000, 0o6755),
    *(_passes("mknod", NOWHERE, kind | 0o644) for kind in _NODES),
    *(_passes("mknodat", BAD, NOWHERE, kind | 0o644) for kind in _NODES),
    *(_refused(errno.EPERM, "mknod", NOWHERE, kind) for kind in (0o020000, 0o060000, 0o120000)),
    *(_refused(errno.EPERM, "mknodat", BAD, NOWHERE, kind) for kind in (0o020644, 0o060644)),
]

_OTHERS = [
    _refused(errno.EPERM, "prlimit64", 2, 0, NOWHERE),
    _refused(errno.EPERM, "prlimit64", 2, 0, HIGH),
    _passes("prlimit64", 0, 0, NOWHERE),
    _passes("prlimit64", HIGH, 0, NOWHERE),
    _passes("prlimit64", 1, 0, 0, 0),
    _refused(errno.EBUSY, "seccomp", 1, 8, NOWHERE),
    _refused(errno.EBUSY, "seccomp", 1 | HIGH, 8 | HIGH, NOWHERE),
    _passes("seccomp", 1, 0, NOWHERE),
    _passes("seccomp", 0, 1, 0),  # the kernel takes no flags with SECCOMP_SET_MODE_STRICT
    *(_passes("seccomp", operation, 0, NOWHERE) for operation in (2, 3)),
    _passes("seccomp", 2, 8, NOWHERE),
    _refused(errno.EINVAL, "seccomp", 4, 0, NOWHERE, same="what the kernel says as well"),
    _refused(errno.EPERM, "memfd_create", NOWHERE, 1, policies=STRICT),
    _refused(errno.EPERM, "memfd_create", NOWHERE, HIGH << 3, policies=STRICT),
    _passes("memfd_create", NOWHERE, 1, policies=DEFAULT),
    _passes("memfd_create", NOWHERE, 8),
]

ROWS = [
    row
    for row in (*_CLONE, *_IOCTL, *_SOCKET, *_PRCTL, *_PERSONALITY, *_MODES, *_OTHERS)
    if compiler.number_of(syscalls.MACHINE, row.call) is not None
]


def rows_of(policy: Policy) -> list[Row]:
    return [row for row in ROWS if policy.name in row.policies]
