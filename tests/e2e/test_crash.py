"""Is nothing left when the daemon is killed at any moment, and is it told afterwards?

``SANDBOXD_KILLS`` says how many times; the default keeps the suite short.
"""

from __future__ import annotations

import os
import random
import secrets
import select
import signal
import threading

import pytest

from sandboxd import autostart
from sandboxd.client import AdminClient, Client
from sandboxd.errors import SandboxdError
from sandboxd.protocol import Event
from tests.client.living import Place

pytestmark = pytest.mark.kernel

KILLS = int(os.environ.get("SANDBOXD_KILLS", "8"))
PATIENCE_MS = 20_000
# Daemonised, deaf to polite signals, stopped, and busy: one of each.
SCRIPT = (
    "trap '' TERM HUP INT; (setsid sleep 1000 &); (kill -STOP $BASHPID &); : {marker}; sleep 1000"
)


def _marked(marker: str) -> list[int]:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                if marker.encode() in file.read():
                    found.append(int(name))
        except OSError:
            continue
    return found


def _await_ends(pids: list[int]) -> None:
    poll = select.poll()
    pidfds = []
    for pid in pids:
        try:
            pidfds.append(os.pidfd_open(pid))
        except ProcessLookupError:
            continue
        poll.register(pidfds[-1], select.POLLIN)
    for pidfd in pidfds:
        assert poll.poll(PATIENCE_MS), "a process outlives its daemon"
        poll.unregister(pidfd)
        single = select.poll()
        single.register(pidfd, select.POLLIN)
        assert single.poll(PATIENCE_MS), "a process outlives its daemon"
        os.close(pidfd)


def _cgroups(launcher_pid: int) -> list[str]:
    found = []
    for top, directories, _ in os.walk("/sys/fs/cgroup"):
        found += [f"{top}/{d}" for d in directories if d.startswith(f"sandboxd.{launcher_pid}.")]
    return found


def _propose_for_ever(place: Place, marker: str, started: threading.Semaphore) -> None:
    def on_event(event: Event) -> None:
        if event.kind == "started":
            started.release()

    try:
        with Client(place.endpoints.agent_socket) as client:
            script = SCRIPT.format(marker=marker)
            client.run("sh", script=script, workspace=place.workspace, on_event=on_event)
    except SandboxdError:
        started.release()


def test_a_daemon_killed_at_any_moment_leaves_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDBOXD_NO_AUTOSTART", "1")
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        mounts = file.read()
    for number in range(KILLS):
        marker = f"sbxmark-{secrets.token_hex(8)}"
        autostart.ensure_running(place.endpoints)
        with AdminClient(place.endpoints.admin_socket) as admin:
            status = admin.status()
        started = threading.Semaphore(0)
        clients = [
            threading.Thread(target=_propose_for_ever, args=(place, marker, started))
            for _ in range(3)
        ]
        for client in clients:
            client.start()
        if number % 2:
            assert started.acquire(timeout=20)
        else:  # somewhere between the first byte and the start of the last command
            select.select([], [], [], random.random() / 20)  # noqa: S311  # a moment, no secret
        marked = _marked(marker)
        launcher = os.pidfd_open(status.launcher_pid)
        os.kill(status.pid, signal.SIGKILL)
        for client in clients:
            client.join(20)
            assert not client.is_alive()
        poll = select.poll()
        poll.register(launcher, select.POLLIN)
        assert poll.poll(PATIENCE_MS), "the launcher outlives its daemon"
        os.close(launcher)
        _await_ends(marked)
        assert _marked(marker) == []
        assert _cgroups(status.launcher_pid) == []
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        assert file.read() == mounts
    assert os.listdir(place.workspace) == []
    autostart.ensure_running(place.endpoints)
    with AdminClient(place.endpoints.admin_socket) as admin:
        statuses = {run.status for run in admin.runs(limit=500)}
    assert "running" not in statuses
    assert "lost" in statuses
