"""What is the life of one run, from a prepared request to its record?

`Life.carry_out` tells it; everything else here is a part of it. Launcher and init report through
the engine's loop, and what they say only ever moves the run forward. The first cause for which
the daemon ends a run is the one its record names.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from typing import Literal

from launcher.plan import Created, Exited, Failed, Gone, Ready, Refused, Started
from sandboxd import planner
from sandboxd.clock import now_ms
from sandboxd.errors import SetupFailed, Unavailable
from sandboxd.log import log
from sandboxd.openings import open_all, open_stdin
from sandboxd.outcome import Cause
from sandboxd.output import Capture
from sandboxd.prepared import Prepared
from sandboxd.protocol import Event, Run
from sandboxd.record import Facts, Order, run_of, setup_failed
from sandboxd.sandbox import FromInit, FromLauncher, Sandbox
from sandboxd.surroundings import Surroundings
from sandboxd.telling import Teller
from sandboxd.watchdog import Watch

_KILL_S = 0.25  # for init to end all processes and report, before it is ended itself
_GIVE_UP_S = 5.0  # for the launcher to report the end of a killed init (L04)
_OUTPUT_S = 1.0  # from the command's end to that of its output
_PATIENCE_S = 90.0  # for one event after the command's end; the daemon bounds a client sooner


class Life:
    """One run. Owns the prepared request from the beginning."""

    def __init__(
        self,
        prepared: Prepared,
        order: Order,
        around: Surroundings,
        on_event: Callable[[Event], Awaitable[None]],
    ) -> None:
        self._prepared = prepared
        self._bounds = prepared.bounds
        self._around = around
        self._loop = asyncio.get_running_loop()
        self._facts = Facts(order=order, hello=around.hello, created_at=now_ms())
        self._teller = Teller(on_event)
        self._sandbox = Sandbox(
            order.run_id, around.launcher, self._on_init_message, self._on_init_end
        )
        self._captures: list[Capture] = []
        self._timers: list[asyncio.TimerHandle] = []
        self._watch: Watch | None = None
        self._settled = asyncio.Event()  # the launcher has answered
        self._started: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()

    async def carry_out(self) -> Run:
        """Live it.

        Raises:
            SetupFailed: a protection could not be put in force, and nothing was started.
            Unavailable: the launcher went before anything was started.

        """
        try:
            async with self._around.gate:
                self._launch()
                await self._settled.wait()
            await self._started
            await self._ended
            await self._collect()
            return run_of(
                self._prepared, self._facts, [capture.stream() for capture in self._captures]
            )
        finally:
            self._release()

    @property
    def has_sandbox(self) -> bool:
        """True while the launcher has not yet said that its sandbox is gone."""
        return self._sandbox.exists

    def forward(self, signum: int, *, everyone: bool = False) -> bool:
        """Send a signal to the command's process group, or all inside; False if none runs."""
        if not self._started.done() or self._ended.done():
            return False
        self._sandbox.forward(planner.COMMAND, signum, everyone=everyone)
        return True

    def end(self, cause: Cause) -> None:
        """Begin to end the run for this cause, unless it has ended or is being ended already."""
        if self._ended.done():
            self._teller.abandon()  # what keeps it from its record is only the client
            return
        if self._facts.cause is not None:
            return
        self._facts.cause = cause
        if not self._started.done():
            self._destroy()
        elif cause in {"wall", "cancelled"} and self._bounds.grace_ms:
            self.forward(signal.SIGTERM)
            self._later(self._bounds.grace_ms, self._kill)
        else:
            self._kill()

    def on_launcher(self, message: FromLauncher, fds: list[int]) -> None:
        """Take the launcher's word on this sandbox."""
        if isinstance(message, Created):
            self._facts.created = message
            self._sandbox.created(fds)
            self._settled.set()
            self._begin()
            return
        self._sandbox.read()  # what init ever said is there by now, and comes first
        self._sandbox.exists = False
        match message:
            case Refused():
                self._fail(setup_failed("check the plan", 1, message.reason, layer="ceiling"))
            case Failed():
                self._fail(setup_failed(message.step, message.errno, message.detail))
            case Gone():
                self._on_gone(message)
        self._end()

    def on_launcher_lost(self) -> None:
        """Take note that the launcher has ended, and with it every init."""
        self._sandbox.read()
        self._sandbox.destroy()
        self._sandbox.exists = False
        self._assume_started()
        self._fail(Unavailable("cannot start anything: the launcher has ended, try again"))
        self._end()

    def _launch(self) -> None:
        self._facts.launched_at = self._loop.time()
        if self._facts.cause is not None or self._started.done():  # while it waited at the gate
            self._fail(Unavailable("cannot start anything: it was cancelled"))
            return
        with ExitStack() as opened:
            around = self._around
            planned = open_all(
                self._prepared, around.setting, around.base, self._facts.order.run_id, opened
            )
            self._facts.lowered = planned.lowered
            self._sandbox.launch(planned, self._make_stdio(opened))
        self._later(planner.SETUP_MS, self._on_setup_deadline)

    def _make_stdio(self, opened: ExitStack) -> list[int]:
        """Return the command's three descriptors; ``opened`` closes those that are made here."""
        stdin_fd = open_stdin(self._facts.order.stdin_fd)
        opened.callback(os.close, stdin_fd)
        return [stdin_fd, self._make_pipe("stdout", opened), self._make_pipe("stderr", opened)]

    def _make_pipe(self, name: Literal["stdout", "stderr"], opened: ExitStack) -> int:
        read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
        opened.callback(os.close, write_fd)
        capture = Capture(
            read_fd,
            Event(kind="output", run=self._facts.order.run_id, stream=name),
            self._bounds,
            self._around.buffer,
            self._teller,
            on_limit=lambda: self.end("output"),
        )
        self._captures.append(capture)
        return write_fd

    def _on_init_message(self, message: FromInit) -> None:
        match message:
            case Ready():
                self._facts.ready = message
            case Started():
                self._facts.started_at = self._loop.time()
                self._begin()
            case Failed():
                self._fail(setup_failed(message.step, message.errno, message.detail))
            case Exited():
                self._facts.exited = message
                self._end()

    def _on_init_end(self, error: Exception | None) -> None:
        """Init ends by itself with its channel; why, the launcher will say."""
        if error is not None:
            log("init_broken", run=self._facts.order.run_id, problem=str(error))
        if not self._ended.done():
            self._destroy()

    def _begin(self) -> None:
        """Begin to read and to watch, when both launcher and init have reported.

        On a busy machine a command may even have ended before the launcher reports its birth.
        """
        created, facts = self._facts.created, self._facts
        if created is None or facts.started_at is None or self._started.done():
            return
        self._started.set_result(None)
        self._teller.put(Event(kind="started", run=facts.order.run_id, pid=created.pid))
        for capture in self._captures:
            capture.start()
        if facts.exited is not None:
            self._end()
            return
        if facts.cause is not None:
            self._kill()
            return
        self._later(self._bounds.wall_ms, lambda: self.end("wall"))
        self._watch = self._around.watchdog.watch(
            created.pid,
            cpu_ms=self._bounds.cpu_ms,
            memory_bytes=None if self._around.setting.has_cgroup else self._bounds.memory_bytes,
            on_exceeded=self.end,
        )

    def _on_gone(self, message: Gone) -> None:
        self._facts.gone = message
        if message.leftover:
            log("leftover", run=self._facts.order.run_id, what=message.leftover)
        self._assume_started()
        self._fail(setup_failed("build the sandbox", 0, f"init ended ({message.returncode})"))

    def _assume_started(self) -> None:
        """Take a command that init was ready for as started, if init ended without a word.

        What is not known to have been refused may have run, and its grant is used up.
        """
        if self._facts.ready is not None and not self._started.done():
            self._facts.started_at = self._loop.time()
            self._started.set_result(None)

    def _on_setup_deadline(self) -> None:
        self._fail(setup_failed("build the sandbox", 110, "it takes too long"))

    def _fail(self, fault: SetupFailed | Unavailable) -> None:
        """Nothing was started. Of a run that was cancelled before, that is the outcome."""
        self._settled.set()
        if self._started.done():
            return
        if self._facts.cause is None:
            self._started.set_exception(fault)
        else:
            self._started.set_result(None)
            self._end()

    def _end(self) -> None:
        if self._started.done() and not self._ended.done():
            self._facts.ended_at = self._loop.time()
            self._ended.set_result(None)

    def _kill(self) -> None:
        """SIGKILL all inside; init counts them and reports. A moment later init goes as well."""
        self.forward(signal.SIGKILL, everyone=True)
        self._later(_KILL_S * 1000, self._destroy)

    def _destroy(self) -> None:
        self._sandbox.destroy()
        if self._sandbox.exists:
            self._later(_GIVE_UP_S * 1000, self._give_up)

    def _give_up(self) -> None:
        """Go on without its end: the kernel does not end what sleeps uninterruptibly."""
        log("unkillable", run=self._facts.order.run_id)
        self._fail(setup_failed("end the sandbox", 110, "the kernel does not end it"))
        self._end()

    async def _collect(self) -> None:
        """Read what is left of the output, and let the client have its events."""
        self._stop_clocks()
        self._sandbox.hang_up()
        for capture in self._captures:
            capture.hurry()
        with suppress(TimeoutError):
            async with asyncio.timeout(_OUTPUT_S):
                for capture in self._captures:
                    await capture.done.wait()
        for capture in self._captures:
            capture.stop()
        self._teller.put(Event(kind="ended", run=self._facts.order.run_id))
        await self._teller.finish(_PATIENCE_S)

    def _later(self, delay_ms: float, then: Callable[[], None]) -> None:
        self._timers.append(self._loop.call_later(delay_ms / 1000, then))

    def _stop_clocks(self) -> None:
        for timer in self._timers:
            timer.cancel()
        if self._watch is not None:
            self._watch.stop()

    def _release(self) -> None:
        """Leave nothing: no process, descriptor, timer or task, whatever happened before."""
        if self._facts.exited is None:
            self._sandbox.destroy()
        self._stop_clocks()
        self._sandbox.release()
        for capture in self._captures:
            capture.stop()
        self._teller.abandon()
        self._started.cancel()
        self._ended.cancel()
        self._prepared.close()
