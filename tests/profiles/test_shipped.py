"""The shipped profiles say what they should, and no known way around them passes."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxd import profiles
from sandboxd.admission import prepare
from sandboxd.arguments import check_arguments
from sandboxd.argv import build
from sandboxd.endpoints import shipped_profiles
from sandboxd.prepared import Prepared
from sandboxd.profiles import ProfileSet
from sandboxd.protocol import Denial, Request

NAMES = ["cat", "diff", "find", "git-read", "grep", "jq", "ls", "make", "pytest", "python", "rg"]
NAMES += ["sed-print", "sh", "tar-list", "true", "wc"]
INTERPRETERS = {"make", "pytest", "python", "sh"}


@pytest.fixture(scope="module")
def shipped() -> ProfileSet:
    return profiles.load([shipped_profiles()])


def test_these_are_the_shipped_profiles(shipped: ProfileSet) -> None:
    assert list(shipped.names()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_each_is_bounded_described_and_has_examples_of_both_kinds(
    shipped: ProfileSet, name: str
) -> None:
    profile = shipped.get(name)
    assert profile is not None
    assert profile.summary
    assert any(example.rejected for example in profile.example)
    assert any(example.argv is not None for example in profile.example)
    assert profile.executable.interpreter == (name in INTERPRETERS)
    assert profile.workspace.access in ({"write"} if name in INTERPRETERS else {"none", "read"})
    assert profile.limits.wall_ms <= 120_000
    assert profile.limits.memory_bytes <= 1 << 30
    assert profile.network.mode in {"none", "loopback"}
    assert not profile.view.read + profile.view.write + profile.view.devices
    assert not profile.seccomp.relax
    assert profile.approval.mode == "allow"


def argv(shipped: ProfileSet, name: str, arguments: dict[str, object]) -> tuple[str, ...] | None:
    profile = shipped.get(name)
    assert profile is not None
    values = check_arguments(profile, arguments)
    if isinstance(values, tuple):
        return None
    built = build(profile.argv, profile.arguments, values, name)
    return None if isinstance(built, Denial) else built


# Every text that makes a tool run or write something, in every argument there is.
HOSTILE = ["-exec", "-execdir", "-ok", "-delete", "-fprint", "-fls", "-exec=sh", "--exec=sh"]
HOSTILE += ["--to-command=sh", "--checkpoint=1", "--checkpoint-action=exec=sh", "-I sh", "-Ish"]
HOSTILE += ["--use-compress-program=sh", "--rsh-command=sh", "--info-script=sh", "-F sh"]
HOSTILE += ["-c", "-ccore.pager=sh", "--config-env=a=b", "--exec-path=.", "--upload-pack=sh"]
HOSTILE += ["--ext-diff", "--textconv", "--output=x", "--open-files-in-pager=sh", "-O", "-P"]
HOSTILE += ["--paginate", "-p", "--git-dir=x", "--work-tree=/", "--no-index", "--contents=/etc"]
HOSTILE += [
    "--pre=sh",
    "--pre-glob=*",
    "--hostname-bin=sh",
    "-z",
    "--search-zip",
    "-f",
    "--file=x",
]
HOSTILE += ["-i", "-n", "-e", "-s", "-w /etc/x", "1e id", "e", "w x", "s/a/b/e", "--in-place"]
HOSTILE += ["-L.", "--rawfile", "--slurpfile", "--from-file", "--args", "--seq", "--files0-from=-"]
HOSTILE += ["--eval=$(shell id)", "SHELL=sh", "MAKEFLAGS=-n", "-C/", "-f/etc/x", "--include-dir=/"]
HOSTILE += ["-rf", "--help", "-o/etc/x", "-", "--", "@x", "--from-file=x", "--to-file=/etc/passwd"]
HOSTILE += [
    "/etc/passwd",
    "../x",
    "a/../../b",
    "ext::sh -c id",
    "host:path",
    "|sh",
    "`id`",
    "$(id)",
]
PROGRAMS = {("sh", "script"), ("python", "code"), ("python", "args"), ("pytest", "keyword")}
NOT_OPTIONS = {  # behind an option of their own or attached to text, so they are values
    ("grep", "pattern"),
    ("grep", "include"),
    ("rg", "pattern"),
    ("rg", "globs"),
    ("jq", "filter"),
    ("find", "name"),
    ("find", "paths"),
    ("tar-list", "archive"),
}


def texts(shipped: ProfileSet) -> Iterator[tuple[str, str, bool]]:
    """List command, argument and whether it is a list, of all arguments that hold text."""
    for name in shipped.names():
        profile = shipped.get(name)
        assert profile is not None
        for argument, schema in profile.parameters()["properties"].items():
            single = schema.get("items", schema)
            if single["type"] == "string":
                yield name, argument, "items" in schema


REQUIRED: dict[str, dict[str, object]] = {
    "diff": {"old": "a", "new": "b"},
    "grep": {"pattern": "x"},
    "jq": {"filter": "."},
    "rg": {"pattern": "x"},
    "sed-print": {"path": "a", "last": 1},
    "tar-list": {"archive": "a"},
    "cat": {"paths": ["a"]},
    "wc": {"paths": ["a"]},
    "sh": {"script": ":"},
}


def test_no_hostile_text_becomes_an_option(shipped: ProfileSet) -> None:
    """What begins with "-" stands behind "--" or a place that takes a value, or is refused."""
    tried = 0
    for name, argument, many in texts(shipped):
        if (name, argument) in PROGRAMS:
            continue
        for text in HOSTILE:
            value = [text] if many else text
            built = argv(shipped, name, {**REQUIRED.get(name, {}), argument: value})
            tried += 1
            if built is None or not text.startswith("-"):
                continue
            if (name, argument) in NOT_OPTIONS:
                alone = text in built and text != "--"
                assert not alone or built[built.index(text) - 1].startswith("-")
            else:
                assert "--" in built, (name, argument, text)
                assert text in built[built.index("--") + 1 :], (name, argument, text)
    assert tried > 1500


def test_no_unknown_argument_is_dropped(shipped: ProfileSet) -> None:
    for name in shipped.names():
        for extra in ("exec", "args", "argv", "env", "pre", "c", "options", "--", ""):
            if (name, extra) not in PROGRAMS:
                assert argv(shipped, name, {**REQUIRED.get(name, {}), extra: "x"}) is None


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("find", {"name": "x;id"}),
        ("find", {"name": "a b"}),
        ("find", {"kind": "f -delete"}),
        ("find", {"size": "1 -delete"}),
        ("find", {"size": "-1\n"}),
        ("find", {"modified_days": "-exec"}),
        ("find", {"max_depth": "1"}),
        ("sed-print", {"path": "a", "first": 1, "last": "2w x"}),
        ("sed-print", {"path": "a", "first": 1.0, "last": 2}),
        ("sed-print", {"path": "a", "first": -1, "last": 2}),
        ("git-read", {"subcommand": "log", "revision": "-c"}),
        ("git-read", {"subcommand": "log", "revision": "--output=x"}),
        ("git-read", {"subcommand": "config"}),
        ("git-read", {"subcommand": "alias"}),
        ("git-read", {"subcommand": "log\n"}),
        ("git-read", {"revision": "$(id)"}),
        ("make", {"targets": ["A=b"]}),
        ("make", {"targets": ["-f/etc/x"]}),
        ("make", {"targets": ["a b"]}),
        ("make", {"jobs": 0}),
        ("jq", {"filter": "-f"}),
        ("true", {"x": "y"}),
    ],
)
def test_a_known_way_around_is_refused(
    shipped: ProfileSet, name: str, arguments: dict[str, object]
) -> None:
    assert argv(shipped, name, arguments) is None


@pytest.mark.parametrize(
    ("name", "arguments", "needed"),
    [
        ("jq", {"filter": "."}, False),
        ("jq", {"filter": ".", "files": ["x.json"]}, True),
        ("python", {"code": "1"}, False),
        ("python", {}, False),
        ("python", {"script": "t.py"}, True),
        ("sh", {"script": "true"}, False),
        ("ls", {}, True),
        ("make", {}, True),
        ("git-read", {}, True),
    ],
)
def test_a_workspace_is_needed_where_files_are(
    shipped: ProfileSet, name: str, arguments: dict[str, object], *, needed: bool
) -> None:
    profile = shipped.get(name)
    assert profile is not None
    if profile.executable_problem is not None:
        pytest.skip(profile.executable_problem)
    request = Request(command=name, arguments=arguments)
    result = prepare(shipped, request, workspace_fd=None, denied_workspaces=())
    if isinstance(result, Prepared):
        result.close()
    assert isinstance(result, tuple) == needed, result


@pytest.fixture
def tree(workspace: Path) -> Path:
    (workspace / "src").mkdir()
    (workspace / "src/a.py").write_text("alpha\nbeta TODO\ngamma\n")
    (workspace / "-n").write_text("dash\n")
    (workspace / "b.txt").write_text("alpha\nBETA\ngamma\n")
    (workspace / "x.json").write_text('{"a": [1, 2]}')
    (workspace / "Makefile").write_text("all:\n\t@echo made\n")
    (workspace / "t.py").write_text("import sys; print('script', sys.argv[1:])\n")
    return workspace


REAL = [  # what the real program prints for the prepared argv
    ("cat", {"paths": ["-n", "b.txt"]}, "dash\nalpha\nBETA\ngamma\n", 0),
    ("ls", {"paths": ["src"], "all": True}, "a.py\n", 0),
    ("wc", {"paths": ["b.txt"], "lines_only": True}, "3 b.txt\n", 0),
    ("grep", {"pattern": "TODO", "paths": ["src"]}, "src/a.py:2:beta TODO\n", 0),
    ("grep", {"pattern": "-e", "kind": "fixed"}, "", 1),
    ("find", {"name": "*.py"}, "./src/a.py\n./t.py\n", 0),
    ("find", {"paths": [".", "src"], "name": "a.*"}, "./src/a.py\n./src/a.py\n", 0),
    ("find", {"paths": ["-n"], "kind": "f"}, "./-n\n", 0),
    ("sed-print", {"path": "src/a.py", "first": 2, "last": 2}, "beta TODO\n", 0),
    ("jq", {"filter": ".a[1]", "files": ["x.json"], "compact": True}, "2\n", 0),
    ("diff", {"old": "b.txt", "new": "b.txt"}, "", 0),
    ("rg", {"pattern": "TODO", "paths": ["src"]}, "src/a.py:2:beta TODO\n", 0),
    ("rg", {"pattern": "--pre=sh", "paths": ["src"]}, "", 1),
    ("python", {"code": "print(1)\nprint(2)"}, "1\n2\n", 0),
    ("python", {"script": "t.py", "args": ["--x", "y"]}, "script ['--x', 'y']\n", 0),
    ("make", {"targets": ["all"]}, "made\n", 0),
    ("sh", {"script": "echo one |\ncat; exit 3"}, "one\n", 3),
    ("sh", {"script": "-i"}, "", 127),
    ("true", {}, "", 0),
]


@pytest.mark.parametrize(("name", "arguments", "output", "status"), REAL)
def test_the_real_program_understands_its_argv(  # noqa: PLR0917  # fixtures
    shipped: ProfileSet,
    tree: Path,
    workspace_fd: int,
    name: str,
    arguments: dict[str, object],
    output: str,
    status: int,
) -> None:
    profile = shipped.get(name)
    assert profile is not None
    if profile.executable_problem is not None:
        pytest.skip(profile.executable_problem)
    fd = None if profile.workspace.access == "none" else workspace_fd
    request = Request(command=name, arguments=arguments)
    prepared = prepare(shipped, request, workspace_fd=fd, denied_workspaces=())
    assert isinstance(prepared, Prepared), prepared
    done = run(prepared, tree)
    prepared.close()
    assert sorted(done.stdout.splitlines()) == sorted(output.splitlines()), done.stderr
    assert done.returncode == status, done.stderr


def run(prepared: Prepared, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = dict(each.split("=", 1) for each in prepared.environment)
    return subprocess.run(
        prepared.argv,
        executable=prepared.executable.real_path,
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin", "HOME": str(cwd), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )


CONFIG = """
[core]
  fsmonitor = {mark}
  hooksPath = hooks
  pager = {mark}
  sshCommand = {mark}
  editor = {mark}
[pager]
  log = {mark}
  status = {mark}
[diff]
  external = {mark}
[diff "evil"]
  command = {mark}
  textconv = {mark}
[log]
  showSignature = true
[gpg]
  program = {mark}
[alias]
  status = !{mark}
[interactive]
  diffFilter = {mark}
"""


@pytest.mark.parametrize("subcommand", ["status", "log", "diff", "show", "blame"])
def test_a_repositorys_configuration_starts_nothing(
    shipped: ProfileSet, workspace: Path, workspace_fd: int, subcommand: str
) -> None:
    mark = workspace.parent / "mark"
    mark.write_text(f"#!/bin/sh\ntouch {workspace.parent}/started\n")
    mark.chmod(0o755)
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    for command in (
        ["init", "--quiet"],
        ["add", "."],
        [*identity, "commit", "--quiet", "--allow-empty", "-m", "one"],
    ):
        (workspace / "f.c").write_text("int a;\n")
        (workspace / ".gitattributes").write_text("*.c diff=evil\n")
        subprocess.run(["git", *command], cwd=workspace, check=True, env={"PATH": "/usr/bin"})
    (workspace / "f.c").write_text("int b;\n")
    hooks = workspace / "hooks"
    hooks.mkdir()
    for name in ("post-index-change", "fsmonitor-watchman", "post-checkout"):
        shutil.copy(mark, hooks / name)
    with (workspace / ".git/config").open("a") as config:
        config.write(CONFIG.format(mark=mark))
    started = workspace.parent / "started"
    control = subprocess.run(
        ["git", "diff"], cwd=workspace, env={"PATH": "/usr/bin:/bin"}, check=False
    )
    assert started.exists(), control
    started.unlink()
    arguments: dict[str, object] = {"subcommand": subcommand}
    arguments |= {"paths": ["f.c"]} if subcommand == "blame" else {}
    request = Request(command="git-read", arguments=arguments)
    prepared = prepare(shipped, request, workspace_fd=workspace_fd, denied_workspaces=())
    assert isinstance(prepared, Prepared), prepared
    done = run(prepared, workspace)
    prepared.close()
    assert done.returncode == 0, done.stderr
    assert {"status": "f.c", "log": "one", "diff": "+int b;", "show": "one", "blame": "int b;"}[
        subcommand
    ] in done.stdout
    assert not started.exists()
    assert not os.path.exists(workspace / ".git/index.lock")
