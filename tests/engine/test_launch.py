"""Is the launcher started from code that nobody else could have changed, and with nothing else?"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys

import psutil  # type: ignore[import-untyped]  # it ships no annotations
import pytest

import launcher
from launcher import channel
from launcher.plan import Hello
from sandboxd.launch import Launched, start_launcher
from tests.engine.driver import CEILING

pytestmark = pytest.mark.kernel
PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
sys.path += sys.argv[2:]
from sandboxd.errors import SetupFailed
from sandboxd.launch import start_launcher
try:
    start_launcher()
except SetupFailed as fault:
    print(fault.step, "|", fault.message)
"""


def test_it_has_an_environment_session_and_descriptors_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def look(launched: Launched) -> None:
        channel.send(launched.control, CEILING)
        received = channel.receive(launched.control, Hello)
        assert received is not None
        assert received[0].pid == launched.pid
        process = psutil.Process(launched.pid)
        assert os.getsid(launched.pid) == launched.pid
        assert process.cmdline()[1:4] == ["-I", "-S", "-B"]
        if os.geteuid() == 0:  # it is not dumpable: nobody else may look
            assert set(process.environ()) == {"PATH", "LANG"}

    async def body() -> tuple[int, bytes]:
        read_fd, write_fd = os.pipe()
        os.set_inheritable(write_fd, True)
        launched = start_launcher()
        os.close(write_fd)
        try:
            look(launched)
            left_over = os.read(read_fd, 1)  # end of file: nobody else has the write end
        finally:
            launched.control.close()
            os.close(read_fd)
        return await launched.ended(), left_over

    monkeypatch.setenv("OF_THE_DAEMON", "x")
    assert asyncio.run(body()) == (0, b"")


@pytest.fixture
def copy(tmp_path: object) -> str:
    """A copy of launcher and daemon that tests may spoil, in a directory that nobody else has."""
    source = os.path.dirname(os.path.dirname(launcher.__file__))
    for name in ("launcher", "sandboxd"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(f"{source}/{name}", f"{tmp_path}/{name}", ignore=ignore)
    return str(tmp_path)


def refusal(copy: str) -> str:
    paths = [path for path in sys.path if path.endswith("site-packages")]
    return subprocess.run(
        [sys.executable, "-I", "-B", "-c", PROGRAM, copy, *paths],
        capture_output=True,
        check=True,
        text=True,
    ).stdout


SPOILT = [
    ("", 0o777, "the directory it is in"),
    ("launcher", 0o777, "its own directory"),
    ("launcher/server.py", 0o666, "one of its files"),
]


@pytest.mark.parametrize(("name", "mode", "why"), SPOILT)
def test_code_that_others_can_change_is_not_started(
    copy: str, name: str, mode: int, why: str
) -> None:
    os.chmod(os.path.join(copy, name), mode)
    assert "trust the launcher's code | cannot trust" in refusal(copy), why


@pytest.mark.privileged
def test_code_that_another_group_can_change_is_not_started(copy: str) -> None:
    path = f"{copy}/launcher/server.py"
    os.chmod(path, 0o664)
    assert refusal(copy) == "", "a group of one's own is nobody else"
    os.chown(path, 0, 4242)
    os.chmod(path, 0o664)
    assert "server.py is writable by others" in refusal(copy)


@pytest.mark.privileged
def test_code_of_another_user_is_not_started(copy: str) -> None:
    os.chown(f"{copy}/launcher/init.py", 4242, 4242)
    assert "belongs to uid 4242" in refusal(copy)
