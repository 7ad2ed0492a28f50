"""What does a classic BPF program of seccomp(2) answer? An interpreter of its own, for the tests.

It knows the instructions of <linux/bpf_common.h> that `seccomp_check_filter` of the kernel lets
through and that a filter can need; anything else, and a jump out of the program, is an error.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable
from dataclasses import dataclass

ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_COMPARE: dict[int, Callable[[int, int], bool]] = {
    0x15: operator.eq,
    0x25: operator.gt,
    0x35: operator.ge,
    0x45: lambda a, k: bool(a & k),
}
NUMBER_AND_ARCH = frozenset({0, 4})  # what a constant action may depend on


@dataclass(frozen=True)
class Answer:
    """``action`` after ``steps`` instructions, having read the words at the offsets ``reads``."""

    action: int
    steps: int
    reads: frozenset[int]


def run(program: bytes, machine: str, number: int, *arguments: int) -> Answer:
    words = [a & (2**64 - 1) for a in (*arguments, 0, 0, 0, 0, 0, 0)[:6]]
    return run_arch(program, ARCH[machine], number, *words)


def run_arch(program: bytes, arch: int, number: int, *words: int) -> Answer:
    padded = (*words, 0, 0, 0, 0, 0, 0)[:6]
    data = struct.pack("<IIQ6Q", number & 0xFFFFFFFF, arch, 0, *padded)
    code = list(struct.iter_unpack("<HBBI", program))
    reads: set[int] = set()
    a = at = steps = 0
    while True:
        opcode, jump_true, jump_false, k = code[at]
        at, steps = at + 1, steps + 1
        if opcode == 0x20:
            (a,) = struct.unpack_from("<I", data, k)
            reads.add(k)
        elif opcode == 0x54:
            a &= k
        elif opcode == 0x05:
            at += k
        elif opcode in _COMPARE:
            at += jump_true if _COMPARE[opcode](a, k) else jump_false
        elif opcode == 0x06:
            return Answer(k, steps, frozenset(reads))
        else:
            raise AssertionError(f"instruction {opcode:#x} at {at - 1}")
