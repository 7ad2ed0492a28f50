"""Which BPF program keeps the system-call policy?

libseccomp compiles the table of numbers (`launcher.policy`), where every call that is not named
fails with ENOSYS. Its program is then read back, exactly, and written anew as one search over
ranges of numbers: a fifth of the instructions, which each launch has the kernel check, translate
and try with every number. Around the table stands what libseccomp has no words for:

* another architecture ends the process (S01), and a number of the x32 ABI is ENOSYS (S02);
  libseccomp would take both for the same bad architecture;
* the rules over arguments (`launcher.policy_arguments`). libseccomp compares all 64 bits of an
  argument and takes one comparison per argument in a rule, so that "the low word is none of
  these" (S03) cannot be said to it.

A rule refuses or goes on to what the table says. A call without rules is decided by its number
alone, which the kernel finds out when the program is loaded: it then answers from a bitmap
without running the program (S17).
"""

from __future__ import annotations

import ctypes.util
import functools
import importlib
import os
from typing import TYPE_CHECKING

from launcher import bpf, policy, policy_arguments, syscalls

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    from launcher.policy_arguments import Match

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # <linux/audit.h>
_X32_BIT = 0x40000000  # __X32_SYSCALL_BIT
_SCMP_ERROR = -1  # __NR_SCMP_ERROR: libseccomp does not know the name at all


def _import_pyseccomp() -> ModuleType:
    # pyseccomp asks find_library() for both names when it is imported, which runs ldconfig(8)
    # twice, some 29 ms. The names are part of the ABI, so they are answered here meanwhile.
    names = {"c": "libc.so.6", "seccomp": "libseccomp.so.2"}
    module = vars(ctypes.util)
    find_library: Callable[[str], str | None] = module["find_library"]
    module["find_library"] = names.get
    try:
        return importlib.import_module("pyseccomp")
    finally:
        module["find_library"] = find_library


pyseccomp = _import_pyseccomp()

RELAXATIONS = policy.RELAXATIONS


@functools.cache
def compile_program(base: str, *, network: bool, relax: tuple[str, ...]) -> bytes:
    """Return the policy as an array of struct sock_filter for this machine.

    ``base`` is ``default`` or ``strict``; ``relax`` names members of ``RELAXATIONS``. Only
    ``strict`` asks ``network``: without it, there are no sockets but those of unix(7).

    Raises:
        ValueError: there is no such policy or relaxation, or the machine is not supported.

    """
    return assemble(
        syscalls.MACHINE,
        _decisions(verdicts(base, network=network, relax=relax)),
        rules(base, network=network, relax=relax),
    )


def verdicts(base: str, *, network: bool, relax: tuple[str, ...]) -> dict[str, int]:
    """Return the action of every named system call, before its arguments are looked at."""
    _check(base, relax)
    actions: dict[str, int] = {}
    for group in policy.GROUPS:
        action = group.default if base == "default" else group.strict
        if base == "strict" and not network and group.offline is not None:
            action = group.offline
        actions |= dict.fromkeys(group.names, action)
    for name in relax:
        actions |= dict.fromkeys(policy.RELAXATIONS[name].allow, policy.ALLOW)
    return actions


def rules(
    base: str, *, network: bool, relax: tuple[str, ...]
) -> Mapping[str, policy_arguments.Rules]:
    """Return the rules over the arguments of system calls, by name."""
    _check(base, relax)
    chosen = policy_arguments.DEFAULT
    if base == "strict":
        chosen = policy_arguments.STRICT if network else policy_arguments.STRICT_OFFLINE
    for name in relax:
        chosen = {**chosen, **policy.RELAXATIONS[name].rules}
    return chosen


def _check(base: str, relax: tuple[str, ...]) -> None:
    if base not in {"default", "strict"}:
        raise ValueError(f"cannot compile the system-call policy {base!r}: there is none")
    unknown = sorted(set(relax) - set(policy.RELAXATIONS))
    if unknown:
        raise ValueError(f"cannot relax the system-call policy by {', '.join(unknown)}")


def _decisions(actions: Mapping[str, int]) -> bpf.Decisions:
    table = pyseccomp.SyscallFilter(policy.DEFAULT_ACTION)
    table.set_attr(pyseccomp.Attr.ACT_BADARCH, policy.KILL_PROCESS)
    table.set_attr(pyseccomp.Attr.CTL_NNP, 0)
    table.set_attr(pyseccomp.Attr.CTL_OPTIMIZE, 2)  # a binary tree: quicker to read back
    for name, action in actions.items():
        number = number_of(syscalls.MACHINE, name)
        if number is not None and action != policy.DEFAULT_ACTION:
            table.add_rule_exactly(action, number)
    with os.fdopen(os.memfd_create("seccomp table", os.MFD_CLOEXEC), "r+b") as file:
        table.export_bpf(file)
        file.seek(0)
        return bpf.decisions(file.read(), _AUDIT_ARCH[syscalls.MACHINE])


def number_of(machine: str, name: str) -> int | None:
    """Return the number of a system call, or None where ``machine`` does not have it.

    Raises:
        ValueError: neither the policy nor libseccomp knows the call or the machine.

    """
    if machine not in _AUDIT_ARCH:
        raise ValueError(f"cannot filter system calls on {machine}")
    number: int | None = policy.NUMBERS[machine].get(name)
    if number is None:
        number = pyseccomp.resolve_syscall(_AUDIT_ARCH[machine], name)
        if number == _SCMP_ERROR:
            raise ValueError(f"cannot find the number of {name}(2) in libseccomp")
    return number if number >= 0 else None


def assemble(
    machine: str,
    decisions: bpf.Decisions,
    argument_rules: Mapping[str, policy_arguments.Rules],
) -> bytes:
    """Return the program for ``machine``, which need not be the one this runs on."""
    native, mine, kill = bpf.Label(), bpf.Label(), bpf.Label()
    answers = {action: bpf.Label() for _, action in decisions}
    unknown = answers.setdefault(policy.DEFAULT_ACTION, bpf.Label())
    items: list[bpf.Item] = [
        bpf.Step(bpf.LOAD, bpf.ARCH),
        bpf.Jump(bpf.JUMP_EQUAL, _AUDIT_ARCH[machine], native, kill),
        *(kill, bpf.Step(bpf.RETURN, policy.KILL_PROCESS)),
        *(native, bpf.Step(bpf.LOAD, bpf.NUMBER)),
    ]
    if machine == "x86_64":
        items.append(bpf.Jump(bpf.JUMP_GREATER_EQUAL, _X32_BIT, unknown, mine))
    changes = [(start, answers[action]) for start, action in decisions]
    code: list[bpf.Item] = []
    places: dict[tuple[policy_arguments.Rules, bpf.Label], bpf.Label] = {}
    for name, block in argument_rules.items():
        number = number_of(machine, name)
        if number is None:
            continue
        key = (block, bpf.answer(changes, number))
        if key not in places:
            places[key] = bpf.Label()
            code += [places[key], *_block(*key)]
        bpf.replace(changes, number, places[key])
    items += [mine, *bpf.search(changes), *code]
    for action, answer in answers.items():
        items += [answer, bpf.Step(bpf.RETURN, action)]
    return bpf.assemble(items)


def _block(block: policy_arguments.Rules, answer: bpf.Label) -> list[bpf.Item]:
    """Return the code of one call's rules: it returns an error, or goes to ``answer``."""
    failures = {rule.errno: bpf.Label() for rule in block}
    items: list[bpf.Item] = []
    for position, rule in enumerate(block, 1):
        passed = answer if position == len(block) else bpf.Label()
        given = bpf.Label()
        if rule.given is not None:
            items += [*_match(rule.given, given, passed), given]
        items += _match(rule.require, passed, failures[rule.errno])
        items += [passed] if passed is not answer else []
    for code, failure in failures.items():
        items += [failure, bpf.Step(bpf.RETURN, policy.refuse(code))]
    return items


def _match(match: Match, hit: bpf.Label, miss: bpf.Label) -> list[bpf.Item]:
    if match.negated:
        hit, miss = miss, hit
    items: list[bpf.Item] = []
    if match.wide:
        low = bpf.Label()
        items.append(bpf.Step(bpf.LOAD, bpf.argument_offset(match.argument, high=True)))
        items += [bpf.Jump(bpf.JUMP_EQUAL, 0, low, miss), low]
    items.append(bpf.Step(bpf.LOAD, bpf.argument_offset(match.argument)))
    if match.mask != policy_arguments.WORD:
        items.append(bpf.Step(bpf.AND, match.mask))
    return items + bpf.search(bpf.intervals(match.ranges, inside=hit, outside=miss))
