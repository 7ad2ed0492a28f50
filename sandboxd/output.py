"""What is kept of a command's output, however much it prints?

A bounded beginning and end of each stream; all of it is counted and hashed. Reading is bounded
per turn of the event loop, so that no run starves another, and stops while the client takes no
more events: then the command blocks in write(2), and its wall limit goes on.
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import hashlib
import os
from collections.abc import Callable
from typing import Literal, Protocol

from sandboxd.prepared import Bounds
from sandboxd.protocol import Event, Stream

CHUNK_BYTES = 64 << 10  # what a pipe holds, pipe(7)


class Keeper:
    """Bounded memory of one stream: never more than about twice ``limit_bytes``."""

    def __init__(self, limit_bytes: int, keep: Literal["head+tail", "head", "tail"]) -> None:
        shares = {"head+tail": limit_bytes - limit_bytes // 2, "head": limit_bytes, "tail": 0}
        self.head_limit = shares[keep]
        self._tail_limit = limit_bytes - self.head_limit
        self._head = bytearray()
        self._tail = bytearray()
        self._hash = hashlib.sha256()
        self.total_bytes = 0

    def add(self, data: memoryview) -> None:
        """Take the next bytes of the stream."""
        self._hash.update(data)
        self.total_bytes += len(data)
        room = self.head_limit - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if len(data) >= self._tail_limit:
            self._tail[:] = data[len(data) - self._tail_limit :]
            return
        self._tail += data
        if len(self._tail) > 2 * self._tail_limit:
            del self._tail[: -self._tail_limit]

    def stream(self) -> Stream:
        """Describe the stream so far. A character that truncation would cut is left out."""
        head = bytes(self._head)
        tail = bytes(self._tail[-self._tail_limit :]) if self._tail_limit else b""
        if len(head) + len(tail) < self.total_bytes:
            whole_head = head[: len(head) - unfinished(head)]
            whole_tail = tail[_continuation(tail) :]
            if _is_text(whole_head) and _is_text(whole_tail):
                head, tail = whole_head, whole_tail
        return Stream.of(
            head + tail,
            head_bytes=len(head),
            total_bytes=self.total_bytes,
            sha256=self._hash.hexdigest(),
        )


def unfinished(data: bytes | bytearray) -> int:
    """Return how many bytes at the end begin a UTF-8 character that is not complete (utf-8(7))."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte >= 0xC0:
            needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return back if back < needed else 0
        if byte < 0x80:
            break
    return 0


def _continuation(data: bytes) -> int:
    """Return how many bytes at the beginning end a UTF-8 character that began before."""
    count = 0
    while count < min(3, len(data)) and data[count] & 0xC0 == 0x80:
        count += 1
    return count


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


class Teller(Protocol):
    """Where events go: `sandboxd.telling.Teller`."""

    @property
    def full(self) -> bool:
        """True while no more should be given."""

    def put(self, event: Event) -> None:
        """Give an event."""

    def when_room(self, resume: Callable[[], None]) -> None:
        """Call ``resume`` once it is no longer full."""


class Capture:
    """Reads one stream of one run to its end; ``done`` is set when no more will be read.

    Owns ``fd``, the read end of a pipe. Events are copies of ``event`` with the data. ``buffer``
    is shared by all captures of a loop. When the stream passes the bound on its total,
    ``on_limit`` is called once.
    """

    def __init__(  # noqa: PLR0913  # what is shared, and what is this stream's own
        self,
        fd: int,
        event: Event,
        bounds: Bounds,
        buffer: bytearray,
        teller: Teller,
        *,
        on_limit: Callable[[], None],
    ) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._event = event
        self._keeper = Keeper(bounds.output_bytes, bounds.output_keep)
        # Events carry the head alone: with the tail of the record, which comes at the end, a
        # client is never sent more than the bound.
        self._untold_bytes = self._keeper.head_limit
        self._total_limit = bounds.output_total_bytes
        self._pending = b""
        self._buffer = buffer
        self._teller = teller
        self._on_limit = on_limit
        self._patient = True
        self._paused = False
        self._loop = asyncio.get_running_loop()
        self.done = asyncio.Event()

    def start(self) -> None:
        """Begin to read."""
        self._loop.add_reader(self._fd, self._read)

    def hurry(self) -> None:
        """Wait for the client no more: the command has ended, what it left is bounded."""
        self._patient = False
        if self._paused:
            self._resume()

    def stop(self) -> None:
        """Read no more and close the descriptor. Calling it again is harmless."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
            self._tell(self._pending, incomplete=0)
            self._pending = b""
            self.done.set()

    def stream(self) -> Stream:
        """Describe what was read."""
        return self._keeper.stream()

    def _read(self) -> None:
        try:
            count = os.readv(self._fd, [self._buffer])
        except BlockingIOError:
            return
        if count == 0:
            self.stop()
            return
        data = memoryview(self._buffer)[:count]
        self._keeper.add(data)
        if self._total_limit is not None and self._keeper.total_bytes > self._total_limit:
            self._total_limit = None
            self._on_limit()
        if self._untold_bytes:
            self._take_for_events(data)

    def _take_for_events(self, data: memoryview) -> None:
        whole = self._pending + bytes(data[: self._untold_bytes])
        self._untold_bytes -= min(len(data), self._untold_bytes)
        incomplete = unfinished(whole)
        self._pending = b"" if not self._untold_bytes else whole[len(whole) - incomplete :]
        self._tell(whole, incomplete=incomplete)
        if self._patient and self._untold_bytes and self._teller.full and not self._paused:
            self._paused = True
            self._loop.remove_reader(self._fd)
            self._teller.when_room(self._resume)

    def _resume(self) -> None:
        if self._paused and self._fd >= 0:
            self._paused = False
            self._loop.add_reader(self._fd, self._read)

    def _tell(self, data: bytes, *, incomplete: int) -> None:
        whole = data[: len(data) - incomplete]
        if not whole:
            return
        text = _is_text(whole)
        data_text = whole.decode() if text else base64.b64encode(whole).decode()
        encoding: Literal["utf-8", "base64"] = "utf-8" if text else "base64"
        self._teller.put(dataclasses.replace(self._event, encoding=encoding, data=data_text))
