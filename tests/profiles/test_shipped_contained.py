"""The shipped commands do their work on real input, each inside a real sandbox."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sandboxd import profiles
from sandboxd.admission import prepare
from sandboxd.endpoints import shipped_profiles
from sandboxd.prepared import Prepared
from sandboxd.profiles import ProfileSet
from sandboxd.protocol import Request, Run, Tightening
from tests.engine.driver import Bench, Told, with_bench

pytestmark = pytest.mark.kernel

CASES: list[tuple[str, dict[str, Any], str, int]] = [
    ("cat", {"paths": ["a.txt", "-n"]}, "alpha\nbeta\ndash\n", 0),
    ("ls", {"paths": ["sub"]}, "b.txt\n", 0),
    ("wc", {"paths": ["a.txt"], "lines_only": True}, "2 a.txt\n", 0),
    ("diff", {"old": "a.txt", "new": "a.txt"}, "", 0),
    ("grep", {"pattern": "beta", "paths": ["a.txt"]}, "a.txt:2:beta\n", 0),
    ("rg", {"pattern": "beta", "paths": ["a.txt"]}, "a.txt:2:beta\n", 0),
    ("find", {"name": "b*"}, "./sub/b.txt\n", 0),
    ("jq", {"filter": ".a", "files": ["x.json"], "compact": True}, "[1,2]\n", 0),
    ("sed-print", {"path": "a.txt", "first": 2, "last": 2}, "beta\n", 0),
    ("tar-list", {"archive": "a:b.tgz"}, "a.txt\n", 0),
    ("python", {"script": "t.py", "args": ["--x"]}, "['--x']\n", 0),
    ("make", {"targets": ["all"]}, "made\n", 0),
    ("sh", {"script": "cat a.txt |\nwc -l; exit 3"}, "2\n", 3),
    ("true", {}, "", 0),
    ("git-read", {"subcommand": "log", "max_count": 1}, "    one\n", 0),
    ("git-read", {"subcommand": "status"}, "\tmodified:   a.txt\n", 0),
    ("git-read", {"subcommand": "diff"}, "+beta\n", 0),
    ("git-read", {"subcommand": "show"}, "+alpha\n", 0),
    ("git-read", {"subcommand": "blame", "paths": ["sub/b.txt"]}, "b\n", 0),
]


@pytest.fixture(scope="module")
def shipped() -> ProfileSet:
    return profiles.load([shipped_profiles()])


def git(workspace: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    environment = {"PATH": "/usr/bin:/bin", "GIT_CONFIG_GLOBAL": "/dev/null"}
    command = ("git", *identity, *arguments)
    subprocess.run(command, cwd=workspace, check=True, env=environment)


@pytest.fixture
def repository(workspace: Path) -> Path:
    (workspace / "sub").mkdir()
    (workspace / "sub/b.txt").write_text("b\n")
    (workspace / "a.txt").write_text("alpha\n")
    (workspace / "-n").write_text("dash\n")
    (workspace / "x.json").write_text('{"a": [1, 2]}')
    (workspace / "Makefile").write_text("all:\n\t@echo made\n")
    (workspace / "t.py").write_text("import sys; print(sys.argv[1:])\n")
    git(workspace, "init", "--quiet")
    git(workspace, "add", ".")
    git(workspace, "commit", "--quiet", "-m", "one")
    (workspace / "a.txt").write_text("alpha\nbeta\n")
    subprocess.run(["tar", "--force-local", "-czf", "a:b.tgz", "a.txt"], cwd=workspace, check=True)
    return workspace


async def call(
    bench: Bench,
    shipped: ProfileSet,
    workspace: Path | None,
    name: str,
    arguments: dict[str, Any],
    *,
    limits: Tightening = Tightening(),  # noqa: B008  # frozen
) -> Run:
    profile = shipped.get(name)
    assert profile is not None
    wanted = workspace is not None and profile.workspace.access != "none"
    fd = os.open(workspace, os.O_PATH) if workspace is not None and wanted else None
    request = Request(command=name, arguments=arguments, limits=limits)
    prepared = prepare(shipped, request, workspace_fd=fd, denied_workspaces=())
    if fd is not None:
        os.close(fd)
    assert isinstance(prepared, Prepared), prepared
    return await bench.start(prepared, Told())[1]


def test_every_command_does_its_work(shipped: ProfileSet, repository: Path) -> None:
    missing: set[str] = set()

    async def body(bench: Bench) -> None:
        for name, arguments, output, status in CASES:
            profile = shipped.get(name)
            assert profile is not None
            if profile.executable_problem is not None:
                missing.add(profile.executable_problem)
                continue
            run = await call(bench, shipped, repository, name, arguments)
            assert (run.status, run.exit_code) == ("exited", status), (name, run.stderr.text())
            assert output in run.stdout.text(), (name, run.stdout.text(), run.stderr.text())

    with_bench(body)
    if missing:
        pytest.skip(", ".join(sorted(missing)))


WITHOUT: list[tuple[str, dict[str, Any], str]] = [
    ("python", {"code": "import os; print(os.getcwd())"}, "/\n"),
    ("python", {}, ""),
    ("sh", {"script": "echo one"}, "one\n"),
    ("jq", {"filter": "1 + 1", "compact": True}, ""),  # of no input
]


def test_what_needs_no_files_runs_without_a_workspace(shipped: ProfileSet) -> None:
    async def body(bench: Bench) -> None:
        for name, arguments, output in WITHOUT:
            profile = shipped.get(name)
            if profile is None or profile.executable_problem is not None:
                continue  # told by the test above
            run = await call(bench, shipped, None, name, arguments)
            assert (run.status, run.exit_code) == ("exited", 0), (name, run.stderr.text())
            assert run.stdout.text() == output, name

    with_bench(body)


def test_the_least_memory_that_can_be_asked_for_is_enough_for_a_small_command(
    shipped: ProfileSet, repository: Path
) -> None:
    async def body(bench: Bench) -> None:
        least = Tightening(memory=16 << 20)
        for name, arguments in (("true", {}), ("cat", {"paths": ["-n"]})):
            run = await call(bench, shipped, repository, name, arguments, limits=least)
            assert (run.status, run.exit_code) == ("exited", 0), (name, run)

    with_bench(body)


def test_no_filter_of_a_repository_is_started(shipped: ProfileSet, repository: Path) -> None:
    """Git has no option against them; the kernel refuses the process. The shell is the control."""
    (repository / ".gitattributes").write_text("*.txt filter=evil\n")
    git(repository, "config", "filter.evil.clean", "echo filter-started >&2; cat")
    git_read = shipped.get("git-read")
    assert git_read is not None
    assert git_read.limits.pids == 1

    async def body(bench: Bench) -> None:
        for subcommand in ("status", "diff"):
            arguments = {"subcommand": subcommand}
            run = await call(bench, shipped, repository, "git-read", arguments)
            assert run.exit_code == 0, run.stderr.text()
            assert "a.txt" in run.stdout.text()
            assert "filter-started" not in run.stderr.text()
        script = "git -c safe.directory=* diff --stat"
        run = await call(bench, shipped, repository, "sh", {"script": script})
        assert "filter-started" in run.stderr.text()

    with_bench(body)
