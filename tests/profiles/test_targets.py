"""A path argument is opened once, beneath the workspace, and through no link."""

from __future__ import annotations

import os
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from launcher import paths
from sandboxd.prepared import OpenedTarget
from sandboxd.profile import Profile
from sandboxd.protocol import Denial
from sandboxd.targets import open_targets
from tests.profiles.writing import Load, refused

Opened = tuple[tuple[OpenedTarget, ...], tuple[Denial, ...]]
Open = Callable[..., Opened]

TABLES = """
[arguments]
path = {{ type = "path", {rule} default = "." }}
more = {{ type = "list", items = {{ type = "path" }}, default = [] }}
[workspace]
access = "write"
[argv]
template = ["--", "{{path}}", "{{more...}}"]
"""


@pytest.fixture
def open_in(workspace_fd: int) -> Iterator[Open]:
    with ExitStack() as stack:

        def keep(fd: int) -> int:
            stack.callback(os.close, fd)
            return fd

        def open_in(profile: Profile, path: str = ".", *more: str) -> Opened:
            return open_targets(profile, {"path": path, "more": more}, workspace_fd, keep)

        yield open_in


@pytest.fixture
def profile(load: Load) -> Profile:
    return load(TABLES.format(rule=""))


@pytest.fixture
def tree(workspace: Path, tmp_path: Path) -> Path:
    (workspace / "a/b").mkdir(parents=True)
    (workspace / "a/b/file").write_text("x")
    (workspace / "-rf").write_text("x")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/file").write_text("secret")
    return workspace


@pytest.mark.parametrize("text", [".", "a", "a/b", "a/b/file", "-rf"])
def test_what_exists_below_is_opened_as_itself(
    profile: Profile, open_in: Open, tree: Path, text: str
) -> None:
    (first,), denials = open_in(profile, text)
    assert denials == ()
    status = os.stat(tree / text)
    assert (first.identity.dev, first.identity.ino) == (status.st_dev, status.st_ino)
    assert paths.identity(first.fd) == first.identity
    assert (first.argument, first.text, first.access) == ("path", text, "read")


@pytest.mark.parametrize("position", ["a", "a/b", "a/b/file"])
@pytest.mark.parametrize("to", ["relative", "absolute", "outside", "up", "dangling", "itself"])
def test_a_link_anywhere_is_refused(  # noqa: PLR0917  # fixtures
    profile: Profile, open_in: Open, tree: Path, tmp_path: Path, position: str, to: str
) -> None:
    link = tree / position
    link.rename(tmp_path / "moved")
    targets: dict[str, str] = {
        "relative": os.path.relpath(tmp_path / "moved", link.parent),
        "absolute": str(tmp_path / "moved"),
        "outside": str(tmp_path / "outside"),
        "up": "../..",
        "dangling": "nowhere",
        "itself": link.name,
    }
    link.symlink_to(targets[to])
    opened, denials = open_in(profile, "a/b/file")
    assert opened == ()
    assert refused(denials) == [("path", "SYMLINK_REFUSED")]
    assert "secret" not in denials[0].message


@pytest.mark.parametrize("link", ["/proc/self/cwd", "/proc/self/root", "/proc/self/fd/0"])
def test_a_link_to_a_magic_link_is_refused(
    profile: Profile, open_in: Open, tree: Path, link: str
) -> None:
    (tree / "m").symlink_to(link)
    assert refused(open_in(profile, "m")[1]) == [("path", "SYMLINK_REFUSED")]


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    server = socket.socket(socket.AF_UNIX)
    here = os.getcwd()
    os.chdir(path.parent)  # sun_path is short
    try:
        server.bind(path.name)
    finally:
        os.chdir(here)
        server.close()


def _device(path: Path) -> None:
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))


@pytest.mark.parametrize(
    "make", [_fifo, _socket, pytest.param(_device, marks=pytest.mark.privileged)]
)
@pytest.mark.parametrize("rule", ["", 'kind = "file",', 'must_exist = false, access = "write",'])
def test_only_files_and_directories_are_targets(
    load: Load, open_in: Open, tree: Path, make: Callable[[Path], None], rule: str
) -> None:
    """Nothing waits for a FIFO's writer, and no device is opened."""
    make(tree / "special")
    result = open_in(load(TABLES.format(rule=rule)), "special")
    assert refused(result[1]) == [("path", "ARGUMENT_INVALID")]


@pytest.mark.parametrize(
    ("rule", "text", "why"),
    [
        ('kind = "file",', "a", "no regular file"),
        ('kind = "directory",', "-rf", "no directory"),
        ("", "missing", "does not exist"),
        ("", "a/missing/x", "does not exist"),
        ("", "-rf/x", "no directory"),
        ("must_exist = false,", "missing/x", "its directory does not exist"),
        ("must_exist = false,", "-rf/x", "no directory"),
    ],
)
def test_what_is_not_as_needed_is_refused(  # noqa: PLR0917  # fixtures
    load: Load, open_in: Open, tree: Path, rule: str, text: str, why: str
) -> None:
    assert tree.exists()
    _, denials = open_in(load(TABLES.format(rule=rule)), text)
    assert refused(denials) == [("path", "ARGUMENT_INVALID")]
    assert why in denials[0].message


@pytest.mark.parametrize(("text", "parent"), [("new", "."), ("a/b/new", "a/b")])
def test_of_what_may_be_created_the_directory_is_held(
    load: Load, open_in: Open, tree: Path, text: str, parent: str
) -> None:
    profile = load(TABLES.format(rule='must_exist = false, access = "write",'))
    (target,), denials = open_in(profile, text)
    assert denials == ()
    assert target.identity.ino == os.stat(tree / parent).st_ino
    assert target.access == "write"
    assert not (tree / text).exists()


def test_every_item_is_opened_and_every_problem_told(
    profile: Profile, open_in: Open, tree: Path
) -> None:
    assert tree.exists()
    opened, denials = open_in(profile, ".", "a", "nope", "-rf", "neither")
    assert [target.argument for target in opened] == ["path", "more[0]", "more[2]"]
    assert [target for target, _ in refused(denials)] == ["more[1]", "more[3]"]


def test_a_directory_that_may_not_be_searched_is_refused(
    profile: Profile, open_in: Open, tree: Path
) -> None:
    (tree / "a").chmod(0)
    result = open_in(profile, "a/b/file")
    (tree / "a").chmod(0o755)
    if os.geteuid() != 0:
        assert refused(result[1]) == [("path", "PATH_NOT_GRANTED")]
    else:
        assert result[1] == ()


def test_no_exchange_leads_outside(profile: Profile, open_in: Open, tree: Path) -> None:
    """A thread exchanges a directory and a link to another: what opens is never the other."""
    outside = os.stat(tree.parent / "outside/file").st_ino
    done = threading.Event()

    def exchange() -> None:
        (tree / "link").symlink_to(tree.parent / "outside")
        (tree / "d").mkdir()
        (tree / "d/file").write_text("x")
        while not done.is_set():
            os.rename(tree / "d", tree / "t")
            os.rename(tree / "link", tree / "d")
            os.rename(tree / "d", tree / "link")
            os.rename(tree / "t", tree / "d")

    thread = threading.Thread(target=exchange)
    thread.start()
    try:
        for _ in range(200):
            opened, denials = open_in(profile, "d/file")
            assert all(target.identity.ino != outside for target in opened)
            assert {denial.reason for denial in denials} <= {
                "SYMLINK_REFUSED",
                "ARGUMENT_INVALID",
                "PATH_NOT_GRANTED",
            }
    finally:
        done.set()
        thread.join()
