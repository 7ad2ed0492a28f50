"""Do the clients and the real daemon understand each other?"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from sandboxd import autostart
from sandboxd.client import AdminClient, Client
from sandboxd.errors import Conflict, NotFound, UsageError
from sandboxd.protocol import Event
from tests.client.kinds import both, opened
from tests.client.living import Place

pytestmark = pytest.mark.kernel


@pytest.fixture(params=["blocking", "asyncio"])
def client(request: pytest.FixtureRequest, living: Place) -> Iterator[Any]:
    with opened(request.param, living.endpoints.agent_socket) as made:
        yield made


@pytest.fixture
def admin(living: Place) -> Iterator[AdminClient]:
    with AdminClient(living.endpoints.admin_socket) as made:
        yield made


def test_a_run_is_a_record(client: Any, living: Place) -> None:
    with open(os.path.join(living.workspace, "a.txt"), "w", encoding="ascii") as file:
        file.write("hello\n")
    run = client.run("cat", paths=["a.txt"], workspace=living.workspace, reason="to see")
    assert run.ok
    assert run.stdout.bytes() == b"hello\n"
    assert run.workspace == living.workspace
    assert run.uid == os.geteuid()
    assert run.effective is not None
    assert {"landlock", "seccomp", "capabilities"} <= set(run.effective.layers)
    assert client.get_run(run.id).digest == run.digest


def test_a_workspace_may_be_a_descriptor(client: Any, living: Place) -> None:
    fd = os.open(living.workspace, os.O_RDONLY | os.O_DIRECTORY)
    try:
        run = client.run("sh", script="pwd", workspace=fd)
    finally:
        os.close(fd)
    assert run.stdout.text().strip() == living.workspace


def test_bytes_go_in_and_come_out_as_they_are(client: Any) -> None:
    data = bytes(range(256)) * 4
    run = client.run("shell", script="head -c 1024", input=data)
    assert run.stdout.bytes() == data


def test_a_text_goes_in_as_utf_8(client: Any) -> None:
    assert client.run("shell", script="cat", input="äöü").stdout.bytes() == "äöü".encode()


def test_a_text_says_where_something_is_missing(client: Any) -> None:
    stream = client.run("shell", script="seq 100000").stdout
    seam = f"\n[... {stream.dropped_bytes} bytes not shown ...]\n"
    head, tail = stream.text().split(seam)
    assert stream.text(seam=False) == head + tail == stream.bytes().decode()


def test_events_hold_what_the_record_holds(client: Any) -> None:
    events: list[Event] = []
    run = client.run("shell", script="echo out; echo err >&2; exit 3", on_event=events.append)
    assert run.exit_code == 3
    assert events[0].kind == "started"
    assert events[0].pid > 0
    assert {each.run for each in events} == {run.id}
    for name, stream in (("stdout", run.stdout), ("stderr", run.stderr)):
        told = b"".join(each.bytes() for each in events if each.stream == name)
        assert told == stream.bytes()


def test_a_command_that_is_not_allowed_is_a_value(client: Any) -> None:
    run = client.run("no-such-command")
    assert (run.status, run.exit_status) == ("denied", 127)
    assert [denial.reason for denial in run.denials] == ["NOT_IN_ALLOWLIST"]


def test_a_timeout_is_a_value(client: Any) -> None:
    run = client.run("shell", script="sleep 1000", timeout=0.2)
    assert (run.status, run.limit, run.exit_status) == ("timed_out", "wall", 124)


def test_what_the_daemon_does_not_take_is_a_usage_error(client: Any) -> None:
    with pytest.raises(UsageError) as raised:
        client.run("true", reason="x" * 5000)
    assert raised.value.field == "reason"


def test_a_variable_that_the_profile_passes_arrives(client: Any) -> None:
    run = client.run("shell", script="echo $GREETING", env={"GREETING": "hi"})
    assert run.stdout.text() == "hi\n"
    assert client.run("shell", script="true", env={"LD_PRELOAD": "x"}).status == "denied"


def test_a_proposal_waits_is_approved_and_runs_once(client: Any, admin: AdminClient) -> None:
    proposal = client.propose("ask", text="hello", reason="please\x1b[2K")
    assert proposal.state == "pending"
    assert [each.id for each in admin.pending()] == [proposal.id]
    assert client.wait(proposal.id, timeout=0.01).state == "pending"
    assert admin.approve(proposal.id).state == "ready"
    assert client.wait(proposal.id).state == "ready"
    run = client.execute(proposal.id)
    assert (run.stdout.text(), run.digest) == ("hello", proposal.digest)
    with pytest.raises(Conflict):
        client.execute(proposal.id)
    assert client.get_proposal(proposal.id).state == "used"


def test_a_rejection_reaches_who_asked(client: Any, admin: AdminClient) -> None:
    proposal = client.propose("ask", text="hello")
    admin.reject(proposal.id, "not today")
    decided = client.wait(proposal.id)
    assert (decided.state, decided.message) == ("rejected", "not today")


def test_a_proposal_can_be_taken_back(client: Any) -> None:
    proposal = client.propose("ask", text="hello")
    assert client.cancel(proposal.id).state == "cancelled"
    with pytest.raises(NotFound):
        client.get_proposal("prop_none")


def test_check_tells_without_doing(client: Any) -> None:
    assert client.check("true").decision == "allow"
    assert client.check("ask", text="x").decision == "ask"
    assert client.check("ask", txt="x").decision == "deny"


def test_a_running_command_gets_a_signal(living: Place) -> None:
    with Client(living.endpoints.agent_socket) as client:

        def tell(event: Event) -> None:
            if event.data == "ready\n":
                client.signal(event.run, signal.SIGTERM)

        script = "trap 'exit 9' TERM; echo ready; while :; do sleep 0.01; done"
        assert client.run("shell", script=script, on_event=tell).exit_code == 9


def test_an_administrator_sees_and_ends_runs(living: Place, admin: AdminClient) -> None:
    started = threading.Event()
    runs = []

    def go() -> None:
        with Client(living.endpoints.agent_socket) as client:
            runs.append(client.run("shell", script="sleep 1000", on_event=lambda _: started.set()))

    thread = threading.Thread(target=go)
    thread.start()
    assert started.wait(30)
    (active,) = admin.runs(active=True)
    assert active.status == "running"
    admin.kill(active.id)
    thread.join(30)
    assert [run.status for run in runs] == ["cancelled"]
    assert admin.runs(active=True) == ()
    assert admin.runs(limit=1)[0].id == active.id


@both
def test_leaving_a_call_cancels_its_run(kind: str, living: Place, admin: AdminClient) -> None:
    class Leaving(Exception):
        pass

    ids: list[str] = []

    def leave(event: Event) -> None:
        ids.append(event.run)
        raise Leaving

    with opened(kind, living.endpoints.agent_socket) as client:
        with pytest.raises(Leaving):
            client.run("shell", script="sleep 1000", on_event=leave)
        while client.get_run(ids[0]).status == "running":
            pass  # the daemon tears it down; each question is a round trip
        assert client.get_run(ids[0]).status == "cancelled"
    assert admin.runs(active=True) == ()


def test_status_reload_and_profiles_answer(living: Place, admin: AdminClient) -> None:
    status = admin.status()
    assert status.pid == living.pid()
    assert status.state_dir == living.endpoints.state_dir
    assert admin.reload().profiles == status.profiles == len(admin.profiles())


def test_a_daemon_is_stopped_and_stopping_none_is_no_failure(place: Place) -> None:
    autostart.ensure_running(place.endpoints)
    pid = place.pid()
    assert place.ctl("stop").stdout == f"the daemon, pid {pid}, has ended\n".encode()
    assert place.pid() is None
    again = place.ctl("stop")
    assert (again.returncode, again.stdout) == (0, b"no daemon runs\n")


def test_exec_under_a_profile_without_a_script_says_which_have_one(living: Place) -> None:
    done = living.ctl("exec", "-p", "wc", "-w", living.workspace, "--", "ls")
    assert done.returncode == 64
    assert b"profiles that do:" in done.stderr
