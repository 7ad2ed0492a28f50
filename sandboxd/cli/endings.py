"""What does a person read when a run did not simply exit?"""

from __future__ import annotations

import signal
from collections.abc import Callable

from sandboxd.cli.terminal import STDERR, STDOUT, complain, spoken
from sandboxd.protocol import Denial, Event, Run, Stream

_NOT_RUN = {
    "denied": "it is denied",
    "rejected": "an approver has rejected it",
    "expired": "its approval has expired",
}


class Shown:
    """Counts what of each stream has been written, so that the record adds only what is new."""

    def __init__(self, write: Callable[[int, bytes], None]) -> None:
        self._write_to = write
        self._bytes = {"stdout": 0, "stderr": 0}

    def event(self, event: Event) -> None:
        """Write an output event."""
        if event.kind == "output":
            data = event.bytes()
            self._bytes[event.stream] += len(data)
            self._write(event.stream, data)

    def rest(self, run: Run) -> None:
        """Write what the record has beyond the events, and say how much nobody has kept."""
        for name, stream in (("stdout", run.stdout), ("stderr", run.stderr)):
            new, missing = unseen(stream, self._bytes[name])
            if missing:  # what follows is not what the command printed next
                at = max(0, stream.head_bytes - self._bytes[name])
                mark = f"\n[... {missing} bytes not shown ...]\n".encode()
                new = new[:at] + mark + new[at:]
            self._write(name, new)
            if missing:
                complain(f"cannot show all of {name}: {missing} bytes were dropped")

    def _write(self, name: str, data: bytes) -> None:
        if data:
            self._write_to(STDOUT if name == "stdout" else STDERR, data)


def unseen(stream: Stream, seen: int) -> tuple[bytes, int]:
    """Return what ``stream`` kept beyond its first ``seen`` bytes, and how many are missing."""
    kept = stream.bytes()
    tail_start = stream.total_bytes - (len(kept) - stream.head_bytes)
    if not stream.truncated:
        return kept[seen:], 0
    head, tail = kept[seen : stream.head_bytes], kept[stream.head_bytes :]
    reached = max(seen, stream.head_bytes)
    return head + tail[max(0, reached - tail_start) :], max(0, tail_start - reached)


def explain(run: Run) -> None:
    """Say on standard error why a run did not end by an exit of its own."""
    if run.status == "exited":
        return
    what = f"the command {run.command!r}"
    match run.status:
        case "denied" | "rejected" | "expired":
            complain(describe_denials(run.denials) or f"cannot run {what}: {_NOT_RUN[run.status]}")
        case "pending":
            complain(f"cannot run {what} yet: {run.proposal} waits for approval")
        case "timed_out":
            complain(f"cannot go on with {what}: its time was over after {run.wall_ms:.0f} ms")
        case "limit_exceeded":
            complain(f"cannot go on with {what}: it has met its limit of {run.limit}")
        case "signaled":
            complain(f"cannot go on with {what}: {signal_name(run.signal)} has ended it")
        case "cancelled":
            complain(f"cannot go on with {what}: it was cancelled")
        case "lost" | "running":
            complain(f"cannot tell what became of {what}: its record says {run.status!r}")


def describe_denials(denials: tuple[Denial, ...]) -> str:
    """Return one line for each denial, with its advice."""
    return "\n".join(map(_describe, denials))


def _describe(denial: Denial) -> str:
    target = denial.target if denial.kind == "argument" else None  # a command may be named so too
    message, advice = spoken(denial.message, target), denial.advice
    if denial.reason == "NOT_IN_ALLOWLIST":
        advice = advice.replace("ListCommands", "`sandboxctl commands`")
    return f"{message}; {advice}" if advice else message


def signal_name(number: int | None) -> str:
    """Return the name of a signal(7), or its number if it has none."""
    try:
        return signal.Signals(number or 0).name
    except ValueError:
        return f"signal {number}"
