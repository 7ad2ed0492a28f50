"""How does the daemon speak with the launcher and with inits without ever waiting for them?

The daemon's end of a `launcher.channel` in the event loop: messages are handed on as they arrive,
and what the other side does not take at once is kept, with duplicates of its descriptors, until
it does.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from launcher import channel
from launcher.records import Malformed

M = TypeVar("M")
_MESSAGES_AT_ONCE = 16
_BACKLOG_MESSAGES = 4096


class Link(Generic[M]):
    """One channel. ``on_message`` owns the descriptors it is given; ``on_end`` is called once.

    ``receive`` is `launcher.channel.receive` with the messages that may come. ``on_end`` is told
    what was wrong, or None at end of file, and is not called after `close`.
    """

    def __init__(
        self,
        end: socket.socket,
        receive: Callable[[socket.socket], tuple[M, list[int]] | None],
        on_message: Callable[[M, list[int]], None],
        on_end: Callable[[Exception | None], None],
    ) -> None:
        end.setblocking(False)
        self._socket = end
        self._receive = receive
        self._on_message = on_message
        self._on_end = on_end
        self._backlog: deque[tuple[object, list[int]]] = deque()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(end, self._read_some)

    @property
    def closed(self) -> bool:
        """True after the end of file, a broken protocol, or `close`."""
        return self._socket.fileno() < 0

    def send(self, message: object, fds: Sequence[int] = ()) -> None:
        """Send now or as soon as possible; the descriptors stay the caller's.

        To a side that is gone nothing is sent, and `on_end` tells so.
        """
        if self.closed:
            return
        if not self._backlog and self._send(message, fds):
            return
        if len(self._backlog) == _BACKLOG_MESSAGES:
            self._finish(BlockingIOError(11, "the other side takes no messages"))
            return
        if not self._backlog:
            self._loop.add_writer(self._socket, self._write)
        self._backlog.append((message, [os.dup(fd) for fd in fds]))

    def read(self) -> None:
        """Hand on everything that has arrived, without waiting for the loop's turn."""
        while self._read_one():
            pass

    def close(self) -> None:
        """Close the channel; what was not sent is dropped."""
        if self.closed:
            return
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        while self._backlog:
            channel.close_all(self._backlog.popleft()[1])

    def _send(self, message: object, fds: Sequence[int]) -> bool:
        try:
            channel.send(self._socket, message, fds)
        except BlockingIOError:
            return False
        except (BrokenPipeError, ConnectionResetError):
            pass  # whatever it said before it went is still to be read
        return True

    def _write(self) -> None:
        while self._backlog and self._send(*self._backlog[0]):
            channel.close_all(self._backlog.popleft()[1])
        if not self._backlog:
            self._loop.remove_writer(self._socket)

    def _read_some(self) -> None:
        """Hand on what has arrived, a bounded number at once so that others have their turn."""
        for _ in range(_MESSAGES_AT_ONCE):
            if not self._read_one():
                return

    def _read_one(self) -> bool:
        """Hand on one message; False if there is none, now or ever."""
        if self.closed:
            return False
        try:
            received = self._receive(self._socket)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return True  # it went without reading all of ours; what it said is queued behind this
        except (OSError, Malformed) as error:
            self._finish(error)
            return False
        if received is None:
            self._finish(None)
            return False
        self._on_message(*received)
        return True

    def _finish(self, error: Exception | None) -> None:
        self.close()
        self._on_end(error)
