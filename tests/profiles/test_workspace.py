"""A workspace is one directory of the caller's own, proved by a descriptor."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from launcher import paths
from sandboxd.prepared import Workspace
from sandboxd.profile import Profile
from sandboxd.protocol import Denial
from sandboxd.workspace import open_workspace
from tests.profiles.writing import Load, refused

Grant = Callable[..., Workspace | Denial | None]


@pytest.fixture
def profile(load: Load) -> Profile:
    return load('[argv]\ntemplate = []\n[workspace]\naccess = "write"')


@pytest.fixture
def grant(profile: Profile) -> Iterator[Grant]:
    with ExitStack() as stack:

        def keep(fd: int) -> int:
            stack.callback(os.close, fd)
            return fd

        def grant(
            path: str | Path | None,
            *denied: str | Path,
            flags: int = os.O_PATH,
            to: Profile = profile,
        ) -> Workspace | Denial | None:
            fd = None if path is None else keep(os.open(path, flags))
            return open_workspace(to, fd, [str(each) for each in denied], keep)

        yield grant


def test_a_directory_is_granted_under_its_canonical_name(grant: Grant, workspace: Path) -> None:
    (workspace.parent / "link").symlink_to(workspace)
    for path, flags in (
        (workspace, os.O_PATH),
        (workspace, os.O_RDONLY),
        (workspace.parent / "link", os.O_RDONLY),
    ):
        granted = grant(path, flags=flags)
        assert isinstance(granted, Workspace)
        assert granted.path == str(workspace)
        assert granted.access == "write"
        assert granted.identity == paths.identity(granted.fd)
        assert granted.identity.ino == os.stat(workspace).st_ino


def test_the_granted_descriptor_is_the_daemons_own(profile: Profile, workspace_fd: int) -> None:
    kept: list[int] = []

    def keep(fd: int) -> int:
        kept.append(fd)
        return fd

    granted = open_workspace(profile, workspace_fd, (), keep)
    assert isinstance(granted, Workspace)
    assert kept == [granted.fd]
    assert granted.fd != workspace_fd
    assert not os.get_inheritable(granted.fd)
    os.close(granted.fd)
    os.fstat(workspace_fd)


def test_what_was_renamed_since_is_still_the_same_directory(
    grant: Grant, profile: Profile, workspace: Path, workspace_fd: int
) -> None:
    workspace.rename(workspace.parent / "renamed")
    workspace.symlink_to("/etc")
    with ExitStack() as stack:

        def keep(fd: int) -> int:
            stack.callback(os.close, fd)
            return fd

        granted = open_workspace(profile, workspace_fd, (), keep)
        assert isinstance(granted, Workspace)
        assert granted.path == str(workspace.parent / "renamed")
    assert isinstance(grant(workspace, flags=os.O_RDONLY), Denial)


SYSTEM = ["/", "/etc", "/proc", "/proc/self", "/sys", "/dev", "/dev/shm", "/run", "/usr", "/var"]
SYSTEM += ["/usr/src", "/usr/share", "/home", "/tmp", "/var/tmp", "/var/lib", "/boot", "/opt"]
SYSTEM += ["/bin", "/lib", "/sbin", "/var/cache", "/var/log", "/srv", "/mnt", "/media"]


@pytest.mark.parametrize("path", SYSTEM)
def test_the_systems_trees_are_no_workspace(grant: Grant, path: str) -> None:
    assert os.path.isdir(path), "or the row proves nothing"
    denial = grant(path)
    assert isinstance(denial, Denial)
    assert refused((denial,)) == [("workspace", "PATH_NOT_GRANTED")]
    assert "system" in denial.message or "too broad" in denial.message


def test_a_home_is_too_broad_and_a_directory_in_it_is_not(grant: Grant, trusted: Path) -> None:
    home = pwd.getpwuid(os.geteuid()).pw_dir
    assert isinstance(grant(home), Denial)
    if trusted.is_relative_to(home):
        assert isinstance(grant(trusted), Workspace)


@pytest.mark.parametrize("nearer", ["", "state", "state/deep"])
def test_the_daemons_own_directories_and_those_above_are_no_workspace(
    grant: Grant, workspace: Path, nearer: str
) -> None:
    (workspace / "state/deep/er").mkdir(parents=True)
    (workspace / "other").mkdir()
    denied = (workspace / "state/deep", "/nonexistent/sandboxd")
    denial = grant(workspace / nearer, *denied)
    assert isinstance(denial, Denial)
    assert "daemon" in denial.message
    assert str(workspace) not in denial.message
    assert isinstance(grant(workspace / "state/deep/er", *denied), Denial)
    assert isinstance(grant(workspace / "other", *denied), Workspace)


def test_a_denied_directory_is_known_by_any_name(grant: Grant, workspace: Path) -> None:
    (workspace.parent / "alias").symlink_to(workspace)
    assert isinstance(grant(workspace, workspace.parent / "alias"), Denial)


def test_a_directory_everybody_may_write_is_no_workspace(grant: Grant, workspace: Path) -> None:
    workspace.chmod(0o1777)
    assert isinstance(grant(workspace), Denial)
    workspace.chmod(0o755)
    assert isinstance(grant(workspace), Workspace)


@pytest.mark.privileged
def test_another_users_directory_is_roots_to_grant_unless_all_may_write(
    grant: Grant, workspace: Path
) -> None:
    os.chown(workspace, 4242, 4242)
    assert isinstance(grant(workspace), Workspace)
    workspace.chmod(0o777)
    assert isinstance(grant(workspace), Denial)


def test_another_users_directory_is_not_an_ordinary_users_to_grant(
    grant: Grant, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the daemon's own idea of who it is differs here."""
    monkeypatch.setattr(os, "geteuid", lambda: os.stat(workspace).st_uid + 1)
    denial = grant(workspace)
    assert isinstance(denial, Denial)
    assert "belongs to uid" in denial.message


@pytest.mark.parametrize("kind", ["file", "pipe", "removed"])
def test_what_is_no_directory_any_more_is_refused(
    profile: Profile, workspace: Path, kind: str
) -> None:
    with ExitStack() as stack:

        def keep(fd: int) -> int:
            stack.callback(os.close, fd)
            return fd

        if kind == "file":
            fd = keep(os.open(workspace / "f", os.O_CREAT | os.O_RDWR))
        elif kind == "pipe":
            fd, other_fd = os.pipe()
            keep(fd)
            keep(other_fd)
        else:
            fd = keep(os.open(workspace, os.O_RDONLY))
            workspace.rmdir()
        denial = open_workspace(profile, fd, (), keep)
        assert isinstance(denial, Denial)
        assert refused((denial,)) == [("workspace", "ARGUMENT_INVALID")]


def test_a_command_gets_a_workspace_exactly_if_its_profile_says_so(
    grant: Grant, load: Load, workspace: Path
) -> None:
    none = load("[argv]\ntemplate = []", name="none")
    assert grant(None, to=none) is None
    for denial in (grant(workspace, to=none), grant(None)):
        assert isinstance(denial, Denial)
        assert refused((denial,)) == [("workspace", "ARGUMENT_INVALID")]


def test_control_characters_in_its_path_are_refused(grant: Grant, workspace: Path) -> None:
    names: Sequence[str] = ("a\nb", "a\x1b[2J", "\u202e")
    for name in names:
        (workspace / name).mkdir()
        assert isinstance(grant(workspace / name), Denial)
