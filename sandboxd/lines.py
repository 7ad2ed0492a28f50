"""How does one blocking call go over a Unix socket, and which connections are kept?

Each call has a connection of its own while it lasts, so calls may be made from several threads and
from within `on_event`. A connection is kept only if its last reply was read to the end.
"""

from __future__ import annotations

import array
import contextlib
import os
import select
import socket
from collections.abc import Callable
from typing import Generic, Literal, TypeVar

from sandboxd.calls import Call
from sandboxd.endpoints import Endpoints, default_endpoints
from sandboxd.errors import Unavailable, UsageError
from sandboxd.feed import Feed
from sandboxd.protocol import Event
from sandboxd.wire import ConnectionLost, Replies, Reply

T = TypeVar("T")
_CHUNK_BYTES = 1 << 18
_IDLE_LIMIT = 4


class Line:
    """One connection, for one call at a time. ``clean``: every reply to the last was read."""

    def __init__(self, sock: socket.socket) -> None:
        self.clean = True
        self._sock = sock

    def close(self) -> None:
        """Close it. A run that was asked for over it is cancelled by the daemon."""
        self._sock.close()

    def stale(self) -> bool:
        """Tell whether the daemon has closed it, or sent what nobody asked for."""
        try:
            self._sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True


class BlockingLine(Line):
    """A connection whose calls wait in the calling thread."""

    def call(self, call: Call[T], frame: bytes, on_event: Callable[[Event], None] | None) -> T:
        """Send ``frame`` and wait for the last reply to it."""
        self.clean = False
        replies = Replies(more=call.more)
        self._send(frame, call.descriptors)
        if call.feed is not None:
            call.feed.sent()
        try:
            reply = self._last(replies, call.feed, on_event)
        finally:
            self.clean = replies.done
        return call.read(reply.parameters)

    def _last(
        self, replies: Replies, feed: Feed | None, on_event: Callable[[Event], None] | None
    ) -> Reply:
        while True:
            item = replies.next()
            if isinstance(item, Reply):
                return item
            if item is None:
                replies.feed(self._receive(feed))
            elif on_event is not None:
                on_event(item)

    def _send(self, frame: bytes, descriptors: tuple[int, ...]) -> None:
        try:
            sent = self._sock.sendmsg([frame], rights(descriptors), socket.MSG_NOSIGNAL)
        except ConnectionError as error:
            raise ConnectionLost(error.strerror or str(error), unsent=True) from None
        if sent < len(frame):
            with contextlib.suppress(ConnectionError):  # why it hung up may stand in its reply
                self._sock.sendall(frame[sent:], socket.MSG_NOSIGNAL)

    def _receive(self, feed: Feed | None) -> bytes:
        """Wait for bytes of the daemon, and meanwhile copy input as the command takes it."""
        while feed is not None:
            other = feed.writes_to if feed.writes_to is not None else feed.reads_from
            if other is None:
                break
            poll = select.poll()
            poll.register(other, select.POLLOUT if other == feed.writes_to else select.POLLIN)
            poll.register(self._sock, select.POLLIN)
            ready = [fd for fd, _ in poll.poll()]
            if other in ready:
                feed.advance()
            if self._sock.fileno() in ready:
                break
        try:
            return self._sock.recv(_CHUNK_BYTES)
        except ConnectionError as error:
            raise ConnectionLost(error.strerror or str(error)) from None


def rights(descriptors: tuple[int, ...]) -> list[tuple[int, int, array.array[int]]]:
    """Return the ancillary data of unix(7) that carries ``descriptors``."""
    if not descriptors:
        return []
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]


L = TypeVar("L", bound=Line)


class Kept(Generic[L]):
    """The connections that are kept for the next call; safe to share between threads."""

    def __init__(self) -> None:
        self._lines: list[L] = []
        self._owner = os.getpid()
        self._closed = False

    def close(self) -> None:
        """Close all of them, for good."""
        self._closed = True
        self._close_lines()

    def take(self) -> L | None:
        """Return one that the daemon has not closed meanwhile, if there is any.

        Raises:
            UsageError: it is closed, so nothing more is called.

        """
        if self._closed:
            raise UsageError("cannot use this client any more: it is closed")
        if self._owner != os.getpid():  # after fork(2) the connections are the parent's
            self._close_lines()
            self._owner = os.getpid()
        with contextlib.suppress(IndexError):  # another thread may take the last one
            while True:
                line = self._lines.pop()
                if not line.stale():
                    return line
                line.close()
        return None

    def put_back(self, line: L) -> None:
        """Keep ``line`` if it can be used again, else close it."""
        if line.clean and not self._closed and len(self._lines) < _IDLE_LIMIT:
            self._lines.append(line)
        else:
            line.close()

    def _close_lines(self) -> None:
        while self._lines:
            self._lines.pop().close()


class Lines:
    """Makes calls at one socket, starting the daemon if that is wanted and it does not run."""

    def __init__(self, path: str, start: Endpoints | None) -> None:
        self._path = path
        self._start = start
        self._kept: Kept[BlockingLine] = Kept()

    def close(self) -> None:
        """Close the idle connections."""
        self._kept.close()

    def call(self, call: Call[T], on_event: Callable[[Event], None] | None = None) -> T:
        """Carry out ``call`` over a kept or a new connection.

        Raises:
            SandboxdError: the daemon's fault, or `Unavailable` if it does not answer.

        """
        frame = call.frame()
        while True:
            kept = self._kept.take()
            line = kept or BlockingLine(connect(self._path, self._start))
            try:
                return line.call(call, frame, on_event)
            except ConnectionLost as lost:
                if kept is None or not (call.repeatable or lost.unsent):
                    raise
            finally:
                self._kept.put_back(line)


def where(
    socket_path: str | None, kind: Literal["agent", "admin"]
) -> tuple[str, Endpoints | None]:
    """Return the socket to connect to, and which daemon to start if nobody listens there."""
    if socket_path is not None:
        return socket_path, None
    endpoints = default_endpoints()
    path = endpoints.agent_socket if kind == "agent" else endpoints.admin_socket
    return path, None if os.environ.get("SANDBOXD_NO_AUTOSTART") else endpoints


def connect(path: str, start: Endpoints | None) -> socket.socket:
    """Connect to ``path``; if nobody listens there, start the daemon of ``start`` first.

    Raises:
        Unavailable: nobody can be reached.

    """
    try:
        return _connect(path)
    except (FileNotFoundError, ConnectionRefusedError) as error:
        if start is None:
            raise _unreachable(path, error) from None
    except OSError as error:
        raise _unreachable(path, error) from None
    from sandboxd import autostart

    autostart.ensure_running(start)
    try:
        return _connect(path)
    except OSError as error:
        raise _unreachable(path, error) from None


def _connect(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.connect(path)
    except BaseException:
        sock.close()
        raise
    return sock


def _unreachable(path: str, error: OSError) -> Unavailable:
    return Unavailable(f"cannot reach the daemon at {path}: {error.strerror or error}")
