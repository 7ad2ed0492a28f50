"""How do a run's events reach a client that may be slow, or gone?

In order, one after the other, from a queue of bounded weight: who fills it asks `full` first and
waits for room. A client whose callback raises gets no more events; the run itself goes on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from sandboxd.log import log
from sandboxd.protocol import Event

_FULL_BYTES = 256 << 10
_FULL_EVENTS = 64


class Teller:
    """The queue of one run, and the task that empties it."""

    def __init__(self, on_event: Callable[[Event], Awaitable[None]]) -> None:
        self._on_event = on_event
        self._queue: deque[Event] = deque()
        self._weight = 0
        self._told = 0
        self._closing = False
        self._changed = asyncio.Event()
        self._resumes: list[Callable[[], None]] = []
        self._task = asyncio.get_running_loop().create_task(self._pump())
        self._task.add_done_callback(self._on_end)

    @property
    def full(self) -> bool:
        """True while the client has so much to take that no more should be given."""
        if self._task.done():
            return False
        return self._weight >= _FULL_BYTES or len(self._queue) >= _FULL_EVENTS

    def put(self, event: Event) -> None:
        """Queue an event, unless nobody will take it."""
        if not self._task.done():
            self._queue.append(event)
            self._weight += len(event.data)
            self._changed.set()

    def when_room(self, resume: Callable[[], None]) -> None:
        """Call ``resume`` once it is no longer full."""
        self._resumes.append(resume)

    async def finish(self, patience_s: float) -> None:
        """Wait until all is told, but no longer than ``patience_s`` for any one event."""
        self._closing = True
        self._changed.set()
        told = -1
        while not self._task.done() and told != self._told:
            told = self._told
            await asyncio.wait({self._task}, timeout=patience_s)
        self.abandon()

    def abandon(self) -> None:
        """Tell nothing more."""
        self._task.cancel()

    async def _pump(self) -> None:
        while self._queue or not self._closing:
            if not self._queue:
                self._changed.clear()
                await self._changed.wait()
                continue
            event = self._queue.popleft()
            await self._on_event(event)
            self._weight -= len(event.data)
            self._told += 1
            if not self.full:
                self._resume_all()

    def _resume_all(self) -> None:
        resumes, self._resumes = self._resumes, []
        for resume in resumes:
            resume()

    def _on_end(self, task: asyncio.Task[None]) -> None:
        self._queue.clear()
        self._resume_all()
        if not task.cancelled() and (error := task.exception()) is not None:
            log("events_refused", problem=repr(error))
