"""Profiles written for one test each, and directories that a daemon may trust."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandboxd import profiles
from sandboxd.profile import Profile
from sandboxd.profiles import ProfileSet
from tests.profiles.writing import PROGRAM, Load, Write


@pytest.fixture
def trusted() -> Iterator[Path]:
    """Give a directory no part of whose way others can write: not below /tmp."""
    home = "/var/lib" if os.geteuid() == 0 else os.path.expanduser("~")
    path = tempfile.mkdtemp(prefix="sandboxd-test-", dir=home)
    yield Path(path)
    shutil.rmtree(path)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "profiles"
    path.mkdir(mode=0o755)
    return path


@pytest.fixture
def write(directory: Path) -> Write:
    def write(text: str, name: str = "tool") -> Path:
        path = directory / f"{name}.toml"
        path.write_text(text)
        path.chmod(0o644)
        return path

    return write


@pytest.fixture
def load(write: Write, directory: Path) -> Load:
    """Load one profile: its tables follow name, executable and approval."""

    def load(tables: str, *, path: str = "/usr/bin/true", name: str = "tool") -> Profile:
        write(PROGRAM.format(name=name, path=path) + tables, name)
        profile = profiles.load([str(directory)]).get(name)
        assert profile is not None
        return profile

    return load


@pytest.fixture
def loaded(directory: Path) -> Callable[[], ProfileSet]:
    return lambda: profiles.load([str(directory)])


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    path = tmp_path / "work"
    path.mkdir(mode=0o755)
    return path


@pytest.fixture
def workspace_fd(workspace: Path) -> Iterator[int]:
    fd = os.open(workspace, os.O_PATH | os.O_DIRECTORY)
    yield fd
    os.close(fd)


@pytest.fixture(autouse=True)
def no_descriptor_is_left() -> Iterator[None]:
    """Whatever a test does, what it opened is closed."""
    before = set(os.listdir("/proc/self/fd"))
    yield
    assert len(set(os.listdir("/proc/self/fd"))) <= len(before)
