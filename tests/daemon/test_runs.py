"""Is a run watched from its first event to its record, whatever becomes of client and daemon?"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
from typing import Any

import pytest

from tests.daemon.harness import Daemon, Wire, fault, frame
from tests.daemon.test_connections import until
from tests.daemon.test_framing import resident_bytes


def started(wire: Wire, command: str, **parameters: Any) -> tuple[str, int]:
    """Run ``command`` with events and return its run's id and pid, once it has started."""
    wire.send(frame("Run", command=command, more=True, **parameters))
    reply = wire.receive() or {}
    assert reply.get("continues"), reply
    event = reply["parameters"]["event"]
    assert event["kind"] == "started"
    return event["run"], event["pid"]


def lives(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


def test_events_come_in_order_and_the_record_last(agent: Wire) -> None:
    run_id, pid = started(agent, "echo", arguments={"text": "x" * 1000})
    assert pid > 0
    output, replies = "", []
    while (reply := agent.receive() or {}).get("continues"):
        replies.append(reply["parameters"]["event"])
        output += replies[-1]["data"]
    assert {event["run"] for event in replies} == {run_id}
    assert replies[-1]["kind"] == "ended"
    run = reply["parameters"]["run"]
    assert (run["id"], run["status"], run["stdout"]["data"]) == (run_id, "exited", output)
    assert output == "x" * 1000 + "\n"


def test_standard_input_comes_from_the_callers_pipe(agent: Wire) -> None:
    reader, writer = os.pipe()
    agent.send(frame("Run", command="cat", stdin=0), reader)
    os.close(reader)
    os.write(writer, b"through the pipe")
    os.close(writer)
    run = (agent.receive() or {})["parameters"]["run"]
    assert run["stdout"]["data"] == "through the pipe"


def test_nothing_but_a_pipe_to_read_is_standard_input(daemon: Daemon, agent: Wire) -> None:
    reader, writer = os.pipe()
    with daemon.workspace_fd() as directory, open("/dev/null", "rb") as null:
        for fd in (directory, null.fileno(), writer, agent.sock.fileno()):
            assert fault(agent.call("Run", fd, command="cat", stdin=0)) == "UsageError"
    for command in ("Propose", "Check"):
        assert fault(agent.call(command, reader, command="cat", stdin=0)) == "UsageError"
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize("command", ["sleep", "yes"])
def test_a_client_that_goes_away_cancels_its_run(
    daemon: Daemon, agent: Wire, command: str
) -> None:
    with daemon.agent() as wire:
        run_id, pid = started(wire, command)
    until(lambda: not lives(pid))
    until(lambda: agent.ask("GetRun", run=run_id)["status"] == "cancelled")


def test_a_client_that_only_stops_writing_does_not(daemon: Daemon, agent: Wire) -> None:
    with daemon.agent() as wire:
        run_id, _ = started(wire, "sleep")
        wire.sock.shutdown(1)
        agent.call("Signal", run=run_id, signal=int(signal.SIGTERM))
        while (reply := wire.receive() or {}).get("continues"):
            pass
        assert reply["parameters"]["run"]["signal"] == signal.SIGTERM


def test_a_client_that_does_not_read_is_waited_for_and_then_gone(
    make_daemon: Callable[..., Daemon],
) -> None:
    daemon = make_daemon("connections = { stall_s = 0.5 }").start()
    with daemon.agent() as wire, daemon.agent() as other:
        before = resident_bytes(daemon)
        run_id, pid = started(wire, "yes")
        until(lambda: not lives(pid))
        assert resident_bytes(daemon) - before < 20 << 20
        until(lambda: other.ask("GetRun", run=run_id)["status"] == "cancelled")


def test_signals_and_kill_reach_a_run_and_only_a_run(
    daemon: Daemon, agent: Wire, admin: Wire
) -> None:
    with daemon.agent() as wire:
        run_id, _ = started(wire, "sleep")
        assert agent.ask("GetRun", run=run_id)["status"] == "running"
        assert [run["id"] for run in admin.ask("Runs", active=True)] == [run_id]
        assert admin.ask("Status")["running"] == 1
        assert "error" not in admin.call("Kill", run=run_id)
        while (reply := wire.receive() or {}).get("continues"):
            pass
        assert reply["parameters"]["run"]["status"] == "cancelled"
    calls: list[tuple[Wire, str, dict[str, Any]]]
    calls = [(agent, "Signal", {"signal": 15}), (admin, "Kill", {})]
    for wire, method, more in calls:
        assert fault(wire.call(method, run=run_id, **more)) == "Conflict"
        assert fault(wire.call(method, run="run_0", **more)) == "NotFound"


def test_runs_are_listed_newest_first_without_output(agent: Wire, admin: Wire) -> None:
    ids = [agent.ask("Run", command="echo")["id"] for _ in range(3)]
    listed = admin.ask("Runs", limit=3)
    assert [run["id"] for run in listed] == ids[::-1]
    assert [run["stdout"]["data"] for run in listed] == [""] * 3
    for limit in (0, -1, 501):
        assert fault(admin.call("Runs", limit=limit)) == "UsageError"


def test_above_its_concurrency_a_command_waits_and_others_do_not(
    daemon: Daemon, agent: Wire
) -> None:
    first, second, third = wires = [daemon.agent() for _ in range(3)]
    run_id, _ = started(first, "sleep")
    started(second, "sleep")
    third.send(frame("Run", command="sleep", more=True))
    assert agent.ask("Run", command="echo")["status"] == "exited"
    agent.call("Signal", run=run_id, signal=9)
    assert (third.receive() or {})["parameters"]["event"]["kind"] == "started"
    for wire in wires:
        wire.sock.close()


def test_a_full_queue_is_said_and_uses_no_grant_up(make_daemon: Callable[..., Daemon]) -> None:
    daemon = make_daemon("runs = { max_running = 1, queued_per_uid = 1 }").start()
    with daemon.agent() as running, daemon.agent() as queued, daemon.agent() as agent:
        started(running, "sleep")
        queued.send(frame("Run", command="echo"))
        proposal = agent.ask("Propose", command="echo")["id"]

        def busy() -> bool:
            reply = agent.call("Run", command="echo")
            return fault(reply) == "Unavailable" and reply["parameters"]["retryable"] is True

        until(busy)
        assert fault(agent.call("Execute", proposal=proposal)) == "Unavailable"
        running.sock.close()
        assert "run" in (queued.receive() or {})["parameters"]
        assert agent.ask("Execute", proposal=proposal)["status"] == "exited"


def test_a_client_that_goes_away_while_it_waits_starts_nothing(
    make_daemon: Callable[..., Daemon],
) -> None:
    daemon = make_daemon("runs = { max_running = 1 }").start()
    with daemon.agent() as running, daemon.agent() as agent, daemon.admin() as admin:
        run_id, _ = started(running, "sleep")
        with daemon.agent() as queued, daemon.workspace_fd() as fd:
            proposal = queued.ask("Propose", fd, command="ask", workspace=0)["id"]
            admin.ask("Approve", proposal=proposal)
            queued.send(frame("Execute", proposal=proposal))
            until(lambda: fault(agent.call("Execute", proposal=proposal)) == "Conflict")
        running.sock.close()
        until(lambda: agent.ask("GetRun", run=run_id)["status"] == "cancelled")
        assert os.listdir(daemon.workspace) == []
        assert agent.ask("GetProposal", proposal=proposal)["state"] == "ready"
        assert agent.ask("Execute", proposal=proposal)["status"] == "exited"


def test_what_ran_when_the_daemon_was_killed_is_lost(make_daemon: Callable[..., Daemon]) -> None:
    daemon = make_daemon().start()
    with daemon.agent() as wire:
        run_id, pid = started(wire, "sleep")
        daemon.stop(signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)  # here no sandbox has ended it
    daemon.start()
    with daemon.agent() as agent, daemon.admin() as admin:
        run = agent.ask("GetRun", run=run_id)
        assert (run["status"], run["command"]) == ("lost", "sleep")
        assert admin.ask("Runs", active=True) == []
        assert agent.ask("GetProposal", proposal=run["proposal"])["state"] == "used"


def test_sigterm_ends_runs_tells_their_clients_and_ends_the_daemon(
    make_daemon: Callable[..., Daemon],
) -> None:
    daemon = make_daemon().start()
    wires = [daemon.agent() for _ in range(2)]
    runs = [started(wire, "sleep") for wire in wires]
    with daemon.agent() as queued, daemon.agent() as waiting:
        queued.send(frame("Run", command="sleep"))
        proposal = waiting.ask("Propose", command="quick")["id"]
        waiting.send(frame("WaitProposal", proposal=proposal))
        assert daemon.stop() == 0
        for wire in wires:
            while (reply := wire.receive() or {}).get("continues"):
                pass
            assert reply["parameters"]["run"]["status"] == "cancelled"
            wire.sock.close()
        assert fault(queued.receive()) == "Unavailable"
    assert not any(lives(pid) for _, pid in runs)
    assert sorted(os.listdir(daemon.runtime_dir)) == ["daemon.lock"]
    assert sorted(os.listdir(daemon.state_dir)) == ["state.db", "state.lock"]
    daemon.start()
    with daemon.agent() as agent:
        for run_id, _ in runs:
            assert agent.ask("GetRun", run=run_id)["status"] == "cancelled"


def no_space(daemon: Daemon) -> None:
    """Let the daemon write nothing more: every file is at its limit."""
    assert daemon.process is not None
    _, hard = resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, (1, hard))


def space(daemon: Daemon) -> None:
    assert daemon.process is not None
    _, hard = resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, (hard, hard))


def test_what_cannot_be_recorded_does_not_run(make_daemon: Callable[..., Daemon]) -> None:
    daemon = make_daemon().start()
    with daemon.agent() as agent, daemon.admin() as admin, daemon.workspace_fd() as fd:
        pending = agent.ask("Propose", fd, command="ask", workspace=0)["id"]
        ready = agent.ask("Propose", fd, command="ask", workspace=0)["id"]
        admin.ask("Approve", proposal=ready)
        no_space(daemon)
        assert fault(agent.call("Run", command="echo")) == "Unavailable"
        assert fault(agent.call("Propose", command="echo")) == "Unavailable"
        assert fault(agent.call("Run", command="never")) == "Unavailable"
        assert fault(admin.call("Approve", proposal=pending)) == "Unavailable"
        assert fault(agent.call("Execute", proposal=ready)) == "Unavailable"
        assert os.listdir(daemon.workspace) == []
        space(daemon)
        assert agent.ask("Execute", proposal=ready)["status"] == "exited"
        admin.ask("Approve", proposal=pending)
        assert agent.ask("Execute", proposal=pending)["status"] == "exited"
        assert len(os.listdir(daemon.workspace)) == 2


def test_an_end_that_cannot_be_recorded_is_recorded_later(
    make_daemon: Callable[..., Daemon],
) -> None:
    daemon = make_daemon().start()
    with daemon.agent() as wire, daemon.agent() as agent:
        run_id, _ = started(wire, "sleep")
        no_space(daemon)
        agent.call("Signal", run=run_id, signal=15)
        while (reply := wire.receive() or {}).get("continues"):
            pass
        assert reply["parameters"]["run"]["status"] == "signaled"
        assert agent.ask("GetRun", run=run_id)["status"] == "signaled"
        assert fault(agent.call("Run", command="echo")) == "Unavailable"
        space(daemon)
        assert agent.ask("Run", command="echo")["status"] == "exited"
    daemon.stop(signal.SIGKILL)
    daemon.start()
    with daemon.agent() as agent:
        assert agent.ask("GetRun", run=run_id)["status"] == "signaled"
