"""Do the launcher's pure parts say yes and no as they should?"""

from __future__ import annotations

import dataclasses
import os
import socket
import stat
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher import channel, landlock, records
from launcher.ceiling import AboveCeiling, check_bind, check_plan
from launcher.plan import (
    Bind,
    Command,
    Destroy,
    Identity,
    Limits,
    Plan,
    Root,
    Start,
    Symlink,
    Tmpfs,
)
from launcher.records import Malformed
from tests.launcher.driver import CEILING

IDENTITY = Identity(dev=1, ino=2, kind=stat.S_IFDIR)
PLAN = Plan(
    sandbox="s1",
    binds=(Bind(descriptor=1, identity=IDENTITY, target="/usr"),),
    tmpfs=(Tmpfs(target="/tmp", size_bytes=1 << 20, inodes=10),),
    files=(),
    symlinks=(Symlink(target="/bin", to="usr/bin"),),
    limits=Limits(memory_bytes=1 << 20, pids=4, life_ms=1000),
    network="none",
    seccomp="default",
)
COMMAND = Command(
    command="c",
    executable="/usr/bin/true",
    identity=IDENTITY,
    argv=("true", "\udcff"),
    environment=("A=b",),
    cwd="/",
    rlimits=(),
)


def _plan(**changes: Any) -> Plan:
    return dataclasses.replace(PLAN, **changes)


ABOVE = [  # the plan, a word of the reason
    (_plan(sandbox="../x"), "name"),
    (_plan(host_name="a b"), "name"),
    (_plan(limits=Limits(memory_bytes=1 << 40, pids=4, life_ms=1)), "memory"),
    (_plan(limits=Limits(memory_bytes=0, pids=4, life_ms=1)), "memory"),
    (_plan(limits=Limits(memory_bytes=1, pids=1 << 20, life_ms=1)), "pids"),
    (_plan(limits=Limits(memory_bytes=1, pids=4, life_ms=1 << 40)), "life"),
    (_plan(tmpfs=(Tmpfs(target="/tmp", size_bytes=1 << 40, inodes=1),)), "tmpfs"),
    (_plan(tmpfs=(Tmpfs(target="/tmp", size_bytes=-1, inodes=1),)), "tmpfs"),
    (_plan(relax=("debug",)), "relaxation"),
    (_plan(symlinks=(Symlink(target="/a/../b", to="x"),)), "target"),
    (_plan(symlinks=(Symlink(target="a", to="x"),)), "target"),
    (_plan(symlinks=(Symlink(target="/a//b", to="x"),)), "target"),
    (_plan(symlinks=(Symlink(target="/", to="x"),)), "target"),
    (_plan(symlinks=(Symlink(target="/proc/x", to="x"),)), "belongs"),
    (_plan(symlinks=(Symlink(target="/dev", to="x"),)), "belongs"),
    (_plan(tmpfs=(Tmpfs(target="/tmp", size_bytes=1 << 20, inodes=0),)), "tmpfs"),
    (_plan(symlinks=(Symlink(target="/dev/pts", to="x"),)), "belongs"),
    (_plan(symlinks=(Symlink(target="/usr", to="x"),)), "twice"),
    (_plan(binds=(Bind(descriptor=0, identity=IDENTITY, target="/usr"),)), "descriptor"),
    (_plan(binds=(Bind(descriptor=2, identity=IDENTITY, target="/usr"),)), "descriptor"),
]


@pytest.mark.parametrize(("plan", "word"), ABOVE)
def test_a_plan_above_the_ceiling_is_refused_with_the_reason(plan: Plan, word: str) -> None:
    check_plan(PLAN, CEILING, existing=(), descriptors=2)
    with pytest.raises(AboveCeiling, match=word):
        check_plan(plan, CEILING, existing=(), descriptors=2)


BINDS = [  # path, writable, allowed under read-only / with writable /home and /home/u denied
    ("/usr", False, True),
    ("/usr", True, False),
    ("/home/v", True, True),
    ("/home/u", False, False),
    ("/home/u/x", False, False),
    ("/home", False, False),
    ("/", False, False),
    ("/home/u2", True, True),
]


@pytest.mark.parametrize(("path", "writable", "allowed"), BINDS)
def test_binds_lie_below_a_root_and_clear_of_what_is_denied(
    path: str, *, writable: bool, allowed: bool
) -> None:
    roots = (Root(path="/", writable=False), Root(path="/home", writable=True))
    ceiling = dataclasses.replace(CEILING, roots=roots, denied=("/home/u",))
    bind = Bind(descriptor=1, identity=IDENTITY, target="/t", writable=writable)
    if allowed:
        check_bind(bind, path, ceiling)
    else:
        with pytest.raises(AboveCeiling):
            check_bind(bind, path, ceiling)


def test_messages_come_back_as_they_were() -> None:
    for message in (Start(command=COMMAND), Destroy(sandbox="s")):
        assert records.decode(records.encode(message), Start, Destroy) == message


MALFORMED = [
    b"",
    b"[]",
    b"null",
    b"{}",
    b'{"type":"Destroy"}',
    b'{"type":"Destroy","sandbox":1}',
    b'{"type":"Destroy","sandbox":"s","more":1}',
    b'{"type":"Destroy","sandbox":"s","sandbox":"t"}',
    b'{"type":"Launch","plan":null}',
    b'{"type":"Start","command":{}}',
    b'{"type":"Destroy","sandbox":NaN}',
    b"[" * 100_000,
    b"\xff\xfe",
]


@pytest.mark.parametrize("data", MALFORMED)
def test_anything_else_is_malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        records.decode(data, Start, Destroy)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists))
def test_no_value_of_another_type_becomes_a_plan(value: object) -> None:
    with pytest.raises(Malformed):
        records.from_plain(Plan, {"sandbox": value}, "")


def test_a_boolean_is_no_integer() -> None:
    with pytest.raises(Malformed, match="dev"):
        records.from_plain(Identity, {"dev": True, "ino": 1, "kind": 1}, "")


def test_large_messages_travel_in_a_sealed_file() -> None:
    ours, theirs = channel.pair()
    large = dataclasses.replace(COMMAND, argv=("x" * 200_000,))
    read_fd, write_fd = os.pipe()
    channel.send(ours, Start(command=large), [read_fd])
    received = channel.receive(theirs, Start)
    assert received is not None
    assert received[0].command == large
    assert len(received[1]) == 1
    channel.close_all([read_fd, write_fd, *received[1]])
    ours.close()
    assert channel.receive(theirs, Start) is None
    theirs.close()


def test_an_unsealed_enclosure_is_refused_and_closed() -> None:
    ours, theirs = channel.pair()
    memfd = os.memfd_create("x")
    os.write(memfd, records.encode(Destroy(sandbox="s")))
    socket.send_fds(ours, [records.encode(channel.Enclosed(size=30))], [memfd])
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(Malformed, match="not sealed"):
        channel.receive(theirs, Destroy)
    assert len(os.listdir("/proc/self/fd")) == before
    os.close(memfd)
    ours.close()
    theirs.close()


@pytest.mark.parametrize(
    ("abi", "rights"),
    [(1, 0x1FFF), (2, 0x3FFF), (3, 0x7FFF), (4, 0x7FFF), (5, 0xFFFF), (7, 0xFFFF)],
)
def test_landlock_rights_follow_the_abi(abi: int, rights: int) -> None:
    assert landlock.handled_access(abi) == rights
