"""Does init start exactly what was approved, say the truth about it, and leave nothing?"""

from __future__ import annotations

import dataclasses
import os
import select
import signal

import pytest

from launcher import blank, lockdown, view
from launcher.plan import Created, Exited, Failed, Ready, Started
from tests.launcher.driver import PYTHON, Launcher, a_launcher, command, identity_of, kill

pytestmark = pytest.mark.kernel


@pytest.mark.parametrize("code", [0, 1, 2, 125, 137, 255])
def test_exit_statuses_are_told_truly(launcher: Launcher, code: int) -> None:
    result = launcher.run(["/bin/sh", "-c", f"exit {code}"])
    assert result.exited is not None
    assert result.exited.returncode == code


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV])
def test_signals_are_told_truly(launcher: Launcher, number: int) -> None:
    result = launcher.run(["/bin/sh", "-c", f"kill -{int(number)} $$"])
    assert result.exited is not None
    assert result.exited.returncode == -number


def test_started_comes_before_exited_and_only_after_exec(launcher: Launcher) -> None:
    result = launcher.run(["/usr/bin/true"])
    assert result.ready is not None
    assert result.started is not None
    assert result.failed is None


def test_another_file_under_the_approved_name_is_not_executed(
    launcher: Launcher, workspace: str
) -> None:
    plan, fds = launcher.plan(workspace)
    sandbox, _ = launcher.launch(plan, fds)
    swapped = dataclasses.replace(command(["/usr/bin/touch", f"{workspace}/ran"]))
    swapped = dataclasses.replace(swapped, identity=identity_of("/usr/bin/true"))
    os.close(sandbox.start(swapped))
    assert isinstance(sandbox.next(), Ready)
    said = sandbox.next()
    assert isinstance(said, Failed)
    assert said.step == "open the executable"
    sandbox.close()
    assert os.listdir(workspace) == []


def test_a_file_that_is_no_program_is_an_error_of_execveat(launcher: Launcher) -> None:
    result = launcher.run(["/usr/lib/os-release"])
    assert result.failed is not None
    assert result.failed.step == "execveat"
    assert result.failed.errno == 13
    assert result.exited is None


def test_a_script_is_run_by_its_pinned_interpreter(launcher: Launcher) -> None:
    script = next(
        path
        for name in sorted(os.listdir("/usr/bin"))
        if (path := f"/usr/bin/{name}") and _is_shell_script(path)
    )
    plan, fds = launcher.plan()
    sandbox, _ = launcher.launch(plan, fds)
    started = command(
        ["/bin/sh", "-n", script], script=script, script_identity=identity_of(script)
    )
    with open(sandbox.start(started), "rb") as output:
        assert output.read() == b""
    said = [sandbox.next() for _ in range(3)]
    assert isinstance(said[-1], Exited)
    assert said[-1].returncode == 0
    wrong = dataclasses.replace(started, script_identity=identity_of("/usr/bin/true"))
    os.close(sandbox.start(wrong))
    assert isinstance(sandbox.next(), Failed)
    sandbox.close()


def _is_shell_script(path: str) -> bool:
    if os.path.islink(path) or not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        return file.read(9) == b"#!/bin/sh"


def test_one_sandbox_runs_several_commands(launcher: Launcher) -> None:
    plan, fds = launcher.plan()
    sandbox, _ = launcher.launch(plan, fds)
    assert isinstance(sandbox.next(), Ready)
    said = b""
    for text in ("echo one > /tmp/note", "cat /tmp/note"):
        with open(sandbox.start(command(["/bin/sh", "-c", text])), "rb") as output:
            said = output.read()
        assert isinstance(sandbox.next(), Started)
        assert isinstance(sandbox.next(), Exited)
    assert said == b"one\n"
    assert sandbox.close().returncode == 0


def test_what_a_command_leaves_behind_is_ended_and_counted(launcher: Launcher) -> None:
    # A daemonised child that ignores signals and holds the output open.
    text = "(trap '' TERM HUP INT; setsid sleep 1000 & ) ; setsid sleep 1000 & exit 4"
    result = launcher.run(["/bin/sh", "-c", text])
    assert result.exited is not None
    assert result.exited.returncode == 4
    assert result.exited.survivors >= 2


def test_orphans_are_reaped_while_a_command_runs(launcher: Launcher) -> None:
    # R84: more orphans one after another than there may be processes at once.
    text = "i=0; while [ $i -lt 200 ]; do (true &) ; i=$((i+1)); done; echo done"
    result = launcher.run(["/bin/sh", "-c", text])
    assert result.output == b"done\n"


def test_a_forwarded_signal_reaches_the_whole_process_group(launcher: Launcher) -> None:
    plan, fds = launcher.plan()
    sandbox, _ = launcher.launch(plan, fds)
    read_fd = sandbox.start(command(["/bin/sh", "-c", "echo up; sleep 1000"]))
    assert os.read(read_fd, 3) == b"up\n"
    sandbox.forward("c", signal.SIGTERM)
    said = [sandbox.next() for _ in range(3)]
    assert isinstance(said[-1], Exited)
    assert said[-1].returncode == -signal.SIGTERM
    os.close(read_fd)
    sandbox.close()


def test_a_stopped_command_dies_with_its_sandbox(launcher: Launcher) -> None:
    plan, fds = launcher.plan()
    sandbox, _ = launcher.launch(plan, fds)
    read_fd = sandbox.start(command(["/bin/sh", "-c", "echo up; kill -STOP $$"]))
    assert os.read(read_fd, 3) == b"up\n"
    sandbox.close()
    assert os.read(read_fd, 1) == b""  # nobody holds the other end any more
    os.close(read_fd)


def test_closing_the_channel_ends_everything_inside(launcher: Launcher) -> None:
    plan, fds = launcher.plan()
    sandbox, _ = launcher.launch(plan, fds)
    read_fd = sandbox.start(command(["/bin/sh", "-c", "echo up; setsid sleep 1000 & sleep 1000"]))
    assert os.read(read_fd, 3) == b"up\n"
    sandbox.close()
    poll = select.poll()
    poll.register(read_fd, select.POLLIN | select.POLLHUP)
    assert poll.poll(10_000) == [(read_fd, select.POLLHUP)]
    os.close(read_fd)


VIEW_STEPS = [name for name, _ in (*blank.STEPS, *view.STEPS)]
LOCKDOWN_STEPS = [name for name, _ in lockdown.STEPS]


def _refuse(_: object) -> None:
    raise OSError(5, "broken on purpose")


@pytest.mark.parametrize("broken", VIEW_STEPS)
def test_a_failing_step_of_the_view_runs_nothing(workspace: str, broken: str) -> None:
    def sabotage() -> None:
        blank.STEPS = tuple((n, _refuse if n == broken else s) for n, s in blank.STEPS)
        view.STEPS = tuple((n, _refuse if n == broken else s) for n, s in view.STEPS)

    with a_launcher(sabotage=sabotage) as launcher:
        result = launcher.run(["/usr/bin/touch", f"{workspace}/ran"], workspace)
    assert result.failed is not None
    assert (result.failed.step, result.failed.errno) == (broken, 5)
    assert result.started is None
    assert os.listdir(workspace) == []


@pytest.mark.parametrize("broken", LOCKDOWN_STEPS)
def test_a_failing_step_of_the_lockdown_runs_nothing(workspace: str, broken: str) -> None:
    def sabotage() -> None:
        lockdown.STEPS = tuple((n, _refuse if n == broken else s) for n, s in lockdown.STEPS)

    with a_launcher(sabotage=sabotage) as launcher:
        result = launcher.run(["/usr/bin/touch", f"{workspace}/ran"], workspace)
    assert result.failed is not None
    assert (result.failed.step, result.failed.errno) == (broken, 5)
    assert result.failed.command == "c"
    assert result.started is None
    assert os.listdir(workspace) == []


def test_a_child_killed_before_exec_is_not_reported_as_started(workspace: str) -> None:
    def sabotage() -> None:
        lockdown.STEPS = (*lockdown.STEPS, ("die", lambda _: os.kill(os.getpid(), 9)))

    with a_launcher(sabotage=sabotage) as launcher:
        result = launcher.run(["/usr/bin/touch", f"{workspace}/ran"], workspace)
    assert result.started is None
    assert result.failed is not None
    assert result.failed.step == "execveat"
    assert os.listdir(workspace) == []


def test_init_killed_from_the_host_ends_the_sandbox(launcher: Launcher) -> None:
    plan, fds = launcher.plan()
    sandbox, _ = launcher.launch(plan, fds)
    assert isinstance(sandbox.result.created, Created)
    read_fd = sandbox.start(command([PYTHON, "-c", "print('up', flush=True); input()"]))
    os.read(read_fd, 1)
    kill(sandbox.pidfd)
    assert sandbox.close().returncode == -signal.SIGKILL
    while os.read(read_fd, 4096):
        pass
    os.close(read_fd)
