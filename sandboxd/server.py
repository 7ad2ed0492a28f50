"""How are connections accepted, bounded, served and ended?

One task a connection, one call at a time on each. A listening socket hands out no more than a
bounded number of connections, in all and for each uid; whoever comes on top is told so and closed.
When the process has no descriptor left for another connection, accepting pauses: accept(2) would
fail again at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import time
from collections import Counter
from dataclasses import dataclass

from asyncvarlink import VarlinkInterfaceRegistry

from sandboxd.connection import BadFrame, Connection, Deadlines, Frame, Hangups, PeerGone
from sandboxd.errors import Unavailable, UsageError
from sandboxd.log import log, log_rarely
from sandboxd.peer import Peer, may_connect, peer_of
from sandboxd.varlink import Caller, answer, decode_call, encode_fault

_BACKLOG = socket.SOMAXCONN  # beyond it, connect(2) fails at once for who does not block
_ACCEPTED_AT_ONCE = 16
_PAUSE_S = 0.1
_NO_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """How many connections there may be, in all and of one uid."""

    total: int
    per_uid: int


class Server:
    """Serves listening sockets, each with its own interfaces.

    ``idle_since`` is when the last connection ended (time.monotonic), None while there is one;
    ``quiet`` is set while no call is being answered.
    """

    def __init__(self, limits: ConnectionLimits, deadlines: Deadlines) -> None:
        self._limits = limits
        self._deadlines = deadlines
        self._loop = asyncio.get_running_loop()
        self._hangups = Hangups()
        self._listeners: dict[socket.socket, VarlinkInterfaceRegistry] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._of_uid: Counter[int] = Counter()
        self._calls = 0
        self.idle_since: float | None = time.monotonic()
        self.quiet = asyncio.Event()
        self.quiet.set()

    def add(self, listener: socket.socket, registry: VarlinkInterfaceRegistry) -> None:
        """Serve ``registry`` to whoever connects to ``listener``."""
        listener.setblocking(False)
        listener.listen(_BACKLOG)
        self._listeners[listener] = registry
        self._resume(listener)

    def stop_accepting(self) -> None:
        """Let nobody else in; those inside stay."""
        for listener in self._listeners:
            self._loop.remove_reader(listener)
            listener.close()
        self._listeners.clear()

    async def close(self) -> None:
        """End all connections."""
        self.stop_accepting()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._hangups.close()

    def _resume(self, listener: socket.socket) -> None:
        if listener in self._listeners:
            self._loop.add_reader(listener, self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                sock, _ = listener.accept()
            except BlockingIOError:
                return
            except ConnectionError:  # it was gone before it was accepted
                continue
            except OSError as error:
                if error.errno not in _NO_RESOURCES:
                    raise
                log_rarely("accept_paused", errno=error.errno)
                self._loop.remove_reader(listener)
                self._loop.call_later(_PAUSE_S, self._resume, listener)
                return
            self._admit(sock, self._listeners[listener])

    def _admit(self, sock: socket.socket, registry: VarlinkInterfaceRegistry) -> None:
        try:
            peer = peer_of(sock)
        except OSError as error:
            log_rarely("peer_unknown", errno=error.errno)
            sock.close()
            return
        if not may_connect(peer, os.geteuid()):
            log_rarely("peer_refused", uid=peer.uid, pid=peer.pid)
            _turn_away(sock, peer)
        elif (
            self._of_uid.total() >= self._limits.total
            or self._of_uid[peer.uid] >= self._limits.per_uid
        ):
            log_rarely("too_many_connections", uid=peer.uid)
            _turn_away(sock, peer, Unavailable("cannot serve another connection now"))
        else:
            self._of_uid[peer.uid] += 1
            connection = Connection(sock, peer, self._deadlines, self._hangups)
            task = self._loop.create_task(self._serve(connection, registry))
            self._tasks.add(task)
            self.idle_since = None
            task.add_done_callback(self._served)

    def _served(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not self._tasks:
            self.idle_since = time.monotonic()

    async def _serve(self, connection: Connection, registry: VarlinkInterfaceRegistry) -> None:
        """Answer one call after the other until the connection ends."""
        try:
            while (frame := await connection.receive()) is not None:
                await self._answer(connection, registry, frame)
                await asyncio.sleep(0)  # others' turn, however much this peer has sent ahead
        except BadFrame as error:
            log_rarely("bad_frame", uid=connection.peer.uid, problem=str(error))
            with contextlib.suppress(PeerGone):
                await connection.send(encode_fault(UsageError(str(error))))
        except PeerGone:
            pass
        except Exception as error:  # noqa: BLE001  # main loop: one connection's bug is not all's
            log("internal_error", error=repr(error), where=_where(error))
            with contextlib.suppress(PeerGone):
                await connection.send(encode_fault(Unavailable("cannot answer: internal error")))
        finally:
            self._of_uid[connection.peer.uid] -= 1
            self._of_uid += Counter()  # drop uids without a connection
            connection.close()

    async def _answer(
        self, connection: Connection, registry: VarlinkInterfaceRegistry, frame: Frame
    ) -> None:
        self._calls += 1
        self.quiet.clear()
        try:
            call = decode_call(frame.data)
            await answer(registry, call, Caller(connection, frame, call.more))
        finally:
            frame.close()
            self._calls -= 1
            if not self._calls:
                self.quiet.set()


def _turn_away(sock: socket.socket, peer: Peer, fault: Unavailable | None = None) -> None:
    with contextlib.closing(sock), contextlib.closing(peer), contextlib.suppress(OSError):
        if fault is not None:
            sock.setblocking(False)
            sock.send(encode_fault(fault), socket.MSG_NOSIGNAL)


def _where(error: BaseException) -> str:
    """Name the line that raised, for the log alone."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return ""
    return f"{os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}"
