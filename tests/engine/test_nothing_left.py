"""Does anything stay behind: memory, descriptors, processes, cgroups, runs without an end?"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import signal

import psutil  # type: ignore[import-untyped]  # it ships no annotations
import pytest

from sandboxd.engine import Engine
from sandboxd.errors import SetupFailed, Unavailable
from sandboxd.protocol import Run
from tests.engine.driver import CEILING, PYTHON, Bench, Told, bounds, prepare, with_bench

pytestmark = pytest.mark.kernel

WAIT = [PYTHON, "-I", "-S", "-c", "import signal; print('up', flush=True); signal.pause()"]


def descriptors() -> list[str]:
    with os.scandir("/proc/self/fd") as entries:
        names = sorted(os.readlink(entry.path) for entry in entries)
    return [re.sub(r"\[[0-9]+\]", "", name) for name in names]


def cgroups_of(launcher_pid: int) -> set[str]:
    """Find the leaves of one launcher, which has a directory of its own in each hierarchy."""
    found: set[str] = set()
    for root in ("/sys/fs/cgroup/memory", "/sys/fs/cgroup/pids", "/sys/fs/cgroup"):
        for directory, names, _ in os.walk(root):
            if os.path.basename(directory).startswith(f"sandboxd.{launcher_pid}."):
                found.update(os.path.join(directory, name) for name in names)
    return found


def reset_peak() -> None:
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")  # proc_pid_clear_refs(5)


def peak_rss_bytes() -> int:
    with open("/proc/self/status", encoding="ascii") as file:
        return int(re.search(r"VmHWM:\s+(\d+) kB", file.read())[1]) << 10  # type: ignore[index]  # it is there


def test_two_gibibytes_of_output_take_no_memory() -> None:
    size = 2 << 30

    async def body(bench: Bench) -> tuple[Run, int]:
        await bench.run(["/bin/true"])  # whatever is imported or allocated once
        reset_peak()
        before = peak_rss_bytes()
        run = await bench.run(
            ["/usr/bin/head", "-c", str(size), "/dev/zero"], limits=bounds(wall_ms=55_000)
        )
        return run, peak_rss_bytes() - before

    run, growth = with_bench(body)
    assert run.ok, run
    assert run.stdout.total_bytes == size
    assert run.stdout.dropped_bytes == size - (64 << 10)
    assert growth < 16 << 20
    digest, block = hashlib.sha256(), bytes(1 << 24)
    for _ in range(size >> 24):
        digest.update(block)
    assert run.stdout.sha256 == digest.hexdigest()


def test_after_many_runs_nothing_is_left() -> None:
    async def several(bench: Bench) -> None:
        runs = await asyncio.gather(
            *(bench.shell(f"echo {n}; sleep 0 & exit {n}") for n in range(8)),
            bench.python("raise SystemExit(9)", limits=bounds(output_bytes=1)),
            bench.start(prepare(WAIT, limits=bounds(wall_ms=100, grace_ms=0)), Told())[1],
        )
        assert [run.exit_code for run in runs] == [*range(8), 9, None]
        with pytest.raises(SetupFailed):
            await bench.run(["/bin/true"], limits=bounds(pids=100_000))

    async def body(bench: Bench) -> tuple[list[str], list[str]]:
        await several(bench)
        before = descriptors()
        for _ in range(3):
            await several(bench)
        return before, descriptors()

    outside = descriptors()
    before, after = with_bench(body)
    assert before == after
    assert descriptors() == outside
    assert psutil.Process().children() == []


def test_no_process_and_no_cgroup_outlives_the_engine() -> None:
    async def body() -> tuple[int, psutil.Process, set[str]]:
        bench, told = Bench(), Told()
        await bench.engine.start()
        pid = bench.engine.hello.pid
        _, running = bench.start(prepare(WAIT), told)
        await told.printed(b"up\n")
        init, there = psutil.Process(told.events[0].pid), cgroups_of(pid)
        await bench.engine.stop()
        assert (await running).status == "lost"
        return pid, init, there

    launcher_pid, init, there = asyncio.run(body())
    assert not init.is_running()
    assert cgroups_of(launcher_pid) == set()
    if os.geteuid() == 0:
        assert there, "there were some while it ran"
    assert psutil.Process().children() == []


def test_a_task_that_is_cancelled_leaves_no_process() -> None:
    async def body(bench: Bench) -> None:
        told, before = Told(), descriptors()
        _, running = bench.start(prepare(WAIT), told)
        await told.printed(b"up\n")
        init = psutil.Process(told.events[0].pid)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert bench.engine.running == 0
        assert descriptors() == before
        assert (await bench.shell("exit 4")).exit_code == 4  # the launcher has buried it by now
        assert not init.is_running()

    with_bench(body)


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8, 13, 21, 34])
def test_a_task_cancelled_at_any_moment_leaves_no_descriptor(turns: int) -> None:
    async def body(bench: Bench) -> None:
        before = descriptors()
        _, running = bench.start(prepare(["/bin/true"]), Told())
        for _ in range(turns):
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait({running})
        if turns == 0:  # it never ran, so it never took the request over
            return
        assert (await bench.shell("exit 4")).exit_code == 4
        assert descriptors() == before

    with_bench(body)


def test_when_the_launcher_dies_its_runs_are_lost_and_a_new_one_takes_over() -> None:
    async def body(bench: Bench) -> None:
        told, first = Told(), bench.engine.hello.pid
        _, running = bench.start(prepare(WAIT), told)
        await told.printed(b"up\n")
        init = psutil.Process(told.events[0].pid)
        os.kill(first, signal.SIGKILL)
        run = await running
        assert (run.status, run.exit_code, run.signal) == ("lost", None, None)
        assert run.stdout.text() == "up\n"
        assert (await bench.shell("exit 6")).exit_code == 6
        assert bench.engine.launcher_restarts == 1
        assert bench.engine.hello.pid != first
        assert not psutil.pid_exists(first)
        assert not init.is_running() or init.status() == psutil.STATUS_ZOMBIE

    with_bench(body)


def test_what_the_launcher_had_not_started_when_it_died_can_be_tried_again() -> None:
    async def body(bench: Bench) -> None:
        os.kill(bench.engine.hello.pid, signal.SIGSTOP)  # so that it starts nothing any more
        _, running = bench.start(prepare(["/bin/true"]), Told())
        for _ in range(10):
            await asyncio.sleep(0)
        os.kill(bench.engine.hello.pid, signal.SIGKILL)
        with pytest.raises(Unavailable):
            await running
        assert (await bench.run(["/bin/true"])).ok

    with_bench(body)


def test_an_init_that_is_killed_from_outside_is_no_exit_of_the_command() -> None:
    async def body(bench: Bench) -> Run:
        told = Told()
        _, running = bench.start(prepare(WAIT), told)
        await told.printed(b"up\n")
        os.kill(told.events[0].pid, signal.SIGKILL)
        return await running

    run = with_bench(body)
    assert run.signal == signal.SIGKILL
    assert run.status in {"signaled", "lost"}
    assert run.limit is None


def test_twenty_runs_at_once_do_not_share_anything() -> None:
    script = "echo $0 > /tmp/mine; cat /tmp/mine; ls /tmp; ls /dev/shm"

    async def body(bench: Bench) -> list[Run]:
        work = (bench.run(["/bin/sh", "-c", script, f"r{n}"]) for n in range(20))
        return await asyncio.gather(*work)

    runs = with_bench(body)
    assert [run.stdout.text() for run in runs] == [f"r{n}\nmine\n" for n in range(20)]


def test_an_engine_without_a_launcher_says_that_it_is_not_available() -> None:
    async def body() -> None:
        engine = Engine(CEILING)
        await engine.start()
        await engine.stop()
        prepared = prepare(["/bin/true"])
        with pytest.raises(Unavailable):
            await engine.run(
                prepared,
                run_id="run_1",
                proposal="",
                grant="",
                uid=0,
                stdin_fd=None,
                on_event=Told(),
            )

    before = descriptors()
    asyncio.run(body())
    assert descriptors() == before
