"""The assembler, and the door of the compiler: what is refused, what is kept."""

from __future__ import annotations

import ctypes.util
import os

import pytest

from launcher import bpf as assembler
from launcher import compiler, syscalls
from tests.seccomp import bpf

NATIVE = syscalls.MACHINE
ALLOW = 0x7FFF0000


def test_a_search_finds_the_interval_at_any_distance() -> None:
    for size in (1, 2, 3, 10, 100, 700):
        starts = sorted({0, *(number * number % (3 * size) for number in range(size))})
        labels = [assembler.Label() for _ in starts]
        items = [assembler.Step(assembler.LOAD, 0)]
        program = assembler.assemble(
            [
                *items,
                *assembler.search(list(zip(starts, labels, strict=True))),
                *(
                    item
                    for i, label in enumerate(labels)
                    for item in (label, assembler.Step(assembler.RETURN, i))
                ),
            ]
        )
        for number in range(3 * size + 2):
            expected = sum(start <= number for start in starts) - 1
            assert bpf.run(program, NATIVE, number).action == expected


def test_reading_back_refuses_a_program_that_looks_at_arguments() -> None:
    program = assembler.assemble(
        [
            assembler.Step(assembler.LOAD, assembler.argument_offset(0)),
            assembler.Step(assembler.RETURN, ALLOW),
        ]
    )
    with pytest.raises(ValueError, match="cannot read the instruction"):
        assembler.decisions(program, bpf.ARCH[NATIVE])


@pytest.mark.parametrize(("base", "relax"), [("none", ()), ("", ()), ("default", ("everything",))])
def test_an_unknown_policy_or_relaxation_is_refused(base: str, relax: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"^cannot "):
        compiler.compile_program(base, network=False, relax=relax)


def test_an_unknown_machine_or_call_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot filter system calls on riscv64"):
        compiler.number_of("riscv64", "read")
    with pytest.raises(ValueError, match="cannot find the number of raed"):
        compiler.number_of(NATIVE, "raed")


def test_a_policy_is_compiled_once() -> None:
    first = compiler.compile_program("strict", network=False, relax=("debug",))
    assert compiler.compile_program("strict", network=False, relax=("debug",)) is first


def test_find_library_is_itself_again_after_the_import() -> None:
    assert ctypes.util.find_library.__module__ == "ctypes.util"
    assert os.path.basename(ctypes.util.find_library.__code__.co_filename) == "util.py"
