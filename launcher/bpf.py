"""How do decisions over numbers become a classic BPF program?

The instructions are those seccomp(2) accepts (<linux/bpf_common.h>). Jumps go forward only and
name a `Label`; `assemble` works from the last instruction back, so that every distance is known
when it is written, and gives a conditional jump that cannot reach a longer jump as a relay.
"""

from __future__ import annotations

import bisect
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

LOAD = 0x20  # BPF_LD | BPF_W | BPF_ABS: A = the word at offset k of struct seccomp_data
AND = 0x54  # BPF_ALU | BPF_AND | BPF_K: A &= k
JUMP = 0x05  # BPF_JMP | BPF_JA
JUMP_EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
JUMP_GREATER = 0x25  # BPF_JMP | BPF_JGT | BPF_K
JUMP_GREATER_EQUAL = 0x35  # BPF_JMP | BPF_JGE | BPF_K
RETURN = 0x06  # BPF_RET | BPF_K

NUMBER, ARCH = 0, 4  # offsets in struct seccomp_data, <linux/seccomp.h>
MAX_LENGTH = 4096  # BPF_MAXINSNS
_FILTER = struct.Struct("<HBBI")  # struct sock_filter; both architectures are little-endian
_REACH = 0xFF


class Label:
    """A place in a program; each object is another place."""


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction that does not jump."""

    code: int
    k: int


@dataclass(frozen=True, slots=True)
class Jump:
    """To ``then`` if A compares with ``k``, else to ``otherwise``."""

    code: int
    k: int
    then: Label
    otherwise: Label


@dataclass(frozen=True, slots=True)
class Goto:
    """To ``to`` always."""

    to: Label


Item = Label | Step | Jump | Goto


def argument_offset(argument: int, *, high: bool = False) -> int:
    """Return where a half of argument 0 to 5 lies in struct seccomp_data (little-endian)."""
    return 16 + 8 * argument + (4 if high else 0)


def assemble(items: Sequence[Item]) -> bytes:
    """Return the array of struct sock_filter for ``items``."""
    backwards: list[bytes] = []
    places: dict[Label, int] = {}
    relays: dict[Label, Label] = {}

    def distance(to: Label) -> int:
        return len(backwards) - places[to]

    def near(to: Label) -> Label:
        # One more instruction may still come between, so the last step of the reach is kept free.
        for place in (to, relays.get(to, to)):
            if distance(place) < _REACH:
                return place
        backwards.append(_FILTER.pack(JUMP, 0, 0, distance(to)))
        relays[to] = Label()
        places[relays[to]] = len(backwards)
        return relays[to]

    for item in reversed(items):
        match item:
            case Label():
                places[item] = len(backwards)
            case Step():
                backwards.append(_FILTER.pack(item.code, 0, 0, item.k))
            case Goto():
                backwards.append(_FILTER.pack(JUMP, 0, 0, distance(item.to)))
            case Jump():
                then, otherwise = near(item.then), near(item.otherwise)
                jumps = (distance(then), distance(otherwise))
                backwards.append(_FILTER.pack(item.code, *jumps, item.k))
    return b"".join(reversed(backwards))


Intervals = list[tuple[int, Label]]
Decisions = list[tuple[int, int]]


def intervals(ranges: Iterable[tuple[int, int]], *, inside: Label, outside: Label) -> Intervals:
    """Return the numbers at which the answer changes, starting with 0, each with its answer."""
    changes: Intervals = [(0, outside)]
    for first, last in ranges:
        if changes[-1][0] == first:
            changes.pop()
        if not changes or changes[-1][1] is not inside:
            changes.append((first, inside))
        if last < 0xFFFF_FFFF:
            changes.append((last + 1, outside))
    return changes


def answer(changes: Intervals, number: int) -> Label:
    """Return where ``number`` leads."""
    return changes[_position(changes, number)][1]


def replace(changes: Intervals, number: int, place: Label) -> None:
    """Let ``number``, and it alone, lead to ``place``."""
    at = _position(changes, number)
    start, before = changes[at]
    after = [(number + 1, before)]
    if at + 1 < len(changes) and changes[at + 1][0] == number + 1:
        after = []
    changes[at : at + 1] = [
        *([(start, before)] if start < number else []),
        (number, place),
        *after,
    ]


def _position(changes: Intervals, number: int) -> int:
    return bisect.bisect_right(changes, number, key=lambda change: change[0]) - 1


def search(changes: Intervals) -> list[Item]:
    """Return a binary search over A: it goes to the label of the interval that A lies in."""
    match changes:
        case [(_, only)]:
            return [Goto(only)]
        case [(_, low), (start, high)]:
            return [Jump(JUMP_GREATER_EQUAL, start, high, low)]
        case [(_, low), (start, middle), (end, high)] if high is low and end == start + 1:
            return [Jump(JUMP_EQUAL, start, middle, low)]
    half = len(changes) // 2
    half -= half % 2 if len(changes) > 3 else 0  # an odd half can end in one JUMP_EQUAL
    left, right = Label(), Label()
    lower, upper = search(changes[:half]), search(changes[half:])
    split = Jump(JUMP_GREATER_EQUAL, changes[half][0], right, left)
    return [split, left, *lower, right, *upper]


def decisions(program: bytes, arch: int) -> Decisions:
    """Return where the answers of ``program`` change, from number 0 on, each with its answer.

    Exact for all 2**32 numbers: the program compares the number with constants only, so that
    its answer can change at these alone.

    Raises:
        ValueError: the program looks at more than the number and the architecture.

    """
    code = list(_FILTER.iter_unpack(program))
    jumps = {JUMP_EQUAL, JUMP_GREATER, JUMP_GREATER_EQUAL}
    constants = {k for opcode, _, _, k in code if opcode in jumps}
    starts = sorted({0, *constants, *(k + 1 for k in constants if k < 0xFFFF_FFFF)})
    found: Decisions = []
    for start in starts:
        action = _decide(code, start, arch)
        if not found or found[-1][1] != action:
            found.append((start, action))
    return found


def _decide(code: Sequence[tuple[int, ...]], number: int, arch: int) -> int:
    data = {NUMBER: number, ARCH: arch}
    a = at = 0
    while True:
        opcode, then, otherwise, k = code[at]
        at += 1
        match opcode:
            case c if c == LOAD and k in data:
                a = data[k]
            case c if c == JUMP:
                at += k
            case c if c == JUMP_EQUAL:
                at += then if a == k else otherwise
            case c if c == JUMP_GREATER:
                at += then if a > k else otherwise
            case c if c == JUMP_GREATER_EQUAL:
                at += then if a >= k else otherwise
            case c if c == RETURN:
                return k
            case _:
                raise ValueError(f"cannot read the instruction {opcode:#x} {k:#x} of a table")
