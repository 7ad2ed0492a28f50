"""What carries prepared requests out?

The one place that holds a launcher: it starts it before the first client connects, hands each
run's messages to its `sandboxd.run.Life`, and starts a new one when it dies, at a bounded rate.
"""

from __future__ import annotations

import asyncio
import dataclasses
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress

from launcher import channel
from launcher.plan import Ceiling, Created, Failed, Gone, Hello, Refused
from sandboxd.baseview import BaseView
from sandboxd.errors import SetupFailed, Unavailable
from sandboxd.launch import Launched, start_launcher
from sandboxd.link import Link
from sandboxd.log import log
from sandboxd.output import CHUNK_BYTES
from sandboxd.prepared import Prepared
from sandboxd.protocol import Event, Run
from sandboxd.record import Order, setup_failed
from sandboxd.run import Life
from sandboxd.sandbox import FromLauncher
from sandboxd.surroundings import Surroundings, new_gate, setting_of
from sandboxd.watchdog import Watchdog

_HELLO_S = 10.0
_WAIT_FOR_RESTART_S = 5.0
_BACKOFF_S = (0.05, 30.0)  # first and longest delay before a new launcher
_SETTLED_S = 60.0  # a launcher that lived so long did not fail at once


class Engine:
    """Runs prepared requests under a launcher of its own. `start` first, `stop` last."""

    def __init__(self, ceiling: Ceiling) -> None:
        self._ceiling = ceiling
        self._runs: dict[str, Life] = {}
        self._sandboxes: dict[str, Life] = {}
        self._buffer = bytearray(CHUNK_BYTES)
        self._up = asyncio.Event()
        self._launched: Launched | None = None
        self._around: Surroundings | None = None
        self._restarting: asyncio.Task[None] | None = None
        self._stopping = False
        self._failures = 0
        self._last_start = 0.0
        self.launcher_restarts = 0

    @property
    def hello(self) -> Hello:
        """What the launcher said of itself.

        Raises:
            Unavailable: there is none now.

        """
        return self._surroundings().hello

    @property
    def running(self) -> int:
        """How many runs have not ended."""
        return len(self._runs)

    async def start(self) -> None:
        """Open the base view and start the launcher.

        Raises:
            SetupFailed: it cannot work here.

        """
        self._base = BaseView()
        self._watchdog = Watchdog()
        try:
            await self._connect()
        except BaseException:
            self._base.close()
            raise

    async def run(  # noqa: PLR0913  # all by keyword
        self,
        prepared: Prepared,
        *,
        run_id: str,
        proposal: str,
        grant: str,
        uid: int,
        stdin_fd: int | None,
        on_event: Callable[[Event], Awaitable[None]],
    ) -> Run:
        """Run it to its end. Owns ``prepared`` from the call on; ``stdin_fd`` stays the caller's.

        ``on_event`` is awaited for one event after the other and bounds its own waiting: while it
        waits the output is not read, and the record is returned only after the last event. It is
        cancelled if the run is cancelled once more after its end.

        Raises:
            SetupFailed: a protection could not be put in force; nothing was started.
            Unavailable: there is no launcher now; nothing was started.

        """
        try:
            if self._around is None and not self._stopping:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._up.wait(), _WAIT_FOR_RESTART_S)
            around = self._surroundings()
        except BaseException:
            prepared.close()
            raise
        order = Order(run_id=run_id, proposal=proposal, grant=grant, uid=uid, stdin_fd=stdin_fd)
        life = Life(prepared, order, around, on_event)
        self._runs[run_id] = self._sandboxes[run_id] = life
        try:
            return await life.carry_out()
        finally:
            del self._runs[run_id]
            if not life.has_sandbox:
                self._sandboxes.pop(run_id, None)

    def signal(self, run_id: str, signum: int) -> bool:
        """Send a signal to a run's command; False if it does not run."""
        life = self._runs.get(run_id)
        return life is not None and life.forward(signum)

    def cancel(self, run_id: str) -> bool:
        """End a run: SIGTERM, and after its grace SIGKILL; False if there is no such run."""
        life = self._runs.get(run_id)
        if life is not None:
            life.end("cancelled")
        return life is not None

    async def stop(self) -> None:
        """End every sandbox and the launcher. What still runs ends as if the launcher had died."""
        self._stopping = True
        if self._restarting is not None:
            self._restarting.cancel()
            with suppress(asyncio.CancelledError):
                await self._restarting
        if self._around is not None:
            self._around.launcher.close()
            self._lose_all()
        if self._launched is not None:
            await self._launched.ended()
            self._launched = None
        self._watchdog.close()
        self._base.close()

    def _surroundings(self) -> Surroundings:
        if self._around is None:
            raise Unavailable("cannot start anything: there is no launcher now, try again")
        return self._around

    async def _connect(self) -> None:
        """Start a launcher, tell it the ceiling, and wait for its hello."""
        self._launched = launched = start_launcher()
        hello: asyncio.Future[Hello] = asyncio.get_running_loop().create_future()

        def on_message(message: FromLauncher | Hello, fds: list[int]) -> None:
            if not isinstance(message, Hello):
                self._on_message(message, fds)
            elif not hello.done():
                hello.set_result(message)

        def on_end(error: Exception | None) -> None:
            if hello.done():
                self._on_launcher_end(error)
            else:
                hello.set_exception(_not_started(f"it ended ({error or 'see its message above'})"))

        link = Link(launched.control, _receive, on_message, on_end)
        roots = (*self._ceiling.roots, *self._base.roots())
        link.send(dataclasses.replace(self._ceiling, roots=roots))
        try:
            said = await asyncio.wait_for(hello, _HELLO_S)
        except BaseException as error:
            link.close()
            launched.kill()
            await launched.ended()
            self._launched = None
            if isinstance(error, TimeoutError):
                raise _not_started("it says nothing") from None
            raise
        self._around = Surroundings(
            launcher=link,
            hello=said,
            setting=setting_of(said, self._ceiling),
            base=self._base,
            watchdog=self._watchdog,
            gate=new_gate(),
            buffer=self._buffer,
        )
        self._up.set()

    def _on_message(self, message: FromLauncher, fds: list[int]) -> None:
        """Hand on what the launcher says of a sandbox, to the end of that sandbox."""
        life = self._sandboxes.get(message.sandbox)
        if life is None:
            channel.close_all(fds)
            return
        life.on_launcher(message, fds)
        if not isinstance(message, Created):
            self._sandboxes.pop(message.sandbox, None)

    def _on_launcher_end(self, error: Exception | None) -> None:
        log("launcher_ended", problem=str(error or "end of file"))
        self._lose_all()
        if not self._stopping:
            self._restarting = asyncio.get_running_loop().create_task(self._restart())

    def _lose_all(self) -> None:
        self._up.clear()
        self._around = None
        lives = [*self._sandboxes.values()]
        self._sandboxes.clear()
        for life in lives:
            life.on_launcher_lost()

    async def _restart(self) -> None:
        """Reap the dead launcher and start a new one; the more fail, the longer the wait."""
        loop = asyncio.get_running_loop()
        first, longest = _BACKOFF_S
        while self._around is None:
            if self._launched is not None:
                self._launched.kill()
                await self._launched.ended()
                self._launched = None
            if loop.time() - self._last_start > _SETTLED_S:
                self._failures = 0
            delay = min(first * 2**self._failures, longest)
            self._failures += 1
            await asyncio.sleep(delay)
            self._last_start = loop.time()
            try:
                await self._connect()
            except (SetupFailed, OSError) as fault:
                log("launcher_not_started", problem=str(fault))
            else:
                self.launcher_restarts += 1


def _receive(end: socket.socket) -> tuple[FromLauncher | Hello, list[int]] | None:
    return channel.receive(end, Hello, Created, Refused, Failed, Gone)


def _not_started(problem: str) -> SetupFailed:
    return setup_failed("start the launcher", 0, problem, layer="launcher")
