"""Does a daemon come to run when a client needs it: once, cleanly, and only where it is safe?"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading

import pytest

from sandboxd import autostart
from sandboxd.client import Client
from sandboxd.errors import Unavailable
from tests.client.living import Place, await_end

pytestmark = pytest.mark.kernel
RACERS = 20


@pytest.fixture
def here(place: Place, monkeypatch: pytest.MonkeyPatch) -> Place:
    """The place as this process's own default."""
    for name, value in place.environment().items():
        monkeypatch.setenv(name, value)
    return place


def test_twenty_clients_at_once_start_one_daemon(place: Place) -> None:
    racers = [place.popen("status", "--json") for _ in range(RACERS)]
    answers = [racer.communicate(timeout=60) for racer in racers]
    assert [racer.returncode for racer in racers] == [0] * RACERS, answers
    assert {json.loads(out)["pid"] for out, _ in answers} == {place.pid()}
    with open(os.path.join(place.endpoints.state_dir, "daemon.log"), encoding="ascii") as log:
        events = [json.loads(line)["event"] for line in log]
    assert events.count("serving") == 1
    assert "cannot_start" not in events


def test_twenty_threads_of_one_client_start_one_daemon(here: Place) -> None:
    counts: list[int] = []
    with Client() as client:
        threads = [
            threading.Thread(target=lambda: counts.append(len(client.commands())))
            for _ in range(RACERS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert len(counts) == RACERS
    assert here.pid() is not None


def test_a_daemon_that_has_gone_is_started_again(here: Place) -> None:
    with Client() as client:
        client.commands()
        first = here.pid()
        here.stop()
        assert client.run("true").ok
    assert here.pid() not in {None, first}


def test_a_socket_that_a_killed_daemon_left_behind_is_no_obstacle(here: Place) -> None:
    with Client() as client:
        client.commands()
        here.stop(signal.SIGKILL)
        assert os.path.exists(here.endpoints.agent_socket)
        assert client.run("true").ok


def test_nothing_is_started_where_that_is_forbidden(
    here: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDBOXD_NO_AUTOSTART", "1")
    with Client() as client, pytest.raises(Unavailable, match="cannot reach the daemon"):
        client.commands()
    assert not os.path.exists(here.endpoints.runtime_dir)
    done = here.ctl("status", env={"SANDBOXD_NO_AUTOSTART": "1"})
    assert (done.returncode, done.stdout) == (125, b"")
    assert done.stderr.startswith(b"sandboxctl: cannot reach the daemon at ")


def test_the_directories_are_made_for_this_user_alone(here: Place) -> None:
    old = os.umask(0)
    try:
        with Client() as client:
            client.commands()
    finally:
        os.umask(old)
    for path in (here.endpoints.runtime_dir, here.endpoints.state_dir):
        assert os.stat(path).st_mode & 0o777 == 0o700
    for path in (
        here.endpoints.agent_socket,
        os.path.join(here.endpoints.state_dir, "daemon.log"),
    ):
        assert os.stat(path).st_mode & 0o777 == 0o600


def test_a_runtime_directory_that_is_a_link_is_refused(place: Place) -> None:
    target = os.path.join(place.directory, "elsewhere")
    os.mkdir(target, 0o700)
    os.symlink(target, place.endpoints.runtime_dir)
    with pytest.raises(Unavailable, match="cannot use the directory"):
        autostart.ensure_running(place.endpoints)
    assert os.listdir(target) == []


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o755, 0o701])
def test_a_runtime_directory_that_others_may_enter_is_refused(place: Place, mode: int) -> None:
    os.mkdir(place.endpoints.runtime_dir)
    os.chmod(place.endpoints.runtime_dir, mode)
    with pytest.raises(Unavailable, match="others may enter"):
        autostart.ensure_running(place.endpoints)
    assert os.listdir(place.endpoints.runtime_dir) == []


@pytest.mark.privileged
def test_a_runtime_directory_of_another_user_is_refused(place: Place) -> None:
    os.mkdir(place.endpoints.runtime_dir, 0o700)
    os.chown(place.endpoints.runtime_dir, 4242, 4242)
    with pytest.raises(Unavailable, match="belongs to uid 4242"):
        autostart.ensure_running(place.endpoints)


def test_a_log_that_is_a_link_is_not_written_through(place: Place) -> None:
    victim = os.path.join(place.directory, "victim")
    os.mkdir(place.endpoints.state_dir, 0o700)
    os.symlink(victim, os.path.join(place.endpoints.state_dir, "daemon.log"))
    with pytest.raises(Unavailable, match="cannot start the daemon"):
        autostart.ensure_running(place.endpoints)
    assert not os.path.exists(victim)


def test_why_it_does_not_come_up_is_told(here: Place) -> None:
    with open(os.path.join(here.profiles, "bad.toml"), "w", encoding="ascii") as file:
        file.write('name = "bad"\nnonsense = 1\n')
    done = here.ctl("run", "true")
    assert done.returncode == 125
    assert done.stderr.startswith(b"sandboxctl: cannot start the daemon")
    assert b"bad.toml:2" in done.stderr
    pid = here.pid()
    if pid is not None:  # it may be on its way out
        await_end(pid)
    assert here.pid() is None


def test_the_daemon_has_nothing_of_its_starter(place: Place, directory: str) -> None:
    leaked = os.open(directory, os.O_RDONLY)
    os.set_inheritable(leaked, True)
    try:
        subprocess.run(
            place.argv("status"),
            env=os.environ
            | place.environment()
            | {"SECRET_TOKEN": "s3cret", "LD_PRELOAD": "", "PYTHONPATH": directory},
            cwd=directory,
            stdout=subprocess.DEVNULL,
            check=True,
            pass_fds=(leaked,),
            preexec_fn=lambda: (
                signal.signal(signal.SIGINT, signal.SIG_IGN),
                signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM}),
                os.umask(0),
            ),
        )
    finally:
        os.close(leaked)
    pid = place.pid()
    assert pid is not None
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        status = dict(line.split(":\t", 1) for line in file if ":\t" in line)
    assert int(status["SigBlk"], 16) == 0
    assert status["Umask"].strip() == "0077"
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    assert os.getsid(pid) != os.getsid(0)
    descriptors = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
    assert directory not in descriptors
    with open(f"/proc/{pid}/environ", "rb") as file:
        names = {entry.partition(b"=")[0] for entry in file.read().split(b"\0")}
    assert not names & {b"SECRET_TOKEN", b"LD_PRELOAD", b"PYTHONPATH"}
