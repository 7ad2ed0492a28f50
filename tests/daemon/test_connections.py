"""What do connections cost, who may have one, and what happens when they end?"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import socket
from collections.abc import Callable

import pytest

from tests.daemon.harness import PATIENCE_S, Daemon, Wire, fault, frame


def test_a_caller_that_stops_writing_gets_its_whole_reply(agent: Wire) -> None:
    agent.send(frame("Run", command="echo", arguments={"text": "x" * 50_000}))
    agent.sock.shutdown(socket.SHUT_WR)
    reply = agent.receive()
    assert reply is not None
    assert reply["parameters"]["run"]["stdout"]["total_bytes"] == 50_001
    assert agent.receive() is None


@pytest.mark.parametrize("how", ["close", "shut down reading first"])
def test_callers_that_are_gone_before_the_reply_leave_nothing(daemon: Daemon, how: str) -> None:
    with daemon.agent() as wire:
        wire.ask("ListCommands")
        before = daemon.descriptors()
        for _ in range(1000):
            with daemon.agent() as gone:
                gone.send(frame("ListCommands"))
                if how != "close":
                    gone.sock.shutdown(socket.SHUT_RD)
        until(lambda: daemon.descriptors() == before)
        assert wire.ask("ListCommands")


def until(condition: Callable[[], bool]) -> None:
    """Ask again and again, each time after a round trip through the kernel's timer."""
    for _ in range(int(PATIENCE_S / 0.02)):
        if condition():
            return
        select.select([], [], [], 0.02)
    raise AssertionError("it never became true")


def test_silent_connections_are_closed(make_daemon: Callable[..., Daemon]) -> None:
    daemon = make_daemon("connections = { idle_s = 0.3 }").start()
    silent = [daemon.agent() for _ in range(50)]
    assert all(wire.receive() is None for wire in silent)
    for wire in silent:
        wire.sock.close()


def test_a_call_in_progress_is_not_silence(make_daemon: Callable[..., Daemon]) -> None:
    daemon = make_daemon("connections = { idle_s = 0.1 }").start()
    with daemon.agent() as wire:
        proposal = wire.ask("Propose", command="quick")
        waited = wire.ask("WaitProposal", proposal=proposal["id"])
    assert waited["state"] == "expired"  # after a second, and the connection still stood


def test_connections_above_the_limit_are_told_and_closed(
    make_daemon: Callable[..., Daemon],
) -> None:
    daemon = make_daemon("connections = { total = 4 }").start()
    inside = [daemon.agent() for _ in range(4)]
    assert all(wire.ask("ListCommands") for wire in inside)
    with daemon.agent() as fifth:
        assert fault(fifth.receive()) == "Unavailable"
        assert fifth.receive() is None
    assert all(wire.ask("ListCommands") for wire in inside)
    inside.pop().sock.close()

    def admitted() -> bool:
        with daemon.agent() as wire, contextlib.suppress(BrokenPipeError):
            return fault(wire.call("ListCommands")) == ""
        return False

    until(admitted)
    for wire in inside:
        wire.sock.close()


def test_four_hundred_connections_are_each_answered_or_turned_away(daemon: Daemon) -> None:
    wires = [daemon.agent() for _ in range(400)]
    outcomes = set()
    for wire in wires:
        with contextlib.suppress(BrokenPipeError):
            wire.send(frame("ListCommands"))
    for wire in wires:
        outcomes.add(fault(wire.receive()))
    for wire in wires:
        wire.sock.close()
    assert outcomes == {"", "Unavailable"}


def test_without_descriptors_left_the_daemon_waits_and_goes_on(
    make_daemon: Callable[..., Daemon],
) -> None:
    daemon = make_daemon().start(
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    )
    with daemon.agent() as wire, daemon.workspace_fd() as workspace:
        held = []
        while not (
            error := fault(reply := wire.call("Propose", workspace, command="ask", workspace=0))
        ):
            held.append(reply["parameters"]["proposal"]["id"])
        assert error == "Unavailable"
        others = [daemon.agent() for _ in range(8)]
        for other in others:
            other.send(frame("ListCommands"))
        used = cpu_ticks(daemon)
        assert not select.select([others[-1].sock], [], [], 1.0)[0]
        assert cpu_ticks(daemon) - used < os.sysconf("SC_CLK_TCK") // 5
        assert wire.ask("ListCommands")
        for proposal in held:
            wire.ask("CancelProposal", proposal=proposal)
        assert all("commands" in (other.receive() or {})["parameters"] for other in others)
        for other in others:
            other.sock.close()


def cpu_ticks(daemon: Daemon) -> int:
    assert daemon.process is not None
    with open(f"/proc/{daemon.process.pid}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


@pytest.mark.parametrize("number", [1, 4, 5, 253])
@pytest.mark.parametrize("position", ["beginning", "middle"])
def test_descriptors_nobody_asked_for_are_closed(
    daemon: Daemon, number: int, position: str
) -> None:
    with daemon.agent() as bystander:
        bystander.ask("ListCommands")
        before = daemon.descriptors()
        for _ in range(20):
            with daemon.agent() as wire, contextlib.suppress(BrokenPipeError):
                data = frame("ListCommands")
                if position == "middle":
                    wire.send(data[:20])
                    data = data[20:]
                wire.send(data, *[wire.sock.fileno()] * number)
                assert fault(wire.receive()) == "UsageError"
                assert wire.receive() is None
        until(lambda: daemon.descriptors() == before)


def test_descriptors_of_many_messages_in_one_frame_are_counted_together(daemon: Daemon) -> None:
    with daemon.agent() as wire, daemon.workspace_fd() as fd:
        data = frame("Check", command="ask", workspace=0)
        for position in range(5):
            wire.send(data[position : position + 1], fd)
        assert fault(wire.receive()) == "UsageError"
        assert wire.receive() is None


def test_a_descriptor_belongs_to_the_frame_it_was_sent_with(daemon: Daemon, agent: Wire) -> None:
    with daemon.workspace_fd() as fd:
        agent.send(frame("ListCommands"))
        agent.send(frame("Check", command="ask", workspace=0), fd)
        agent.send(frame("ListCommands"))
    replies = [agent.receive() or {} for _ in range(3)]
    assert [sorted(reply["parameters"]) for reply in replies] == [
        ["commands"],
        ["verdict"],
        ["commands"],
    ]
    assert replies[1]["parameters"]["verdict"]["decision"] == "ask"


def test_one_descriptor_cannot_be_two_parameters(daemon: Daemon, agent: Wire) -> None:
    with daemon.workspace_fd() as fd:
        reply = agent.call("Run", fd, command="ask", workspace=0, stdin=0)
    assert fault(reply) == "UsageError"


def test_churn_leaves_nothing(daemon: Daemon) -> None:
    with daemon.agent() as bystander:
        bystander.ask("ListCommands")
        before = daemon.descriptors()
        lines = len(daemon.log())
        for _ in range(3000):
            daemon.agent().sock.close()
        until(lambda: daemon.descriptors() == before)
        assert bystander.ask("ListCommands")
        assert len(daemon.log()) - lines < 10


def as_user(uid: int, work: Callable[[], bool]) -> bool:
    """Do ``work`` in a child process that is ``uid``; return its answer."""
    child = os.fork()
    if not child:
        status = 2
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            status = 0 if work() else 1
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.privileged
def test_another_uid_is_closed_before_a_byte_is_read(
    make_daemon: Callable[..., Daemon],
) -> None:
    daemon = make_daemon().start()
    for path in (daemon.directory, daemon.runtime_dir):
        os.chmod(path, 0o755)  # so that file modes are not what keeps it out
    for path in (daemon.agent_path, daemon.admin_path):
        os.chmod(path, 0o666)

    def is_turned_away() -> bool:
        for path in (daemon.agent_path, daemon.admin_path):
            with Wire(path) as wire, contextlib.suppress(BrokenPipeError):
                wire.send(frame("org.varlink.service.GetInfo"))
                if wire.receive() is not None:
                    return False
        return True

    assert as_user(4242, is_turned_away)
    assert [line["uid"] for line in daemon.log() if line["event"] == "peer_refused"] == [4242]


@pytest.mark.privileged
def test_root_is_no_exception(make_daemon: Callable[..., Daemon]) -> None:
    daemon = make_daemon()
    for directory, _, files in os.walk(daemon.directory):
        for path in (directory, *(os.path.join(directory, name) for name in files)):
            os.chown(path, 4242, 4242)
    daemon.start(user=4242, group=4242, extra_groups=[])
    with daemon.agent() as wire, contextlib.suppress(BrokenPipeError):
        wire.send(frame("org.varlink.service.GetInfo"))
        assert wire.receive() is None
    assert daemon.stop(signal.SIGTERM) == 0
