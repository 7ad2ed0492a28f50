"""What does the daemon do with bytes that are not a frame, not JSON, or not a call?"""

from __future__ import annotations

import contextlib
import hashlib
import json
import select
import socket
from collections.abc import Callable
from typing import Any

import pytest

from sandboxd.protocol import MAX_DEPTH, MAX_FRAME_BYTES
from tests.daemon.harness import PATIENCE_S, Daemon, Wire, fault, frame

GET_INFO = b'{"method":"org.varlink.service.GetInfo"}\0'


def answers(daemon: Daemon) -> bool:
    """Tell whether a well-behaved client is served."""
    with daemon.agent() as wire:
        return bool(wire.ask("ListCommands"))


def is_closed(wire: Wire) -> bool:
    return wire.receive() is None


def test_random_bytes_end_the_connection_and_nothing_else(daemon: Daemon) -> None:
    for seed in range(300):
        with daemon.agent() as wire:
            with contextlib.suppress(BrokenPipeError):
                wire.send(hashlib.shake_256(b"%d" % seed).digest(64) + b"\0")
            assert fault(wire.receive()) == "UsageError"
            assert is_closed(wire)
    with daemon.admin() as admin:
        assert admin.ask("Pending") == []


def test_an_empty_frame_ends_the_connection(agent: Wire) -> None:
    agent.send(b"\0" + GET_INFO)
    assert fault(agent.receive()) == "UsageError"
    assert is_closed(agent)


def padded(size: int) -> bytes:
    """Return a call, NUL included, of ``size`` bytes without it."""
    empty = frame("GetProposal", proposal="")
    return frame("GetProposal", proposal="x" * (size - len(empty) + 1))


def test_a_frame_of_the_limit_is_read_and_one_byte_more_is_not(agent: Wire) -> None:
    assert len(padded(MAX_FRAME_BYTES)) == MAX_FRAME_BYTES + 1
    agent.send(padded(MAX_FRAME_BYTES))
    assert fault(agent.receive()) == "NotFound"
    with contextlib.suppress(BrokenPipeError):  # it closes before everything was sent
        agent.sock.sendall(padded(MAX_FRAME_BYTES + 1))
    assert fault(agent.receive()) == "UsageError"
    assert is_closed(agent)


def test_frames_may_be_sent_together_or_in_pieces(agent: Wire) -> None:
    agent.send(frame("GetProposal", proposal="none") + GET_INFO + frame("ListCommands"))
    assert fault(agent.receive()) == "NotFound"
    assert "vendor" in (agent.receive() or {})["parameters"]
    assert "commands" in (agent.receive() or {})["parameters"]
    agent.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    for position in range(len(GET_INFO)):
        agent.send(GET_INFO[position : position + 1])
    assert "vendor" in (agent.receive() or {})["parameters"]


def test_a_frame_has_a_deadline_however_busy_its_sender(
    make_daemon: Callable[..., Daemon],
) -> None:
    daemon = make_daemon("connections = { frame_s = 0.5 }").start()
    with daemon.agent() as wire:
        wire.send(b"{")
        with contextlib.suppress(BrokenPipeError):
            while not select.select([wire.sock], [], [], 0.05)[0]:
                wire.send(b" ")
        assert fault(wire.receive()) == "UsageError"
        assert is_closed(wire)
    assert answers(daemon)


def test_bytes_without_a_delimiter_end_with_the_limit(daemon: Daemon, agent: Wire) -> None:
    before = resident_bytes(daemon)
    sent = 0
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        while sent < 100 << 20:
            sent += agent.sock.send(b"x" * 65536)
    assert sent < MAX_FRAME_BYTES + (4 << 20)
    assert resident_bytes(daemon) - before < 20 << 20
    assert answers(daemon)


def resident_bytes(daemon: Daemon) -> int:
    assert daemon.process is not None
    with open(f"/proc/{daemon.process.pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


NOT_A_CALL = [
    (b"\xff\xfe{}", "not UTF-8"),
    (b'{"method":"\xc0\xaf"}', "an overlong slash"),
    ('{"method":"a.B"}'.encode("utf-16"), "UTF-16 with its mark"),
    (b'\xef\xbb\xbf{"method":"a.B"}', "a byte-order mark"),
    (b'{"method":"io.sandboxd.Agent.Propose","parameters":{"command":"\\ud800"}}', "surrogate"),
    (b'{"method":"a.B","parameters":{"x":NaN}}', "not a number"),
    (b'{"method":"a.B","parameters":{"x":1e999}}', "more than a number holds"),
    (b'{"method":"a.B","parameters":{"x":' + b"9" * 5000 + b"}}", "digits without end"),
    (b'{"method":"a.B","method":"a.C"}', "a member twice"),
    (b'{"method":"a.B","parameters":{"x":{"y":1,"y":1}}}', "a member twice, inside"),
    (b"[" * 100_000 + b"]" * 100_000, "nested without end"),
    (b'{"method":"a.B","parameters":{"x":' + b"[" * 40 + b"]" * 40 + b"}}", "nested too deep"),
    (b"[]", "a list"),
    (b"null", "null"),
    (b"{}", "no method"),
    (b'{"method":1}', "a method that is a number"),
    (b'{"method":null}', "a method that is null"),
    (b'{"method":"ListCommands"}', "a method without interface"),
    (b'{"method":"io.sandboxd.Agent."}', "a method without name"),
    (b'{"method":"a.B","parameters":[]}', "parameters that are a list"),
    (b'{"method":"a.B","parameters":null}', "parameters that are null"),
    (b'{"method":"a.B","more":1}', "more that is a number"),
    (b'{"method":"a.B","oneway":true}', "a call that wants no reply"),
    (b'{"method":"a.B","upgrade":true}', "another protocol"),
    (b'{"method":"a.B","version":2}', "an unknown member"),
    (b'{"method":"' + b"a" * 1000 + b'.B"}', "a method's name without end"),
    (b'{"method":"a.B"', "half an object"),
    (b"{" + b",".join(b'"k%d":0' % n for n in range(80_000)) + b"}", "very many members"),
]


@pytest.mark.parametrize(("data", "why"), NOT_A_CALL, ids=[why for _, why in NOT_A_CALL])
def test_what_is_no_call_is_answered_once_and_ends_the_connection(
    daemon: Daemon, agent: Wire, data: bytes, why: str
) -> None:
    agent.send(data + b"\0")
    reply = agent.receive()
    assert fault(reply) == "UsageError", why
    assert "Traceback" not in json.dumps(reply)
    assert is_closed(agent), why
    assert answers(daemon)


def test_the_deepest_frame_that_is_allowed_is_read(agent: Wire) -> None:
    value: list[Any] = []
    for _ in range(MAX_DEPTH - 3):
        value = [value]
    verdict = agent.ask("Check", command="echo", arguments={"text": value})
    assert verdict["decision"] == "deny"


CALLS = [
    ("io.sandboxd.Agent.Nothing", {}, "MethodNotFound", "no such method"),
    ("io.sandboxd.Agent.list_commands", {}, "UsageError", "no name of Varlink's"),
    ("Methods", {}, "MethodNotFound", "a method of Python, not of Varlink"),
    ("io.sandboxd.Admin.Approve", {"proposal": "x"}, "InterfaceNotFound", "another socket's"),
    ("org.example.Nothing", {}, "InterfaceNotFound", "no such interface"),
    ("org.varlink.service.Nothing", {}, "MethodNotFound", "no such method of the service"),
    ("org.varlink.service.GetInfo", {"x": 1}, "InvalidParameter", "no such parameter"),
    ("ListCommands", {"x": 1}, "InvalidParameter", "no such parameter"),
    ("GetProposal", {}, "InvalidParameter", "a parameter is missing"),
    ("GetProposal", {"proposal": None}, "InvalidParameter", "null"),
    ("GetProposal", {"proposal": 1}, "InvalidParameter", "a number"),
    ("Propose", {"command": None}, "InvalidParameter", "null"),
    ("Propose", {"command": "echo", "arguments": None}, "InvalidParameter", ""),
    ("Propose", {"command": "echo", "limits": None}, "InvalidParameter", ""),
    ("Propose", {"command": "echo", "limits": {"x": 1}}, "InvalidParameter", ""),
    ("Propose", {"command": "echo", "environment": {"A": 1}}, "InvalidParameter", ""),
    ("Propose", {"command": "echo", "workspace": True}, "InvalidParameter", ""),
    ("Propose", {"command": "echo", "workspace": 0}, "UsageError", "no such"),
    ("Propose", {"command": "echo", "workspace": -1}, "UsageError", "no such"),
    ("Propose", {"command": "echo", "reason": "x" * 5000}, "UsageError", "long"),
    ("Propose", {"command": "x" * 5000}, "UsageError", "long"),
    ("Propose", {"command": "echo", "idempotency_key": ""}, "UsageError", ""),
    ("WaitProposal", {"proposal": "x", "timeout_ms": -1}, "UsageError", ""),
    ("WaitProposal", {"proposal": "x", "timeout_ms": 0.5}, "InvalidParameter", ""),
    ("Signal", {"run": "x", "signal": 0}, "UsageError", "no signal"),
    ("Signal", {"run": "x", "signal": 11}, "UsageError", "none to send"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "parameters", "error", "why"), CALLS)
def test_a_wrong_call_is_refused_by_name(
    agent: Wire, method: str, parameters: dict[str, Any], error: str, why: str
) -> None:
    assert fault(agent.call(method, **parameters)) == error, why


def test_the_wrong_member_is_named(agent: Wire) -> None:
    reply = agent.call("Propose", command="echo", limits={"wall_ms": "5"})
    assert reply["parameters"] == {"parameter": "limits.wall_ms"}
    reply = agent.call("Propose", command="echo", surprise=1)
    assert reply["parameters"] == {"parameter": "surprise"}


def test_events_are_refused_where_there_are_none(agent: Wire) -> None:
    assert fault(agent.call("ListCommands", more=True)) == "UsageError"
    assert fault(agent.call("org.varlink.service.GetInfo", more=True)) == "UsageError"


def test_whoever_does_not_read_is_not_read_from(daemon: Daemon, agent: Wire) -> None:
    before = resident_bytes(daemon)
    request = frame("GetProposal", proposal="none")
    sent = 0
    while select.select([], [agent.sock], [], 1.0)[1]:
        assert sent < 100 << 20
        agent.sock.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            sent += agent.sock.send((request * 101)[sent % len(request) :])
    assert answers(daemon)
    assert resident_bytes(daemon) - before < 20 << 20
    agent.sock.settimeout(PATIENCE_S)
    for _ in range(sent // len(request)):
        assert fault(agent.receive()) == "NotFound"
