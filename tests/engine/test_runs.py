"""Does the engine, with the real launcher, say truthfully how real commands ended?"""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest

from launcher.plan import Created, Exited
from sandboxd.protocol import Event, Run
from sandboxd.run import Life
from sandboxd.sandbox import FromInit, FromLauncher
from tests.engine.driver import PYTHON, Bench, Told, bounds, prepare, with_bench

pytestmark = pytest.mark.kernel

SPIN = "while True: pass"
FORKED_SPIN = """
import os
for _ in range(3):
    os.fork()
while True: pass
"""
HOG = """
held = []
while True: held.append(bytearray(b"x" * (1 << 20)))
"""
SHARED_HOG = """
import mmap, os
held = mmap.mmap(-1, 1 << 30)
for _ in range(3):
    os.fork()
offset = 0
while True:
    held[offset] = 1
    offset = (offset + 4096) % (1 << 30)
"""
FILL = """
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
open("/tmp/x", "wb").write(bytes(2 << 20))
"""
BOMB = """
import os, signal, sys
try:
    while True:
        if os.fork() == 0:
            signal.pause()
except OSError as error:
    sys.exit(error.errno)
"""
POLITE = """
import os, signal, sys
both = {signal.SIGTERM, signal.SIGUSR1}
signal.pthread_sigmask(signal.SIG_BLOCK, both)
os.write(1, b"up\\n")
signal.sigwait(both)
os.write(1, b"bye\\n")
sys.exit(3)
"""
DEAF = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("deaf", flush=True)
while True: signal.pause()
"""


async def some(bench: Bench, *work: Any) -> list[Run]:
    """Run several at once, a few at a time."""
    runs: list[Run] = []
    for start in range(0, len(work), 4):
        runs += await asyncio.gather(*(each(bench) for each in work[start : start + 4]))
    return runs


def test_exit_statuses_and_signals_are_the_commands_own() -> None:
    codes, numbers = (0, 1, 2, 63, 125, 126, 127, 128, 137, 255), (1, 2, 6, 9, 11, 13, 15, 24)

    async def body(bench: Bench) -> None:
        runs = await some(bench, *(lambda b, c=c: b.shell(f"exit {c}") for c in codes))
        assert [(run.status, run.exit_code) for run in runs] == [("exited", c) for c in codes]
        assert all(run.signal is None and run.limit is None for run in runs)
        runs = await some(bench, *(lambda b, n=n: b.shell(f"kill -{n} $$") for n in numbers))
        assert [(run.status, run.signal) for run in runs] == [("signaled", n) for n in numbers]
        assert all(run.exit_code is None and run.limit is None for run in runs)

    with_bench(body)


LIMITS: list[tuple[str, list[str], dict[str, Any], tuple[object, ...]]] = [
    ("wall", ["-c", "import signal; signal.pause()"], {"wall_ms": 300}, ("timed_out", "wall", 15)),
    ("wall, SIGTERM ignored", ["-c", DEAF], {"wall_ms": 300, "grace_ms": 200},
     ("timed_out", "wall", 9)),
    ("wall, no grace", ["-c", DEAF], {"wall_ms": 300, "grace_ms": 0}, ("timed_out", "wall", 9)),
    ("one process spins", ["-c", SPIN], {"cpu_ms": 600}, ("limit_exceeded", "cpu", 9)),
    ("eight processes spin", ["-c", FORKED_SPIN], {"cpu_ms": 1000}, ("limit_exceeded", "cpu", 9)),
    ("memory of one", ["-c", HOG], {"memory_bytes": 64 << 20}, ("limit_exceeded", "memory", 9)),
    ("memory shared by many", ["-c", SHARED_HOG], {"memory_bytes": 96 << 20},
     ("limit_exceeded", "memory", 9)),
    ("output", ["-c", "while True: print('x' * 4096)"],
     {"output_total_bytes": 1 << 20}, ("limit_exceeded", "output", 9)),
    ("file size", ["-c", "open('/tmp/x', 'wb').write(bytes(2 << 20))"],
     {"file_size_bytes": 1 << 20}, ("exited", None, None)),
    ("file size, by signal", ["-c", FILL],
     {"file_size_bytes": 1 << 20}, ("limit_exceeded", "file_size", 25)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("why", "arguments", "limits", "expected"), LIMITS, ids=[row[0] for row in LIMITS]
)
def test_each_limit_ends_a_run_under_its_own_name(
    why: str, arguments: list[str], limits: dict[str, Any], expected: tuple[object, ...]
) -> None:
    async def body(bench: Bench) -> Run:
        return await bench.run([PYTHON, "-I", "-S", *arguments], limits=bounds(**limits))

    run = with_bench(body)
    assert (run.status, run.limit, run.signal) == expected, (why, run)
    if run.limit is not None:
        assert run.usage.limits_hit == (run.limit,), why
        assert run.usage.user_ms >= 0, "init reported what it used"


def test_one_process_that_spins_gets_sigxcpu_where_the_limit_is_in_whole_seconds() -> None:
    program = f"import signal, sys; signal.signal(24, lambda *_: sys.exit(24))\n{SPIN}"
    limits = bounds(cpu_ms=2000)

    async def body(bench: Bench) -> Run:
        return await bench.python(program, limits=limits)

    run = with_bench(body)
    assert (run.status, run.exit_code) in {("exited", 24), ("limit_exceeded", 24)}, run


def test_a_fork_bomb_is_bounded_and_named_where_the_kernel_counts() -> None:
    async def body(bench: Bench) -> tuple[Run, str]:
        run = await bench.python(BOMB, limits=bounds(pids=8))
        return run, bench.engine.hello.cgroup

    run, cgroup = with_bench(body)
    assert run.exit_code == 11  # EAGAIN
    assert run.usage.survivors >= 7
    if cgroup == "none":  # only the program knows why it ended: that is what is said
        assert (run.status, run.limit) == ("exited", None)
    else:
        assert (run.status, run.limit) == ("limit_exceeded", "pids")


def test_a_handled_sigterm_keeps_its_exit_status_and_its_last_words() -> None:
    async def body(bench: Bench) -> Run:
        return await bench.python(POLITE, limits=bounds(wall_ms=1000, grace_ms=9000))

    run = with_bench(body)
    assert (run.status, run.limit, run.exit_code, run.signal) == ("timed_out", "wall", 3, 15)
    assert run.stdout.text() == "up\nbye\n"


def test_cancelling_ends_the_command_even_one_that_does_not_listen() -> None:
    async def body(bench: Bench) -> Run:
        told = Told()
        prepared = prepare([PYTHON, "-I", "-S", "-c", DEAF], limits=bounds(grace_ms=100))
        name, running = bench.start(prepared, told)
        await told.printed(b"deaf\n")
        assert bench.engine.running == 1
        assert bench.engine.cancel(name)
        run = await running
        assert not bench.engine.cancel(name)
        assert not bench.engine.signal(name, signal.SIGTERM)
        assert bench.engine.running == 0
        return run

    run = with_bench(body)
    assert (run.status, run.signal, run.limit) == ("cancelled", 9, None)


def test_a_run_cancelled_before_it_starts_was_cancelled_and_nothing_else() -> None:
    async def body(bench: Bench) -> Run:
        name, running = bench.start(prepare(["/bin/sh", "-c", "echo no"]), Told())
        await asyncio.sleep(0)
        assert bench.engine.cancel(name)
        return await running

    run = with_bench(body)
    assert run.status == "cancelled"
    assert run.exit_code is None


def test_a_signal_reaches_the_command() -> None:
    async def body(bench: Bench) -> Run:
        told = Told()
        name, running = bench.start(prepare([PYTHON, "-I", "-S", "-c", POLITE]), told)
        await told.printed(b"up\n")
        assert bench.engine.signal(name, signal.SIGUSR1)
        return await running

    run = with_bench(body)
    assert (run.status, run.exit_code, run.stdout.text()) == ("exited", 3, "up\nbye\n")


def test_a_grandchild_that_holds_the_output_delays_nothing() -> None:
    script = (
        "(trap '' TERM; exec 3>&1; setsid sh -c 'while :; do read x; done < /dev/zero') & echo a"
    )

    async def body(bench: Bench) -> Run:
        return await bench.shell(script)

    run = with_bench(body)
    assert (run.status, run.exit_code, run.stdout.text()) == ("exited", 0, "a\n")
    assert run.usage.survivors >= 1


def test_the_end_of_the_output_is_not_the_end_of_the_command() -> None:
    async def body(bench: Bench) -> Run:
        read_fd, write_fd = os.pipe()
        told = Told()
        prepared = prepare(["/bin/sh", "-c", "echo x; exec >&- 2>&-; read y; exit 5"])
        _, running = bench.start(prepared, told, stdin_fd=read_fd)
        await told.printed(b"x\n")
        assert not running.done()
        os.write(write_fd, b"go\n")
        run = await running
        os.close(write_fd)
        os.close(read_fd)
        return run

    run = with_bench(body)
    assert (run.status, run.exit_code, run.stdout.text()) == ("exited", 5, "x\n")


def test_standard_input_is_empty_unless_one_is_given() -> None:
    async def body(bench: Bench) -> tuple[Run, Run]:
        read_fd, write_fd = os.pipe()
        os.write(write_fd, b"given\n")
        os.close(write_fd)
        _, running = bench.start(prepare(["/bin/cat"]), Told(), stdin_fd=read_fd)
        given = await running
        os.close(read_fd)
        return await bench.run(["/bin/cat"]), given

    empty, given = with_bench(body)
    assert (empty.status, empty.exit_code, empty.stdout.data) == ("exited", 0, "")
    assert given.stdout.text() == "given\n"


def test_events_come_in_order_and_the_record_has_the_same_output() -> None:
    told = Told()

    async def body(bench: Bench) -> Run:
        return await bench.shell("echo out; echo err >&2", told=told)

    run = with_bench(body)
    kinds = told.kinds()
    assert (kinds[0], kinds[-1]) == ("started", "ended")
    assert told.events[0].pid > 1
    assert told.output("stdout") == run.stdout.bytes() == b"out\n"
    assert told.output("stderr") == run.stderr.bytes() == b"err\n"


def test_the_wall_limit_holds_while_the_client_takes_nothing() -> None:
    async def body(bench: Bench) -> Run:
        async def wait(event: Event) -> None:
            if event.kind == "output":
                await asyncio.Event().wait()

        limits = bounds(wall_ms=400, output_bytes=8 << 20)
        told = Told(act=wait)
        name, running = bench.start(prepare(["/usr/bin/yes"], limits=limits), told)
        await told.printed(b"y")
        await end_of(told.events[0].pid)
        assert bench.engine.cancel(name)  # now only the client keeps it from its record
        return await running

    run = with_bench(body)
    assert (run.status, run.limit) == ("timed_out", "wall")
    assert 0 < run.stdout.total_bytes < 8 << 20, "it was held up, and its last words were read"


async def end_of(pid: int) -> None:
    loop, pidfd, ended = asyncio.get_running_loop(), os.pidfd_open(pid), asyncio.Event()
    loop.add_reader(pidfd, ended.set)
    await ended.wait()
    loop.remove_reader(pidfd)
    os.close(pidfd)


def test_a_client_that_is_only_slow_gets_every_event() -> None:
    async def body(bench: Bench) -> tuple[Run, Told]:
        told, resume = Told(), asyncio.Event()
        told.act = lambda event: resume.wait() if event.kind == "output" else None
        prepared = prepare(["/usr/bin/head", "-c", "1000000", "/dev/zero"],
                           limits=bounds(output_bytes=1 << 20, output_keep="head"))  # fmt: skip
        _, running = bench.start(prepared, told)
        await told.printed(b"\0")
        resume.set()
        return await running, told

    run, told = with_bench(body)
    assert run.ok
    assert told.output() == run.stdout.bytes() == bytes(1_000_000)


def test_the_record_says_what_ran_and_under_what() -> None:
    async def body(bench: Bench) -> tuple[Run, Any]:
        return await bench.run(["/bin/echo", "hi"]), bench.engine.hello

    run, hello = with_bench(body)
    assert run.ok
    assert (run.id, run.command, run.proposal, run.grant) == ("run_1", "test", "prop_1", "grant_1")
    assert (run.argv, run.reason, run.uid) == (("/bin/echo", "hi"), "a test", os.getuid())
    assert run.digest == "d" * 64
    assert run.executable is not None
    assert run.executable.ino == os.stat("/bin/echo").st_ino
    assert run.effective is not None
    assert {"landlock", "seccomp", "capabilities", "user_ns"} <= set(run.effective.layers)
    assert run.effective.landlock_abi == hello.landlock_abi
    if hello.cgroup == "none":
        assert run.effective.limits == ("rlimits", "watchdog")
        assert any(each.startswith("limits:no-cgroup") for each in run.effective.degraded)
    else:
        assert any(each.startswith("cgroup-") for each in run.effective.limits)
    expected_uid = 2_000_000_000 if hello.as_root else os.getuid()
    assert run.effective.host_uid == expected_uid
    assert run.setup_ms > 0
    assert run.wall_ms > 0


def test_processor_time_that_nobody_waits_for_counts_too() -> None:
    program = """
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel then reaps, and counts for nobody
while True:
    children = [os.fork() for _ in range(2)]
    if 0 in children:
        while time.process_time() < 0.5: pass
        os._exit(0)
    try:
        while True: os.wait()
    except ChildProcessError:
        pass
"""

    async def body(bench: Bench) -> Run:
        return await bench.python(program, limits=bounds(cpu_ms=1500, wall_ms=25_000))

    run = with_bench(body)
    assert (run.status, run.limit) == ("limit_exceeded", "cpu"), run


def test_a_command_may_end_before_the_launcher_has_reported_its_birth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held: list[tuple[Life, Created, list[int]]] = []
    on_launcher, on_init_message = Life.on_launcher, Life._on_init_message

    def hold(self: Life, message: FromLauncher, fds: list[int]) -> None:
        if isinstance(message, Created):
            held.append((self, message, fds))
        else:
            on_launcher(self, message, fds)

    def release(self: Life, message: FromInit) -> None:
        on_init_message(self, message)
        if isinstance(message, Exited):
            on_launcher(*held.pop())

    monkeypatch.setattr(Life, "on_launcher", hold)
    monkeypatch.setattr(Life, "_on_init_message", release)
    told = Told()

    async def body(bench: Bench) -> Run:
        return await bench.shell("echo quick; exit 3", told=told)

    run = with_bench(body)
    assert (run.status, run.exit_code, run.stdout.text()) == ("exited", 3, "quick\n")
    assert told.kinds() == ["started", "output", "ended"]
