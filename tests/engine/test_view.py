"""Does a run see the workspace, its grants and its program, and is anything missing a fault?"""

from __future__ import annotations

import dataclasses
import os
import shutil
import stat

import pytest

from launcher import paths
from sandboxd.errors import SetupFailed
from sandboxd.prepared import OpenedExecutable, Prepared
from sandboxd.profile_sections import RequireSection, ViewSection
from sandboxd.protocol import Run
from tests.engine.driver import Bench, Told, bounds, prepare, with_bench

pytestmark = pytest.mark.kernel


def shell(script: str, **request: object) -> Run:
    return with_bench(lambda bench: bench.shell(script, **request))


def failure(prepared: Prepared) -> SetupFailed:
    async def body(bench: Bench) -> None:
        await bench.start(prepared, Told())[1]

    with pytest.raises(SetupFailed) as caught:
        with_bench(body)
    return caught.value


def with_program(path: str, *arguments: str, workspace: str | None = None) -> Prepared:
    """Prepare a run of a program that admission would not pin where tests can put one."""
    prepared = prepare(["/bin/true"], workspace=workspace)
    os.close(prepared.executable.fd)
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    identity = paths.identity(fd)
    executable = OpenedExecutable(fd=fd, path=path, real_path=path, identity=identity)
    return dataclasses.replace(prepared, executable=executable, argv=(path, *arguments))


def test_what_a_command_writes_in_its_workspace_belongs_to_the_owner(tmp_path: object) -> None:
    run = shell("pwd; echo new > made; cat made", workspace=str(tmp_path))
    assert run.stdout.text() == f"{tmp_path}\nnew\n"
    assert run.workspace == str(tmp_path)
    status = os.stat(f"{tmp_path}/made")
    assert (status.st_uid, status.st_gid) == (os.getuid(), os.getgid())


def test_a_workspace_for_reading_cannot_be_written_to(tmp_path: object) -> None:
    run = shell("cat there; echo new > made", workspace=str(tmp_path), access="read")
    assert run.exit_code != 0
    assert "Read-only" in run.stderr.text()
    assert os.listdir(str(tmp_path)) == []


def test_what_no_grant_names_is_not_there(tmp_path: object) -> None:
    run = shell(f"ls -d {tmp_path} /root /var /run /sys /home/* /etc/shadow")
    assert run.stdout.text() == "/home/sandbox\n"


def test_grants_of_the_profile_are_shown_as_they_say(tmp_path: object) -> None:
    for name in ("r", "w"):
        os.mkdir(f"{tmp_path}/{name}")
    with open(f"{tmp_path}/r/file", "w", encoding="ascii") as file:
        file.write("granted\n")
    view = ViewSection(read=(f"{tmp_path}/r",), write=(f"{tmp_path}/w",))
    run = shell(
        f"cat {tmp_path}/r/file; echo x > {tmp_path}/w/x; echo y > {tmp_path}/r/y", view=view
    )
    assert run.stdout.text() == "granted\n"
    assert os.listdir(f"{tmp_path}/w") == ["x"]
    assert os.listdir(f"{tmp_path}/r") == ["file"]


@pytest.mark.parametrize("kind", ["missing", "link", "fifo"])
def test_a_grant_that_is_not_what_it_was_granted_as_starts_nothing(
    tmp_path: object, kind: str
) -> None:
    path = f"{tmp_path}/it"
    if kind == "link":
        os.symlink("/usr", path)
    elif kind == "fifo":
        os.mkfifo(path)
    fault = failure(prepare(["/bin/true"], view=ViewSection(read=(path,))))
    assert (fault.layer, fault.step) == ("view", "open what is granted")
    assert path in fault.message


def test_a_workspace_exchanged_since_admission_starts_nothing(tmp_path: object) -> None:
    path = f"{tmp_path}/work"
    os.mkdir(path)
    prepared = prepare(["/bin/true"], workspace=path)
    os.rename(path, f"{tmp_path}/old")
    os.rmdir(f"{tmp_path}/old")
    os.mkdir(path)
    assert failure(prepared).layer == "view"


def test_a_program_that_no_grant_shows_is_shown_alone(tmp_path: object) -> None:
    shutil.copy("/bin/echo", f"{tmp_path}/tool")
    with open(f"{tmp_path}/beside", "w", encoding="ascii"):
        pass

    async def body(bench: Bench) -> Run:
        return await bench.start(with_program(f"{tmp_path}/tool", "hello"), Told())[1]

    assert with_bench(body).stdout.text() == "hello\n"


def test_a_program_in_a_writable_workspace_can_run_and_not_be_changed(tmp_path: object) -> None:
    shutil.copy("/bin/sh", f"{tmp_path}/tool")
    script = f"echo ran; echo bad > {tmp_path}/tool"

    async def body(bench: Bench) -> Run:
        prepared = with_program(f"{tmp_path}/tool", "-c", script, workspace=str(tmp_path))
        return await bench.start(prepared, Told())[1]

    run = with_bench(body)
    assert (run.stdout.text(), run.exit_code) == ("ran\n", 2)


def test_a_program_exchanged_since_admission_starts_nothing(tmp_path: object) -> None:
    shutil.copy("/bin/echo", f"{tmp_path}/tool")
    prepared = with_program(f"{tmp_path}/tool")
    shutil.copy("/bin/echo", f"{tmp_path}/new")
    os.rename(f"{tmp_path}/new", f"{tmp_path}/tool")
    assert failure(prepared).layer == "view"


def test_a_script_runs_by_its_interpreter() -> None:
    path = "/usr/bin/ldd"
    with open(path, "rb") as file:
        assert file.read(2) == b"#!"
    run = with_bench(lambda bench: bench.run([path, "--version"]))
    assert run.ok, run
    assert "ldd" in run.stdout.text()


def test_a_program_the_kernel_cannot_execute_is_a_fault_that_names_the_step(
    tmp_path: object,
) -> None:
    with open(f"{tmp_path}/tool", "wb") as file:
        file.write(b"no program")
        os.fchmod(file.fileno(), stat.S_IRWXU | 0o055)
    fault = failure(with_program(f"{tmp_path}/tool"))
    assert (fault.step, fault.errno) == ("execveat", 8)  # ENOEXEC


def test_a_required_cgroup_is_used_or_missed_loudly() -> None:
    prepared = prepare(["/bin/true"], require=RequireSection(layers=("cgroup",)))

    async def body(bench: Bench) -> tuple[str, Run | SetupFailed]:
        try:
            return bench.engine.hello.cgroup, await bench.start(prepared, Told())[1]
        except SetupFailed as fault:
            return bench.engine.hello.cgroup, fault

    cgroup, result = with_bench(body)
    if cgroup == "none":
        assert isinstance(result, SetupFailed)
        assert result.layer == "cgroup"
    else:
        assert isinstance(result, Run)
        assert result.ok


def test_above_the_ceiling_nothing_starts() -> None:
    fault = failure(prepare(["/bin/true"], limits=bounds(pids=100_000)))
    assert fault.layer == "ceiling"
