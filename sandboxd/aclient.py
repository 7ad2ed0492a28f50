"""How does an asyncio program have commands run?

    async with AsyncClient() as client:
        run = await client.run("rg", pattern="main", paths=["src"], workspace=".", timeout=10)

The same methods as `sandboxd.client.Client`. Cancelling a task closes the connection of its call,
and the daemon cancels the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Self, TypeVar

from sandboxd import calls
from sandboxd.calls import Call
from sandboxd.errors import UsageError
from sandboxd.feed import Feed
from sandboxd.lines import Kept, Line, connect, rights, where
from sandboxd.outgoing import Outgoing, feed_of, request_for, seconds_of
from sandboxd.protocol import CommandInfo, Event, Proposal, Run, Verdict
from sandboxd.wire import ConnectionLost, Replies, Reply

T = TypeVar("T")
_CHUNK_BYTES = 1 << 18


class AsyncClient:
    """Talks to the daemon as an agent. ``socket_path`` names another daemon than the default."""

    def __init__(self, socket_path: str | None = None) -> None:
        self._path, self._start = where(socket_path, "agent")
        self._kept: Kept[AsyncLine] = Kept()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the idle connections, for good: a later call is a `UsageError`."""
        self._kept.close()

    async def run(  # noqa: PLR0913  # reads like subprocess.run
        self,
        command: str,
        /,
        *,
        arguments: Mapping[str, object] | None = None,
        workspace: str | os.PathLike[str] | int | None = None,
        timeout: float | str | None = None,  # noqa: ASYNC109  # bounds the command, not this call
        limits: Mapping[str, int | str] | None = None,
        input: str | bytes | None = None,  # noqa: A002  # the name that subprocess.run has
        env: Mapping[str, str] | None = None,
        reason: str = "",
        idempotency_key: str | None = None,
        check: bool = False,
        on_event: Callable[[Event], None] | None = None,
        **named: object,
    ) -> Run:
        """Have ``command`` judged and, if it is allowed, run; return what became of it.

        Further keyword arguments are the command's arguments; ``arguments`` takes those whose
        names clash. ``workspace`` is a directory, as path or descriptor. ``timeout`` (seconds, or
        "500ms") and ``limits`` (memory and output: bytes, or "64MiB"; pids) only tighten the
        profile. ``input`` is given to the command: bytes, or a text as UTF-8. ``on_event`` is
        called as things happen; output events hold what the command prints.

        Raises:
            SandboxdError: the request could not be judged or carried out.
            RunFailed: ``check`` is true and it did not end with exit status 0.

        """
        request = request_for(
            command,
            {**(arguments or {}), **named},
            timeout=timeout,
            limits=limits,
            env=env,
            reason=reason,
            idempotency_key=idempotency_key,
        )
        with Outgoing.open(request, workspace=workspace, source=_data(input)) as out:
            done = await self._call(calls.run(out, more=on_event is not None), on_event)
        return done.check() if check else done

    async def propose(  # noqa: PLR0913  # as run
        self,
        command: str,
        /,
        *,
        arguments: Mapping[str, object] | None = None,
        workspace: str | os.PathLike[str] | int | None = None,
        timeout: float | str | None = None,  # noqa: ASYNC109  # bounds the command, not this call
        limits: Mapping[str, int | str] | None = None,
        env: Mapping[str, str] | None = None,
        reason: str = "",
        idempotency_key: str | None = None,
        **named: object,
    ) -> Proposal:
        """Have a request judged and kept, to be executed later. Arguments as for `run`."""
        request = request_for(
            command,
            {**(arguments or {}), **named},
            timeout=timeout,
            limits=limits,
            env=env,
            reason=reason,
            idempotency_key=idempotency_key,
        )
        with Outgoing.open(request, workspace=workspace) as out:
            return await self._call(calls.propose(out))

    async def check(  # noqa: PLR0913  # as run
        self,
        command: str,
        /,
        *,
        arguments: Mapping[str, object] | None = None,
        workspace: str | os.PathLike[str] | int | None = None,
        timeout: float | str | None = None,  # noqa: ASYNC109  # bounds the command, not this call
        limits: Mapping[str, int | str] | None = None,
        env: Mapping[str, str] | None = None,
        **named: object,
    ) -> Verdict:
        """Tell what would become of a request, and by which rule. Arguments as for `run`."""
        request = request_for(
            command, {**(arguments or {}), **named}, timeout=timeout, limits=limits, env=env
        )
        with Outgoing.open(request, workspace=workspace) as out:
            return await self._call(calls.check(out))

    async def execute(
        self,
        proposal: str,
        /,
        *,
        input: str | bytes | None = None,  # noqa: A002  # as run
        check: bool = False,
        on_event: Callable[[Event], None] | None = None,
    ) -> Run:
        """Carry out a proposal that is ready, once."""
        with feed_of(_data(input)) as feed:
            call = calls.execute(proposal, feed, more=on_event is not None)
            done = await self._call(call, on_event)
        return done.check() if check else done

    async def wait(
        self,
        proposal: str,
        /,
        *,
        timeout: float | str | None = None,  # noqa: ASYNC109  # the daemon ends it, with an answer
    ) -> Proposal:
        """Wait until a proposal is no longer pending, or for ``timeout`` (as for `run`)."""
        seconds = None if timeout is None else seconds_of(timeout)
        return await self._call(calls.wait_proposal(proposal, seconds))

    async def cancel(self, proposal: str, /) -> Proposal:
        """Take a proposal back."""
        return await self._call(calls.cancel_proposal(proposal))

    async def get_proposal(self, proposal: str, /) -> Proposal:
        """Return a proposal as it stands."""
        return await self._call(calls.get_proposal(proposal))

    async def get_run(self, run: str, /) -> Run:
        """Return the record of a run."""
        return await self._call(calls.get_run(run))

    async def signal(self, run: str, number: int, /) -> None:
        """Send a signal to a running command; possible from ``on_event`` and signal handlers."""
        await self._call(calls.signal(run, number))

    async def commands(self) -> tuple[CommandInfo, ...]:
        """List the commands of the allowlist, each with the JSON Schema of its arguments."""
        return await self._call(calls.commands())

    async def _call(self, call: Call[T], on_event: Callable[[Event], None] | None = None) -> T:
        frame = call.frame()
        while True:
            kept = self._kept.take()
            line = kept or AsyncLine(await asyncio.to_thread(connect, self._path, self._start))
            try:
                return await line.call(call, frame, on_event)
            except ConnectionLost as lost:
                if kept is None or not (call.repeatable or lost.unsent):
                    raise
            finally:
                self._kept.put_back(line)


def _data(source: str | bytes | None) -> str | bytes | None:
    if isinstance(source, int):  # it may be one whose read(2) would hold up the loop
        raise UsageError(
            "cannot send what a descriptor gives from asyncio: give bytes or a text", field="input"
        )
    return source


class AsyncLine(Line):
    """A connection whose calls wait in the running event loop."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        sock.setblocking(False)

    async def call(
        self, call: Call[T], frame: bytes, on_event: Callable[[Event], None] | None
    ) -> T:
        """Send ``frame`` and wait for the last reply to it."""
        self.clean = False
        replies = Replies(more=call.more)
        await self._send(frame, call.descriptors)
        with _pumping(call.feed):
            try:
                reply = await self._last(replies, on_event)
            finally:
                self.clean = replies.done
        return call.read(reply.parameters)

    async def _last(self, replies: Replies, on_event: Callable[[Event], None] | None) -> Reply:
        loop = asyncio.get_running_loop()
        while True:
            item = replies.next()
            if isinstance(item, Reply):
                return item
            if item is None:
                try:
                    replies.feed(await loop.sock_recv(self._sock, _CHUNK_BYTES))
                except ConnectionError as error:
                    raise ConnectionLost(error.strerror or str(error)) from None
            elif on_event is not None:
                on_event(item)

    async def _send(self, frame: bytes, descriptors: tuple[int, ...]) -> None:
        try:
            # Nothing of an earlier call is unread, so there is room for a first part.
            sent = self._sock.sendmsg([frame], rights(descriptors), socket.MSG_NOSIGNAL)
        except ConnectionError as error:
            raise ConnectionLost(error.strerror or str(error), unsent=True) from None
        if sent < len(frame):
            with contextlib.suppress(ConnectionError):  # why it hung up may stand in its reply
                await asyncio.get_running_loop().sock_sendall(self._sock, frame[sent:])


@contextlib.contextmanager
def _pumping(feed: Feed | None) -> Iterator[None]:
    """Copy input to the command whenever it takes some."""
    if feed is None:
        yield
        return
    feed.sent()
    loop, fd = asyncio.get_running_loop(), feed.writes_to

    def advance() -> None:
        feed.advance()
        if feed.writes_to is None:
            stop()

    def stop() -> None:
        nonlocal fd
        if fd is not None:
            loop.remove_writer(fd)
            fd = None

    if fd is not None:
        loop.add_writer(fd, advance)
    try:
        yield
    finally:
        stop()
