"""What time is it, for records and for lifetimes?

Records carry wall-clock time. A lifetime ends by whichever clock reaches its end first: the wall
clock, or one that nobody can set and that goes on while the machine sleeps (time(7)).
"""

from __future__ import annotations

import time
from dataclasses import dataclass


def now_ms() -> int:
    """Return UTC in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A span that began now and ends ``expires_at`` (wall clock) or after as long by itself."""

    expires_at: int
    _deadline_ns: int

    @classmethod
    def of(cls, span_ms: int) -> Lifetime:
        """Begin a lifetime of ``span_ms``."""
        return cls(
            now_ms() + span_ms,
            time.clock_gettime_ns(time.CLOCK_BOOTTIME) + span_ms * 1_000_000,
        )

    @property
    def left_s(self) -> float:
        """Seconds until its end by the nearer clock; zero or less when it is over."""
        by_wall = (self.expires_at - now_ms()) / 1000
        by_boot = (self._deadline_ns - time.clock_gettime_ns(time.CLOCK_BOOTTIME)) / 1e9
        return min(by_wall, by_boot)
