"""Does the fork server hold its ceiling, its deadlines, and nothing after its end?"""

from __future__ import annotations

import dataclasses
import os
import signal

import pytest

from launcher import channel, paths
from launcher.plan import Bind, Created, Failed, Limits, Ready, Refused
from tests.launcher.driver import CEILING, Launcher, a_launcher, command, wait_for_end

pytestmark = pytest.mark.kernel


def test_the_launcher_is_single_threaded_and_hidden(launcher: Launcher) -> None:
    assert os.listdir(f"/proc/{launcher.pid}/task") == [str(launcher.pid)]
    # The files of a process that is not dumpable belong to root (proc(5)).
    assert os.stat(f"/proc/{launcher.pid}/environ").st_uid == 0


@pytest.mark.privileged  # only root can look into a process that is not dumpable
def test_descriptors_of_the_launcher_do_not_grow(launcher: Launcher) -> None:
    for _ in range(3):
        launcher.run(["/usr/bin/true"])
    before = len(os.listdir(f"/proc/{launcher.pid}/fd"))
    for _ in range(5):
        launcher.run(["/usr/bin/true"])
        launcher.run(["/usr/lib/os-release"])
    assert len(os.listdir(f"/proc/{launcher.pid}/fd")) == before


def _bind(launcher: Launcher, path: str, **changes: object) -> Created | Refused | Failed | None:
    plan, fds = launcher.plan()
    fd = os.open(path, os.O_PATH)
    fds.append(fd)
    bind = Bind(descriptor=len(fds), identity=paths.identity(fd), target="/shown")
    bind = dataclasses.replace(bind, **changes)  # type: ignore[arg-type]  # test rows
    sandbox, _ = launcher.launch(dataclasses.replace(plan, binds=(*plan.binds, bind)), fds)
    if isinstance(sandbox.result.created, Created):
        sandbox.close()
    else:
        sandbox.channel.close()
    return sandbox.result.created


@pytest.mark.parametrize("path", ["/proc", "/proc/sys", "/sys", "/run", "/"])
def test_a_bind_in_or_above_what_is_denied_is_refused(launcher: Launcher, path: str) -> None:
    said = _bind(launcher, path)
    assert isinstance(said, Refused)
    assert "is in or above" in said.reason


def test_a_bind_of_another_object_is_refused(launcher: Launcher) -> None:
    wrong = dataclasses.replace(paths.identity(os.open("/usr", os.O_PATH)), ino=1)
    said = _bind(launcher, "/usr/bin", identity=wrong)
    assert isinstance(said, Failed)
    assert "another object" in said.detail


def test_a_name_that_means_something_else_by_now_is_refused(
    launcher: Launcher, workspace: str
) -> None:
    os.mkdir(f"{workspace}/granted")
    fd = os.open(f"{workspace}/granted", os.O_PATH)
    os.rename(f"{workspace}/granted", f"{workspace}/moved")
    os.rmdir(f"{workspace}/moved")
    os.mkdir(f"{workspace}/granted")
    plan, fds = launcher.plan()
    bind = Bind(descriptor=len(fds) + 1, identity=paths.identity(fd), target="/shown")
    plan = dataclasses.replace(plan, binds=(*plan.binds, bind))
    sandbox, _ = launcher.launch(plan, [*fds, fd])
    assert isinstance(sandbox.result.created, Failed)
    sandbox.channel.close()


def test_a_device_is_shown_only_if_the_ceiling_lists_it(launcher: Launcher) -> None:
    assert isinstance(_bind(launcher, "/dev/full"), Created)
    said = _bind(launcher, "/dev/null")
    assert isinstance(said, Refused)
    assert "is not among" in said.reason


def test_a_socket_or_fifo_is_never_bound(launcher: Launcher, workspace: str) -> None:
    os.mkfifo(f"{workspace}/fifo")
    assert isinstance(_bind(launcher, f"{workspace}/fifo"), Refused)


def test_the_deadline_is_the_launchers_own(launcher: Launcher) -> None:
    limits = Limits(memory_bytes=256 << 20, pids=16, life_ms=300)
    plan, fds = launcher.plan(limits=limits)
    sandbox, _ = launcher.launch(plan, fds)
    read_fd = sandbox.start(command(["/bin/sh", "-c", "trap '' TERM; sleep 1000"]))
    assert os.read(read_fd, 1) == b""
    os.close(read_fd)
    gone = launcher.wait_gone(plan.sandbox)
    assert gone.overdue
    assert gone.returncode == -signal.SIGKILL
    sandbox.channel.close()


def test_destroy_ends_a_sandbox(launcher: Launcher) -> None:
    plan, fds = launcher.plan()
    sandbox, _ = launcher.launch(plan, fds)
    assert isinstance(sandbox.next(), Ready)
    launcher.destroy(plan.sandbox)
    gone = launcher.wait_gone(plan.sandbox)
    assert gone.returncode == -signal.SIGKILL
    assert not gone.overdue
    sandbox.channel.close()


def test_the_number_of_sandboxes_is_bounded() -> None:
    with a_launcher(ceiling=dataclasses.replace(CEILING, sandboxes=1)) as launcher:
        plan, fds = launcher.plan()
        first, _ = launcher.launch(plan, fds)
        plan, fds = launcher.plan()
        second, _ = launcher.launch(plan, fds)
        assert isinstance(second.result.created, Refused)
        second.channel.close()
        first.close()


@pytest.mark.parametrize("end", ["channel closed", "SIGKILL"])
def test_the_end_of_the_launcher_is_the_end_of_every_sandbox(end: str) -> None:
    launcher = Launcher()
    inits = []
    outputs = []
    for _ in range(3):
        plan, fds = launcher.plan()
        sandbox, _ = launcher.launch(plan, fds)
        assert isinstance(sandbox.result.created, Created)
        read_fd = sandbox.start(command(["/bin/sh", "-c", "echo up; setsid sleep 1000"]))
        assert os.read(read_fd, 3) == b"up\n"
        inits.append(sandbox)
        outputs.append(read_fd)
    if end == "SIGKILL":
        os.kill(launcher.pid, signal.SIGKILL)
    launcher.close()
    for sandbox, read_fd in zip(inits, outputs, strict=True):
        wait_for_end(-1, sandbox.pidfd)
        assert os.read(read_fd, 1) == b""
        os.close(read_fd)
        os.close(sandbox.pidfd)
        sandbox.channel.close()


def test_no_cgroup_is_left(launcher: Launcher) -> None:
    if launcher.hello.cgroup == "none":
        assert launcher.hello.cgroup_reason
        return
    result = launcher.run(["/usr/bin/true"])
    assert result.gone is not None
    assert result.gone.leftover == ""
    assert result.gone.usage is not None
    assert result.gone.usage.memory_peak_bytes > 0


def test_memory_is_bounded_by_the_cgroup_where_there_is_one(launcher: Launcher) -> None:
    limits = Limits(memory_bytes=64 << 20, pids=16, life_ms=60_000)
    program = "a = bytearray(200 << 20); print(len(a))"
    result = launcher.run(["/usr/bin/python3", "-I", "-c", program], limits=limits)
    assert result.gone is not None
    if launcher.hello.cgroup == "none":
        assert result.exited is not None  # the daemon's watchdog is what holds then
        assert result.exited.returncode == 0
        return
    # The command goes first. When it is not gone fast enough the kernel takes init as well, and
    # what is then known is what the launcher says.
    ended = result.exited or result.gone
    assert ended.returncode == -signal.SIGKILL
    assert ended.usage is not None
    assert ended.usage.oom_kills > 0


def test_a_required_cgroup_that_is_not_there_is_a_failure(launcher: Launcher) -> None:
    result = launcher.run(["/usr/bin/true"], cgroup_required=True)
    if launcher.hello.cgroup == "none":
        assert isinstance(result.created, Failed)
    else:
        assert result.exited is not None


def test_garbage_on_the_control_channel_ends_the_launcher() -> None:
    launcher = Launcher()
    launcher.control.send(b'{"type":"Launch","plan":{"evil":1}}')
    assert channel.receive(launcher.control, Created) is None
    launcher.close()
