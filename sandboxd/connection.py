"""How do bytes and descriptors of one client become frames, within bounds?

asyncvarlink's own transport has no bound on a frame, drops the flags of recvmsg(2) (so a truncated
list of descriptors goes unnoticed, and none is close-on-exec) and stops watching the peer while a
call runs. This one reads one frame at a time, exactly up to its NUL: what a client sends ahead
waits in the kernel's socket buffer, which is its bound.

A descriptor belongs to the frame that holds the first byte of the sendmsg(2) it came with.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import os
import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from sandboxd.peer import Peer
from sandboxd.protocol import MAX_FRAME_BYTES

MAX_DESCRIPTORS = 4
_CHUNK_BYTES = 1 << 16
_ANCILLARY_BYTES = socket.CMSG_SPACE(MAX_DESCRIPTORS * array.array("i").itemsize)


class BadFrame(Exception):
    """The peer does not keep to the protocol, so its connection ends. The text may be told it."""


class PeerGone(Exception):
    """The peer closed its socket, or takes nothing any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """How long a connection may be idle, a frame may take, and a reply may find no reader."""

    idle_s: float
    frame_s: float
    stall_s: float


@dataclass(frozen=True, slots=True)
class Frame:
    """One message, without its NUL, and the descriptors that came with it."""

    data: bytes
    descriptors: list[int]

    def close(self) -> None:
        """Close the descriptors; whoever needs one for longer duplicates it."""
        while self.descriptors:
            os.close(self.descriptors.pop())


class Hangups:
    """Tells when a peer has closed its socket, also while nobody reads from it.

    An epoll(7) set that asks for no event reports EPOLLHUP alone: closed in both directions. A
    peer that only shut down its writing side still waits for its reply.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._waiting: dict[int, asyncio.Event] = {}
        asyncio.get_running_loop().add_reader(self._epoll.fileno(), self._report)

    def watch(self, fd: int) -> asyncio.Event:
        """Return an event that is set when the peer of ``fd`` hangs up."""
        self._epoll.register(fd, 0)
        self._waiting[fd] = asyncio.Event()
        return self._waiting[fd]

    def forget(self, fd: int) -> None:
        """Stop watching; needed before ``fd`` is closed."""
        if self._waiting.pop(fd, None) is not None:
            with contextlib.suppress(FileNotFoundError):  # it has reported already
                self._epoll.unregister(fd)

    def close(self) -> None:
        """Stop watching altogether."""
        asyncio.get_running_loop().remove_reader(self._epoll.fileno())
        self._epoll.close()

    def _report(self) -> None:
        for fd, _ in self._epoll.poll(0):
            self._epoll.unregister(fd)
            self._waiting[fd].set()


class Connection:
    """A client's socket. One task reads and writes; ``gone`` is set when the peer hangs up."""

    def __init__(
        self, sock: socket.socket, peer: Peer, deadlines: Deadlines, hangups: Hangups
    ) -> None:
        sock.setblocking(False)
        self.peer = peer
        self.gone = hangups.watch(sock.fileno())
        self._sock = sock
        self._deadlines = deadlines
        self._hangups = hangups
        self._buffer = bytearray()
        self._received: list[int] = []
        self._loop = asyncio.get_running_loop()

    async def receive(self) -> Frame | None:
        """Return the next frame, or None at its end: closed, or idle for too long.

        Raises:
            BadFrame: too long, too many descriptors, or not complete within its deadline.

        """
        try:
            async with asyncio.timeout(self._deadlines.idle_s):
                more = await self._receive_some()
        except TimeoutError:
            return None
        deadline = time.monotonic() + self._deadlines.frame_s
        while more and not self._buffer.endswith(b"\0"):
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    more = await self._receive_some()
            except TimeoutError:
                raise BadFrame("cannot wait any longer for the rest of the frame") from None
        return self._take_frame() if more else None

    async def send(self, data: bytes) -> None:
        """Send all of ``data``, waiting for the peer to take it.

        Raises:
            PeerGone: it does not take it within the deadline, or has closed.

        """
        view = memoryview(data)
        while view:
            try:
                view = view[self._sock.send(view, socket.MSG_NOSIGNAL) :]
            except BlockingIOError:
                await self._until_writable()
            except OSError as error:
                raise PeerGone(str(error)) from None

    def close(self) -> None:
        """Close the socket and whatever came with an incomplete frame."""
        self._hangups.forget(self._sock.fileno())
        for fd in self._received:
            os.close(fd)
        self._received = []
        self._sock.close()
        self.peer.close()

    async def _receive_some(self) -> bool:
        while True:
            try:
                return self._receive_now()
            except BlockingIOError:
                await self._until(self._loop.add_reader, self._loop.remove_reader)
            except ConnectionError:
                return False

    def _receive_now(self) -> bool:
        """Receive up to the frame's NUL, or a chunk; False at end of file."""
        ahead = self._sock.recv(_CHUNK_BYTES, socket.MSG_PEEK)
        if not ahead:
            return False
        end = ahead.find(b"\0")
        if len(self._buffer) + (len(ahead) if end < 0 else end) > MAX_FRAME_BYTES:
            raise BadFrame(f"cannot take a frame of more than {MAX_FRAME_BYTES} bytes")
        size = len(ahead) if end < 0 else end + 1
        data, ancillary, flags, _ = self._sock.recvmsg(
            size, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC
        )
        for level, kind, payload in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                self._received.extend(_integers(payload))
        if flags & socket.MSG_CTRUNC or len(self._received) > MAX_DESCRIPTORS:
            raise BadFrame(f"cannot take more than {MAX_DESCRIPTORS} descriptors with a frame")
        self._buffer += data
        return True

    def _take_frame(self) -> Frame:
        frame = Frame(bytes(self._buffer[:-1]), self._received)
        self._buffer, self._received = bytearray(), []
        return frame

    async def _until_writable(self) -> None:
        try:
            async with asyncio.timeout(self._deadlines.stall_s):
                await self._until(self._loop.add_writer, self._loop.remove_writer)
        except TimeoutError:
            raise PeerGone("it does not read") from None

    async def _until(
        self,
        add: Callable[[int, Callable[[], None]], None],
        remove: Callable[[int], bool],
    ) -> None:
        ready = asyncio.Event()
        add(self._sock.fileno(), ready.set)
        try:
            await ready.wait()
        finally:
            remove(self._sock.fileno())


def _integers(payload: bytes) -> list[int]:
    integers = array.array("i")
    integers.frombytes(payload[: len(payload) - len(payload) % integers.itemsize])
    return integers.tolist()
