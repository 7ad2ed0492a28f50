"""Whose call runs next when more is wanted than may run at once?

Each uid has a queue of its own, and freed places go round the uids in turn: a user who queues
thirty calls delays another's one call by a single run. A call whose command already runs as often
as its profile allows is passed over, so it keeps nobody else waiting. All queues are bounded.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from dataclasses import dataclass

from sandboxd.errors import Unavailable


@dataclass(slots=True, eq=False)
class _Waiting:
    command: str
    concurrency: int
    turn: asyncio.Future[None]


class Turnstile:
    """Lets ``places`` calls pass at once; ``queued_per_uid`` and ``queued`` more may wait."""

    def __init__(self, *, places: int, queued_per_uid: int, queued: int) -> None:
        self._places = places
        self._queued_per_uid = queued_per_uid
        self._queued = queued
        self._inside: Counter[str] = Counter()
        self._queues: OrderedDict[int, list[_Waiting]] = OrderedDict()

    async def enter(self, uid: int, command: str, concurrency: int) -> None:
        """Wait for a place; whoever got one calls `leave` in the end.

        Raises:
            Unavailable: too many are waiting already.

        """
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = _Waiting(command, concurrency, turn)
        self._line_up(uid, waiting)
        self._let_in()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._step_out(uid, waiting)
            else:
                self.leave(command)  # the place was given in the same moment
            raise

    def leave(self, command: str) -> None:
        """Give a place back."""
        self._inside[command] -= 1
        if not self._inside[command]:
            del self._inside[command]
        self._let_in()

    def _line_up(self, uid: int, waiting: _Waiting) -> None:
        free = self._fits(waiting)
        total = sum(len(queue) for queue in self._queues.values())
        if not free and (
            total >= self._queued or len(self._queues.get(uid, ())) >= self._queued_per_uid
        ):
            raise Unavailable("cannot start this now: busy, too many calls are waiting")
        self._queues.setdefault(uid, []).append(waiting)

    def _step_out(self, uid: int, waiting: _Waiting) -> None:
        queue = self._queues[uid]
        queue.remove(waiting)
        if not queue:
            del self._queues[uid]

    def _let_in(self) -> None:
        """Let calls in, one of each uid in turn, until none fits any more."""
        while found := self._next():
            uid, waiting = found
            self._step_out(uid, waiting)
            if uid in self._queues:
                self._queues.move_to_end(uid)
            self._inside[waiting.command] += 1
            waiting.turn.set_result(None)

    def _next(self) -> tuple[int, _Waiting] | None:
        for uid, queue in self._queues.items():
            for waiting in queue:
                if not waiting.turn.done() and self._fits(waiting):
                    return uid, waiting
        return None

    def _fits(self, waiting: _Waiting) -> bool:
        return (
            self._inside.total() < self._places
            and self._inside[waiting.command] < waiting.concurrency
        )
