"""Which filter programs will this launcher need, compiled how?

All of them once, in a child process: libseccomp, what pyseccomp imports and the policy's own data
would else be part of the memory that each sandbox's init is a copy of.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
from collections.abc import Iterable

Key = tuple[str, bool, tuple[str, ...]]


def key(base: str, *, network: bool, relax: Iterable[str]) -> Key:
    """Return the name of one policy; the order of relaxations does not matter."""
    return base, network, tuple(sorted(set(relax)))


def compile_all(relaxations: Iterable[str]) -> dict[Key, bytes]:
    """Compile every policy that a plan may name under a ceiling with these relaxations.

    Raises:
        OSError: the child could not compile them.

    """
    read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        _compile_and_exit(write_fd, relaxations)
    os.close(write_fd)
    with open(read_fd, "rb") as answer:
        lines = answer.read().splitlines()
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0:
        raise OSError(5, "cannot compile the system-call policies")
    rows = [json.loads(line) for line in lines]
    return {key(row[0], network=row[1], relax=row[2]): bytes.fromhex(row[3]) for row in rows}


def _compile_and_exit(write_fd: int, relaxations: Iterable[str]) -> None:
    status = 1
    try:
        compiler = importlib.import_module("launcher.compiler")
        with open(write_fd, "w", encoding="ascii") as answer:
            for base, network, relax in _policies(relaxations):
                program = compiler.compile_program(base, network=network, relax=relax)
                answer.write(json.dumps([base, network, relax, program.hex()]) + "\n")
        status = 0
    finally:
        os._exit(status)


def _policies(relaxations: Iterable[str]) -> Iterable[Key]:
    names = sorted(set(relaxations))
    subsets = [
        subset
        for count in range(len(names) + 1)
        for subset in itertools.combinations(names, count)
    ]
    return itertools.product(("default", "strict"), (False, True), subsets)
