"""The programs in force: what the running kernel answers to children that try."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import pathlib
import signal
import struct
import sys

import pytest

from launcher import bpf as assembler
from launcher import compiler, policy, seccomp, syscalls
from tests.seccomp import bpf, cases, child
from tests.seccomp.cases import POLICIES, Policy

pytestmark = pytest.mark.kernel

NATIVE = syscalls.MACHINE
ALLOW, KILL = 0x7FFF0000, 0x80000000
each_policy = pytest.mark.parametrize("chosen", POLICIES, ids=lambda p: p.name)

# Calls that the sweep over all numbers leaves out where the filter lets them through.
NOT_TRIED = {
    "exit": "the child would not answer",
    "exit_group": "the child would not answer",
    "fork": "two children would answer",
    "vfork": "two children would answer",
    "pause": "waits for a signal",
    "rt_sigreturn": "takes its registers from a stack that no signal has prepared",
    "sync": "waits for every disk of the machine",
    "uprobe": "the kernel answers SIGILL outside of its own trampoline",
    "uretprobe": "the kernel answers SIGILL outside of its own trampoline",
}
# Six times -1 is refused by every other call for a bad descriptor, pointer, size or flag.
HARMLESS = (2**64 - 1,) * 6
WORDS = {
    "kill": (0x7FFFFFFF, 0),  # -1 would be every process
    "msgget": (0x7B0C5A11, 0),  # all flags would make a queue that stays
}


def number_of(name: str) -> int:
    number = compiler.number_of(NATIVE, name)
    assert number is not None, name
    return number


@each_policy
def test_the_kernel_answers_every_number_as_the_interpreter_does(chosen: Policy) -> None:
    names = {compiler.number_of(NATIVE, name): name for name in chosen.verdicts}
    numbers = [*range(cases.LAST_NUMBER + 51), 0x3FFFFFFF, 0x7FFFFFFF, 0xFFFFFFFF]
    wanted: dict[child.Call, int] = {}
    for number in numbers:
        words = WORDS.get(names.get(number, ""), HARMLESS)
        action = bpf.run(chosen.program, NATIVE, number, *words).action
        if action != ALLOW or names[number] not in NOT_TRIED:
            wanted[number, words] = action
    passing = [call for call, action in wanted.items() if action == ALLOW]
    refused = [call for call, action in wanted.items() if action & 0x7FFF0000 == 0x50000]
    killed = [call for call, action in wanted.items() if action == KILL]
    assert len(passing) + len(refused) + len(killed) == len(wanted)
    assert child.errnos(chosen.program, passing) == child.errnos(None, passing)
    assert child.errnos(chosen.program, refused) == [wanted[c] & 0xFFFF for c in refused]
    assert {child.killed_by(chosen.program, n, *words) for n, words in killed} == {signal.SIGSYS}


@each_policy
def test_each_argument_row_holds_and_the_control_differs(chosen: Policy) -> None:
    rows = cases.rows_of(chosen)
    calls = [(number_of(row.call), row.words) for row in rows]
    inside, outside = child.errnos(chosen.program, calls), child.errnos(None, calls)
    for row, answer, control in zip(rows, inside, outside, strict=True):
        if not row.refused:
            assert answer == control, row
        else:
            assert answer == row.refused, row
            assert row.same or control != row.refused, row


@each_policy
def test_the_x32_abi_does_not_exist(chosen: Policy) -> None:
    calls = [(0x40000000 | number, ()) for number in (0, 39, 135, 512, 0x3FFFFFFF)]
    assert set(child.errnos(chosen.program, calls)) == {errno.ENOSYS}


# Call, and its words after the path: "path" stands for its address, "how" for struct open_how.
_CREATE = os.O_CREAT | os.O_WRONLY
MODE_SETTERS: list[tuple[str, tuple[int | str, ...]]] = [
    ("chmod", ("path", 0o6755)),
    ("fchmodat", (syscalls.AT_FDCWD, "path", 0o6755)),
    ("fchmodat2", (syscalls.AT_FDCWD, "path", 0o6755, 0)),
    ("creat", ("path", 0o6755)),
    ("open", ("path", _CREATE, 0o6755)),
    ("openat", (syscalls.AT_FDCWD, "path", _CREATE, 0o6755)),
    ("openat2", (syscalls.AT_FDCWD, "path", "how", 24)),
    ("mknod", ("path", 0o106755)),
    ("mknodat", (syscalls.AT_FDCWD, "path", 0o106755)),
]


def mode_after(program: bytes | None, call: str, words: tuple[int | str, ...], path: str) -> int:
    """Return the set-ID bits of the file at ``path`` after a child has made the call."""
    if "chmod" in call:
        os.close(os.open(path, _CREATE, 0o644))
    name = ctypes.create_string_buffer(path.encode())
    how = ctypes.create_string_buffer(struct.pack("QQQ", _CREATE, 0o6755, 0))
    addresses = {"path": ctypes.addressof(name), "how": ctypes.addressof(how)}
    numbers = tuple(addresses[w] if isinstance(w, str) else w for w in words)
    child.errnos(program, [(number_of(call), numbers)])
    if not os.path.exists(path):
        return 0
    mode = os.stat(path).st_mode & 0o6000
    os.unlink(path)
    return mode


@each_policy
@pytest.mark.parametrize(("call", "words"), MODE_SETTERS)
def test_no_call_leaves_a_set_user_id_file(
    chosen: Policy, call: str, words: tuple[int | str, ...], tmp_path: pathlib.Path
) -> None:
    if compiler.number_of(NATIVE, call) is None:
        pytest.skip(f"kernel: no {call}(2) on {NATIVE}")
    path = str(tmp_path / "file")
    assert mode_after(None, call, words, path) == 0o6000  # the control
    assert mode_after(chosen.program, call, words, path) == 0


def test_the_debug_policy_lets_a_process_be_traced() -> None:
    trace_me = [(number_of("ptrace"), (0, 0, 0, 0))]  # PTRACE_TRACEME
    by_name = {chosen.name: chosen.program for chosen in POLICIES}
    assert child.errnos(by_name["debug"], trace_me) == [0]
    assert child.errnos(by_name["default"], trace_me) == [errno.EPERM]
    assert child.killed_by(by_name["strict"], *trace_me[0][:1]) == signal.SIGSYS


@pytest.mark.skipif(NATIVE != "x86_64", reason="kernel: int 0x80 is of x86")
@each_policy
def test_a_foreign_abi_ends_the_process(chosen: Policy) -> None:
    def getpid_of_i386() -> bytes:
        code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        code.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")  # mov eax, 20; int 0x80; ret
        address = ctypes.addressof(ctypes.c_char.from_buffer(code))
        return struct.pack("?", ctypes.CFUNCTYPE(ctypes.c_int)(address)() == os.getpid())

    control, status = child.forked(None, getpid_of_i386)
    if status == signal.SIGSEGV:
        pytest.skip("kernel: no IA32_EMULATION")
    assert (control, status) == (b"\x01", 0)
    assert os.WTERMSIG(child.forked(chosen.program, getpid_of_i386)[1]) == signal.SIGSYS


@each_policy
def test_verify_is_content_under_each_policy(chosen: Policy) -> None:
    def ask() -> bytes:
        seccomp.verify()
        return b"content"

    assert child.forked(chosen.program, ask) == (b"content", 0)


def complaint(program: bytes | None) -> str:
    def ask() -> bytes:
        try:
            seccomp.verify()
        except PermissionError as error:
            return str(error).encode()
        return b""

    return child.forked(program, ask)[0].decode()


_CHROOT = number_of("chroot")
_PARTS = {
    "no rules": [(0, ALLOW), (_CHROOT, policy.EPERM), (_CHROOT + 1, ALLOW)],
    "no table": [(0, ALLOW)],
    "no default": [(0, ALLOW), (_CHROOT, policy.EPERM), (_CHROOT + 1, ALLOW)],
}


def weakened(change: str) -> bytes:
    return compiler.assemble(
        NATIVE, _PARTS[change], {} if change == "no rules" else POLICIES[0].rules
    )


@pytest.mark.parametrize(
    ("change", "named"),
    [("no rules", "chmod()"), ("no table", "chroot()"), ("no default", "clone3()")],
)
def test_verify_names_the_part_that_is_not_in_force(change: str, named: str) -> None:
    assert named in complaint(weakened(change))


def test_verify_complains_without_a_filter() -> None:
    assert complaint(None) == "cannot find the system-call filter in force: mode is 0"


@pytest.mark.parametrize("program", [b"", b"\0" * 8, b"\x06\0\0\0\0\0\xff\x7f" * 4097])
def test_load_refuses_what_is_no_program(program: bytes) -> None:
    def attempt() -> bytes:
        try:
            seccomp.load(program)
        except OSError as error:
            return struct.pack("i", error.errno or 0)
        return b""

    assert child.forked(None, attempt) == (struct.pack("i", errno.EINVAL), 0)


WORKLOAD = """
import asyncio, os, signal, subprocess, tempfile, threading, time

done = []
threads = [threading.Thread(target=done.append, args=(i,)) for i in range(8)]
[t.start() for t in threads]
[t.join() for t in threads]
assert sorted(done) == list(range(8))

async def talk():
    child = await asyncio.create_subprocess_exec("/bin/echo", "hello", stdout=-1)
    return (await child.communicate())[0]

assert asyncio.run(talk()) == b"hello\\n"
with tempfile.TemporaryDirectory() as directory:
    path = os.path.join(directory, "file")
    with open(path, "w") as file:
        os.fchmod(file.fileno(), 0o755)
    os.rename(path, path + "2")
    assert os.listdir(directory) == ["file2"]
signal.signal(signal.SIGALRM, lambda *_: done.append("alarm"))
signal.setitimer(signal.ITIMER_REAL, 0.01)
signal.pause()
assert done[-1] == "alarm"
print("all done", subprocess.run(["/bin/sh", "-c", "ls / | head -1 >/dev/null"]).returncode)
"""


@each_policy
def test_ordinary_programs_run(chosen: Policy) -> None:
    read_fd, write_fd = os.pipe()

    def become_python() -> bytes:
        os.dup2(write_fd, 1)
        seccomp.verify()
        argv = [b"python", b"-I", b"-S", b"-c", WORKLOAD.encode()]
        with open(os.path.realpath(sys.executable), "rb") as file:
            syscalls.execveat(file.fileno(), argv, [b"PATH=/usr/bin:/bin"])
        return b""

    status = child.forked(chosen.program, become_python)[1]
    os.close(write_fd)
    with os.fdopen(read_fd) as pipe:
        assert (pipe.read(), status) == ("all done 0\n", 0)


def test_what_a_filter_denies_stays_denied_after_a_second_filter() -> None:
    allow = assembler.assemble([assembler.Step(assembler.RETURN, ALLOW)])

    def ask() -> bytes:
        seccomp.load(allow)
        seccomp.verify()
        return b"content"

    assert child.forked(POLICIES[0].program, ask) == (b"content", 0)
