"""What do the clients send, what do they make of answers, and when do they ask again?"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from sandboxd.aclient import AsyncClient
from sandboxd.client import AdminClient, Client
from sandboxd.errors import Conflict, NotFound, Unavailable, UsageError
from sandboxd.protocol import Event, RunFailed
from sandboxd.wire import ConnectionLost
from tests.client.kinds import both, opened
from tests.client.scripted import (
    Answer,
    Peer,
    Scripted,
    event,
    fault,
    one_each,
    ran,
    reply,
    saying,
)

Serve = Callable[..., Scripted]


@both
def test_a_request_holds_what_was_said_and_no_defaults(kind: str, serve: Serve) -> None:
    server = serve(saying(ran()))
    with opened(kind, server.path) as client:
        run = client.run("rg", pattern="x", paths=(".", "a"), arguments={"input": "y"})
    assert run.ok
    assert server.calls() == [
        {
            "method": "io.sandboxd.Agent.Run",
            "parameters": {
                "command": "rg",
                "arguments": {"input": "y", "pattern": "x", "paths": [".", "a"]},
            },
        }
    ]


@both
def test_bounds_and_the_rest_are_members_of_the_request(kind: str, serve: Serve) -> None:
    server = serve(saying(ran()))
    with opened(kind, server.path) as client:
        client.run(
            "c", timeout=0.0015, limits={"memory": 1, "pids": 2, "output": 3}, env={"TZ": "UTC"},
            reason="because", idempotency_key="k",
        )  # fmt: skip
    assert server.calls()[0]["parameters"] == {
        "command": "c",
        "limits": {"wall_ms": 2, "memory": 1, "pids": 2, "output": 3},
        "environment": {"TZ": "UTC"},
        "reason": "because",
        "idempotency_key": "k",
    }


@both
def test_bounds_may_be_written_with_their_units(kind: str, serve: Serve) -> None:
    server = serve(saying(ran()))
    with opened(kind, server.path) as client:
        client.run("c", timeout="500ms", limits={"memory": "64MiB", "output": "1KiB"})
    limits = server.calls()[0]["parameters"]["limits"]
    assert limits == {"wall_ms": 500, "memory": 64 << 20, "output": 1024}


CYCLE: list[Any] = []
CYCLE.append(CYCLE)
WRONG: list[tuple[dict[str, Any], str]] = [  # what is asked, what the message names
    ({"timeout": 0}, "timeout"),
    ({"timeout": -1}, "timeout"),
    ({"timeout": float("nan")}, "timeout"),
    ({"timeout": "5"}, "timeout.*500ms"),
    ({"timeout": [5]}, "timeout of type list"),
    ({"limits": {"wall": 1}}, "limits are memory, pids, output"),
    ({"limits": {"memory": "64"}}, "memory.*64KiB"),
    ({"limits": {"memory": 0.5}}, "memory.*bytes"),
    ({"limits": {"pids": "9"}}, "pids.*a number"),
    ({"input": 0.5}, "input of type float"),
    ({"input": "\udcff"}, "input"),
    ({"workspace": "/nonexistent"}, "workspace"),
    ({"workspace": "/etc/passwd"}, "workspace"),
    ({"workspace": "nul\0"}, "workspace"),
    ({"text": "\udcff"}, "UTF-8"),
    ({"text": b"bytes"}, "'text'.*bytes"),
    ({"text": {"a", "b"}}, "'text'.*set"),
    ({"text": [{"deep": object()}]}, "'text'.*object"),
    ({"text": {1: "x"}}, "'text'.*dict"),
    ({"text": float("inf")}, "'text'.*inf"),
    ({"text": CYCLE}, "'text'.*itself"),
]


@both
@pytest.mark.parametrize(("words", "named"), WRONG)
def test_what_cannot_be_asked_is_a_usage_error_and_sends_nothing(
    kind: str, words: dict[str, Any], named: str, directory: str
) -> None:
    with opened(kind, os.path.join(directory, "nobody")) as client:
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(UsageError, match=f"^cannot .*{named}"):
            client.run("c", **words)
        assert len(os.listdir("/proc/self/fd")) == before


@both
def test_a_client_that_is_closed_stays_closed(kind: str, serve: Serve) -> None:
    server = serve(one_each(ran()))
    with opened(kind, server.path) as client:
        client.run("c")
        client.close()
        with pytest.raises(UsageError, match="it is closed"):
            client.run("c")


def test_asyncio_takes_no_descriptor_as_input(directory: str) -> None:
    with (
        opened("asyncio", os.path.join(directory, "nobody")) as client,
        pytest.raises(UsageError, match="descriptor"),
    ):
        client.run("c", input=0)


@both
def test_the_workspace_is_sent_as_a_directory_that_gives_no_access(
    kind: str, serve: Serve, directory: str
) -> None:
    seen: list[tuple[str, int]] = []

    def answer(peer: Peer) -> None:
        call = peer.call()
        assert call is not None
        (fd,) = peer.descriptors
        with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as info:
            flags = next(int(line.split()[1], 8) for line in info if line.startswith("flags"))
        seen.append((os.readlink(f"/proc/self/fd/{fd}"), flags & os.O_PATH))
        assert call["parameters"]["workspace"] == 0
        peer.send(ran())

    server = serve(answer)
    before = len(os.listdir("/proc/self/fd"))
    with opened(kind, server.path) as client:
        client.run("c", workspace=directory)
    server.close()
    assert seen == [(directory, os.O_PATH)]
    assert len(os.listdir("/proc/self/fd")) < before  # the server's listener is closed as well


@both
@pytest.mark.parametrize("size", [0, 1, 65536, 1 << 20])
def test_input_arrives_whole_while_events_are_read(kind: str, serve: Serve, size: int) -> None:
    given = os.urandom(size)
    received: list[bytes] = []

    def answer(peer: Peer) -> None:
        call = peer.call()
        assert call is not None
        assert (call["parameters"]["workspace"], call["parameters"]["stdin"]) == (0, 1)
        peer.send(event("started", pid=1))
        _, pipe = peer.descriptors
        with open(pipe, "rb", closefd=False) as file:
            received.append(file.read())
        peer.send(ran())

    server = serve(answer)
    with opened(kind, server.path) as client:
        client.run("c", workspace=".", input=given, on_event=lambda _: None)
    server.close()
    assert received == [given]


@both
def test_a_command_that_does_not_read_its_input_is_no_error(kind: str, serve: Serve) -> None:
    def answer(peer: Peer) -> None:
        peer.call()
        os.close(peer.descriptors.pop())
        peer.send(ran(stdout={"data": "done"}))

    server = serve(answer)
    with opened(kind, server.path) as client:
        run = client.execute("prop_1", input=b"x" * (1 << 20))
    assert run.stdout.text() == "done"
    assert server.calls()[0]["parameters"] == {"proposal": "prop_1", "stdin": 0}


@both
def test_events_come_in_order_and_before_the_record(kind: str, serve: Serve) -> None:
    parts = [event("started", pid=9), event("output", stream="stderr", data="e"), event("ended")]
    server = serve(saying(*parts, ran()))
    seen: list[Event] = []
    with opened(kind, server.path) as client:
        client.run("c", on_event=seen.append)
    assert [each.kind for each in seen] == ["started", "output", "ended"]
    assert seen[1].bytes() == b"e"
    assert server.calls()[0]["more"] is True


@both
def test_without_a_listener_no_events_are_asked_for(kind: str, serve: Serve) -> None:
    server = serve(saying(ran()))
    with opened(kind, server.path) as client:
        client.run("c")
    assert "more" not in server.calls()[0]


@both
def test_replies_split_at_every_byte_are_read(kind: str, serve: Serve) -> None:
    whole = event("started") + event("output", stream="stdout", data="é") + ran()
    server = serve(saying(*(whole[i : i + 1] for i in range(len(whole)))))
    seen: list[Event] = []
    with opened(kind, server.path) as client:
        assert client.run("c", on_event=seen.append).ok
    assert len(seen) == 2


GARBAGE: list[bytes] = [
    b"Traceback (most recent call last)\0",
    b"\0",
    b"{}\0",
    b"\xff\xfe\0",
    reply({"run": {"id": 7}}),
    reply({"run": {"id": "r", "command": "c", "status": "flying"}}),
    reply({"run": {"id": "r", "command": "c", "status": "exited", "surprise": 1}}),
    reply({"run": {"id": "r", "command": "c", "status": "exited"}, "more": 1}),
    reply({"run": {"id": "r", "command": "c", "status": "exited", "exit_code": True}}),
    ran(stdout={"encoding": "base64", "data": "a"}),
    event("started") + ran(),
]


@both
@pytest.mark.parametrize("garbage", GARBAGE)
def test_an_answer_of_another_kind_is_unavailable(kind: str, serve: Serve, garbage: bytes) -> None:
    server = serve(saying(garbage))
    with (
        opened(kind, server.path) as client,
        pytest.raises(Unavailable, match="cannot understand the daemon"),
    ):
        client.run("c")


@both
def test_a_fault_leaves_the_connection_good(kind: str, serve: Serve) -> None:
    server = serve(one_each(fault("NotFound"), fault("Conflict", field="x"), ran()))
    with opened(kind, server.path) as client:
        with pytest.raises(NotFound):
            client.get_run("run_1")
        with pytest.raises(Conflict) as raised:
            client.cancel("prop_1")
        assert raised.value.field == "x"
        assert client.run("c").ok
    assert len(server.peers) == 1


@both
def test_a_connection_that_the_daemon_closed_meanwhile_is_made_again(
    kind: str, serve: Serve
) -> None:
    closed = threading.Event()

    def first(peer: Peer) -> None:
        peer.call()
        peer.send(ran())
        peer.sock.close()
        closed.set()

    server = serve(first, saying(ran()))
    with opened(kind, server.path) as client:
        client.run("c")
        assert closed.wait(20)
        assert client.run("c").ok  # not repeatable, but nothing had been sent
    assert len(server.peers) == 2


def _dies_on_the_second(peer: Peer) -> None:
    peer.call()
    peer.send(reply({"commands": []}))
    peer.call()


@both
def test_a_call_that_only_looks_is_sent_again_once(kind: str, serve: Serve) -> None:
    server = serve(_dies_on_the_second, saying(reply({"commands": []})))
    with opened(kind, server.path) as client:
        assert client.commands() == ()
        assert client.commands() == ()
    assert len(server.calls()) == 3


@both
def test_a_call_that_does_something_is_never_sent_twice(kind: str, serve: Serve) -> None:
    server = serve(_dies_on_the_second)
    with opened(kind, server.path) as client:
        client.commands()
        with pytest.raises(ConnectionLost):
            client.run("c")
    assert len(server.calls()) == 2


@both
def test_a_daemon_that_hangs_up_at_once_is_not_asked_for_ever(kind: str, serve: Serve) -> None:
    server = serve(one_each(b""))
    with opened(kind, server.path) as client, pytest.raises(ConnectionLost) as raised:
        client.commands()
    assert raised.value.retryable


@both
def test_why_the_daemon_hangs_up_in_the_middle_of_a_frame_is_told(kind: str, serve: Serve) -> None:
    def answer(peer: Peer) -> None:
        assert peer.sock.recv(1)
        peer.send(fault("UsageError", message="cannot take this"))

    server = serve(answer)
    with opened(kind, server.path) as client, pytest.raises(UsageError, match="take this"):
        client.run("c", text="x" * (1 << 19))


@both
def test_check_raises_what_is_no_success(kind: str, serve: Serve) -> None:
    server = serve(one_each(ran(exit_code=3), ran(exit_code=3)))
    with opened(kind, server.path) as client:
        assert client.run("c").exit_code == 3
        with pytest.raises(RunFailed) as raised:
            client.run("c", check=True)
    assert raised.value.run.exit_code == 3


@both
def test_nobody_listening_is_unavailable_and_says_where(kind: str, directory: str) -> None:
    path = os.path.join(directory, "agent.sock")
    with opened(kind, path) as client, pytest.raises(Unavailable, match=path):
        client.commands()


def test_an_exception_in_the_listener_ends_the_call_and_its_connection(serve: Serve) -> None:
    def answer(peer: Peer) -> None:
        peer.call()
        peer.send(event("started"))
        assert peer.call() is None  # which is what makes a daemon cancel the run

    server = serve(answer)

    def interrupt(_: Event) -> None:
        raise KeyboardInterrupt

    with Client(server.path) as client, pytest.raises(KeyboardInterrupt):
        client.run("c", on_event=interrupt)


def test_a_signal_can_be_sent_while_the_run_is_waited_for(serve: Serve) -> None:
    signalled = threading.Event()

    def running(peer: Peer) -> None:
        peer.call()
        peer.send(event("started"))
        assert signalled.wait(20)
        peer.send(ran(status="signaled", signal=15, exit_code=None))

    def signals(peer: Peer) -> None:
        call = peer.call()
        assert call is not None
        assert call["parameters"] == {"run": "run_1", "signal": 15}
        peer.send(reply({}))
        signalled.set()

    server = serve(running, signals)
    with Client(server.path) as client:
        run = client.run("c", on_event=lambda each: client.signal(each.run, 15))
    assert run.exit_status == 143


def test_threads_share_a_client(serve: Serve) -> None:
    both_in = threading.Barrier(2)

    def answer(peer: Peer) -> None:
        call = peer.call()
        assert call is not None
        both_in.wait(20)
        peer.send(ran(command=call["parameters"]["command"]))

    server = serve(answer, answer)
    results: list[str] = []
    with Client(server.path) as client:
        workers = [
            threading.Thread(target=lambda n=n: results.append(client.run(n).command))
            for n in ("a", "b")
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(20)
    assert sorted(results) == ["a", "b"]


def test_cancelling_a_task_ends_the_call_and_its_connection(serve: Serve) -> None:
    def answer(peer: Peer) -> None:
        peer.call()
        peer.send(event("started"))
        assert peer.call() is None

    server = serve(answer)

    async def scenario() -> None:
        started = asyncio.Event()
        async with AsyncClient(server.path) as client:
            task = asyncio.create_task(client.run("c", on_event=lambda _: started.set()))
            await started.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(scenario())


def test_two_tasks_run_at_once(serve: Serve) -> None:
    def answer_after(gate: threading.Event | None, opens: threading.Event) -> Answer:
        def answer(peer: Peer) -> None:
            peer.call()
            opens.set()
            assert gate is None or gate.wait(20)
            peer.send(ran())

        return answer

    opened_first, opened_second = threading.Event(), threading.Event()
    first = serve(answer_after(opened_second, opened_first))
    second = serve(answer_after(opened_first, opened_second))

    async def scenario() -> None:
        async with AsyncClient(first.path) as one, AsyncClient(second.path) as other:
            runs = await asyncio.gather(one.run("c"), other.run("c"))
            assert all(run.ok for run in runs)

    asyncio.run(scenario())


def test_the_administrator_has_calls_of_its_own(serve: Serve) -> None:
    proposal = {"id": "prop_1", "command": "c", "state": "ready"}
    server = serve(
        one_each(
            reply({"proposals": [proposal]}),
            reply({"proposal": proposal}),
            reply({"proposal": proposal | {"state": "rejected"}}),
            reply({"profiles": 3, "digest": "d"}),
            reply({"runs": []}),
            reply({}),
        )
    )
    with AdminClient(server.path) as admin:
        assert [each.id for each in admin.pending()] == ["prop_1"]
        assert admin.approve("prop_1").state == "ready"
        assert admin.reject("prop_1", "no").state == "rejected"
        assert admin.reload().profiles == 3
        assert admin.runs(limit=5, active=True) == ()
        admin.kill("run_1")
    assert [(call["method"], call["parameters"]) for call in server.calls()] == [
        ("io.sandboxd.Admin.Pending", {}),
        ("io.sandboxd.Admin.Approve", {"proposal": "prop_1"}),
        ("io.sandboxd.Admin.Reject", {"proposal": "prop_1", "message": "no"}),
        ("io.sandboxd.Admin.Reload", {}),
        ("io.sandboxd.Admin.Runs", {"limit": 5, "active": True}),
        ("io.sandboxd.Admin.Kill", {"run": "run_1"}),
    ]
