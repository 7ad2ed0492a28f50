"""A server on a real Unix socket that answers what a test tells it to, well formed or not."""

from __future__ import annotations

import array
import json
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

PATIENCE_S = 20.0
Answer = Callable[["Peer"], None]


def reply(parameters: dict[str, Any], **members: Any) -> bytes:
    return json.dumps({"parameters": parameters} | members).encode() + b"\0"


def fault(name: str, **parameters: Any) -> bytes:
    given = {"message": "cannot", "retryable": False} | parameters
    return reply(given, error=f"io.sandboxd.Fault.{name}")


def run_record(**members: Any) -> dict[str, Any]:
    return {"id": "run_1", "command": "c", "status": "exited", "exit_code": 0} | members


def ran(**members: Any) -> bytes:
    return reply({"run": run_record(**members)})


def event(kind: str, **members: Any) -> bytes:
    return reply({"event": {"kind": kind, "run": "run_1"} | members}, continues=True)


@dataclass
class Peer:
    """The server's side of one connection. ``calls`` and ``descriptors`` are what came."""

    sock: socket.socket
    calls: list[dict[str, Any]] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)
    _received: bytes = b""

    def call(self) -> dict[str, Any] | None:
        """Return the next call, or None when the client has closed."""
        while b"\0" not in self._received:
            try:
                data, ancillary, _, _ = self.sock.recvmsg(1 << 16, 1024)
            except ConnectionResetError:
                return None
            for _, _, payload in ancillary:
                self.descriptors += array.array("i", payload).tolist()
            if not data:
                return None
            self._received += data
        frame, self._received = self._received.split(b"\0", 1)
        self.calls.append(json.loads(frame))
        return self.calls[-1]

    def send(self, *parts: bytes) -> None:
        """Send each part by a system call of its own."""
        for part in parts:
            self.sock.sendall(part)


class Scripted:
    """Serves each connection, in a thread of its own, with the next of ``answers``."""

    def __init__(self, path: str, *answers: Answer) -> None:
        self.path = path
        self.peers: list[Peer] = []
        self.problems: list[BaseException] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.settimeout(PATIENCE_S)
        self._listener.bind(path)
        self._listener.listen()
        self._threads = [threading.Thread(target=self._accept, args=(answers,))]
        self._threads[0].start()

    def calls(self) -> list[dict[str, Any]]:
        return [call for peer in self.peers for call in peer.calls]

    def close(self) -> None:
        """Wait until every answer was given, and see that none failed."""
        for thread in self._threads:  # the first adds the others before it ends
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), "nobody connected, or hung up, as the test meant"
        self._listener.close()
        assert not self.problems

    def _accept(self, answers: tuple[Answer, ...]) -> None:
        for answer in answers:
            try:
                sock, _ = self._listener.accept()
            except OSError as problem:
                self.problems.append(problem)
                return
            sock.settimeout(PATIENCE_S)
            self.peers.append(Peer(sock))
            served = (answer, self.peers[-1])
            self._threads.append(threading.Thread(target=self._answer, args=served))
            self._threads[-1].start()

    def _answer(self, answer: Answer, peer: Peer) -> None:
        with peer.sock:
            try:
                answer(peer)
            except (OSError, AssertionError) as problem:
                self.problems.append(problem)
            for fd in peer.descriptors:
                os.close(fd)


def saying(*parts: bytes) -> Answer:
    """Answer one call with these parts, then wait for the client to hang up."""

    def answer(peer: Peer) -> None:
        assert peer.call() is not None
        peer.send(*parts)
        assert peer.call() is None

    return answer


def one_each(*replies: bytes) -> Answer:
    """Answer as many calls as there are replies, then hang up at once."""

    def answer(peer: Peer) -> None:
        for each in replies:
            assert peer.call() is not None
            peer.send(each)

    return answer
