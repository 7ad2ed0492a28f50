"""What runs is the file that was pinned, from a place only its owner can change."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from sandboxd.executables import Missing, Unusable, open_pinned, sha256_of

BINARY = b"\x7fELF not really"


@pytest.fixture
def program(trusted: Path) -> Path:
    (trusted / "bin").mkdir(mode=0o755)
    path = trusted / "bin/prog"
    path.write_bytes(BINARY)
    path.chmod(0o755)
    return path


def pin(path: Path | str) -> object:
    pinned, fd = open_pinned(str(path))
    try:
        status = os.fstat(fd)
        program = pinned.interpreter or pinned.file
        assert (status.st_dev, status.st_ino) == (program.dev, program.ino)
    finally:
        os.close(fd)
    return pinned


def test_a_program_is_pinned_under_its_real_path(program: Path) -> None:
    pinned, fd = open_pinned(str(program))
    os.close(fd)
    assert (pinned.file.path, pinned.file.real_path) == (str(program), str(program))
    assert pinned.file.identity.kind == stat.S_IFREG
    assert pinned.interpreter is None
    assert sha256_of(pinned.file) == hashlib.sha256(BINARY).hexdigest()


@pytest.mark.parametrize("position", ["bin", "bin/prog"])
@pytest.mark.parametrize("style", ["relative", "absolute", "chain", "dots"])
def test_links_are_followed_to_the_real_path(
    program: Path, trusted: Path, position: str, style: str
) -> None:
    link = trusted / position
    real = link.rename(trusted / "real")
    if style == "chain":
        (trusted / "second").symlink_to("real")
        link.symlink_to(trusted / "second")
    else:
        relative = os.path.relpath(real, link.parent)
        target = {"relative": relative, "absolute": str(real), "dots": f"./../{trusted.name}/real"}
        if style == "dots" and position == "bin/prog":
            target["dots"] = f"../../{trusted.name}/real"
        link.symlink_to(target[style])
    pinned, fd = open_pinned(str(program))
    os.close(fd)
    assert pinned.file.path == str(program)
    assert pinned.file.real_path == str(real / "prog" if position == "bin" else real)


def _append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"x")


def _same_size_and_times(path: Path) -> None:
    status = path.stat()
    path.write_bytes(BINARY[::-1])
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def _rename(path: Path) -> None:
    copy = path.with_suffix(".new")
    shutil.copy2(path, copy)
    copy.rename(path)


def _relink(path: Path) -> None:
    shutil.copytree(path.parent, path.parent.parent / "other")
    path.parent.rename(path.parent.parent / "was")
    path.parent.symlink_to("other")


@pytest.mark.parametrize("change", [_append, _same_size_and_times, _rename, _relink])
def test_every_change_is_seen(program: Path, change: Callable[[Path], None]) -> None:
    before = pin(program)
    assert pin(program) == before
    change(program)
    assert pin(program) != before


@pytest.mark.parametrize("part", ["", "bin", "bin/prog"])
@pytest.mark.parametrize("mode", [0o775, 0o757, 0o1777])
def test_what_others_could_exchange_is_unusable(
    program: Path, trusted: Path, part: str, mode: int
) -> None:
    (trusted / part).chmod(mode)
    with pytest.raises(Unusable, match="writable by others"):
        open_pinned(str(program))


@pytest.mark.privileged
@pytest.mark.parametrize("part", ["", "bin", "bin/prog"])
def test_what_belongs_to_another_user_is_unusable(program: Path, trusted: Path, part: str) -> None:
    os.chown(trusted / part, 4242, 4242)
    with pytest.raises(Unusable, match="belongs to uid 4242"):
        open_pinned(str(program))


def test_below_tmp_nothing_can_be_pinned(tmp_path: Path) -> None:
    shutil.copy("/usr/bin/true", tmp_path / "true")
    with pytest.raises(Unusable, match="/tmp is writable by others"):
        open_pinned(str(tmp_path / "true"))


def _link_loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir(mode=0o755)


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o755)
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda path: path.chmod(0o644), "nobody may execute"),
        (lambda path: path.chmod(0o4755), "set-user-ID"),
        (lambda path: path.chmod(0o2755), "set-user-ID"),
        (_link_loop, "symbolic links"),
        (_directory, "directory"),
        (_fifo, "no regular file"),
    ],
)
def test_what_is_no_plain_program_is_unusable(
    program: Path, change: Callable[[Path], None], why: str
) -> None:
    change(program)
    with pytest.raises(Unusable, match=why) as caught:
        open_pinned(str(program))
    assert not isinstance(caught.value, Missing)


@pytest.mark.parametrize("tail", ["missing", "bin/missing", "bin/prog/x", "gone/x"])
def test_what_is_not_there_is_missing(program: Path, trusted: Path, tail: str) -> None:
    assert program.exists()
    with pytest.raises(Missing, match="no such file"):
        open_pinned(str(trusted / tail))


@pytest.mark.parametrize("path", ["true", "./true", "../usr/bin/true", "", "/usr/bin/true\0x"])
def test_only_an_absolute_path_is_a_program(path: str) -> None:
    with pytest.raises(Unusable, match="absolute path"):
        open_pinned(path)


SHEBANGS = [
    (b"#!/bin/sh\n", "/bin/sh", None),
    (b"#! /bin/sh\n", "/bin/sh", None),
    (b"#!/bin/sh -e\n", "/bin/sh", "-e"),
    (b"#! \t/bin/sh  -e  -u \t\nbody", "/bin/sh", "-e  -u"),
    (b"#!/usr/bin/env python3\n", "/usr/bin/env", "python3"),
]


@pytest.mark.parametrize(("line", "interpreter", "argument"), SHEBANGS)
def test_a_scripts_interpreter_is_pinned_with_it(
    program: Path, line: bytes, interpreter: str, argument: str | None
) -> None:
    program.write_bytes(line)
    pinned, fd = open_pinned(str(program))
    try:
        assert pinned.interpreter is not None
        assert pinned.interpreter.path == interpreter
        assert pinned.interpreter_argument == argument
        assert os.fstat(fd).st_ino == pinned.interpreter.ino == os.stat(interpreter).st_ino
        assert pinned.file.ino == program.stat().st_ino
        assert sha256_of(pinned.file) == hashlib.sha256(line).hexdigest()
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"#!\n", "#! line"),
        (b"#!   \n", "#! line"),
        (b"#!/bin/sh", "#! line"),
        (b"#!/bin/" + b"x" * 300 + b"\n", "#! line"),
        (b"#!/bin/sh\0\n", "#! line"),
        (b"#!/bin/\xff\n", "UTF-8"),
        (b"#!sh\n", "absolute path"),
        (b"#!/nonexistent/sh\n", "interpreter .* is missing"),
    ],
)
def test_a_script_without_a_usable_interpreter_is_unusable(
    program: Path, line: bytes, why: str
) -> None:
    program.write_bytes(line)
    with pytest.raises(Unusable, match=why):
        open_pinned(str(program))


def test_a_script_of_a_script_is_unusable(program: Path, trusted: Path) -> None:
    second = trusted / "second"
    second.write_bytes(b"#!/bin/sh\n")
    second.chmod(0o755)
    program.write_bytes(f"#!{second}\n".encode())
    with pytest.raises(Unusable, match="a script itself"):
        open_pinned(str(program))
