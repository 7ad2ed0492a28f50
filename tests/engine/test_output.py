"""Is output read from real pipes in bounded portions, and not faster than its reader takes it?"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

from sandboxd.output import CHUNK_BYTES, Capture
from sandboxd.protocol import Event
from sandboxd.telling import Teller
from tests.engine.driver import Told, bounds


class Piped:
    """A capture, the write end of its pipe, and what was told."""

    def __init__(
        self, told: Told, *, on_limit: Callable[[], None] | None = None, **limits: Any
    ) -> None:
        read_fd, self.write_fd = os.pipe()
        self.told = told
        self.paused = asyncio.Event()
        self.teller = Teller(told)
        when_room = self.teller.when_room

        def note(resume: Callable[[], None]) -> None:
            self.paused.set()
            when_room(resume)

        self.teller.when_room = note  # type: ignore[method-assign]  # only listens in
        event = Event(kind="output", run="run_1", stream="stdout")
        self.capture = Capture(
            read_fd,
            event,
            bounds(**limits),
            bytearray(CHUNK_BYTES),
            self.teller,
            on_limit=on_limit or (lambda: None),
        )
        self.capture.start()

    async def write(self, data: bytes) -> None:
        """Write all of it, waiting for room as a command would."""
        loop, room = asyncio.get_running_loop(), asyncio.Event()
        os.set_blocking(self.write_fd, False)
        while data:
            try:
                data = data[os.write(self.write_fd, data) :]
            except BlockingIOError:
                loop.add_writer(self.write_fd, room.set)
                await room.wait()
                room.clear()
                loop.remove_writer(self.write_fd)

    async def end(self) -> None:
        os.close(self.write_fd)
        await self.capture.done.wait()
        await self.teller.finish(10)


def test_events_carry_what_was_printed_and_keep_characters_whole() -> None:
    async def body() -> Told:
        told = Told()
        piped = Piped(told)
        for byte in "a€𝄞".encode():
            await piped.write(bytes([byte]))
            await asyncio.sleep(0)
        await piped.end()
        assert piped.capture.stream().text() == "a€𝄞"
        return told

    told = asyncio.run(body())
    assert told.output() == "a€𝄞".encode()
    assert {event.encoding for event in told.events} == {"utf-8"}


def test_an_incomplete_character_at_the_end_is_not_lost() -> None:
    async def body() -> Told:
        told = Told()
        piped = Piped(told)
        await piped.write("a€".encode()[:-1])
        await piped.end()
        return told

    assert asyncio.run(body()).output() == "a€".encode()[:-1]


def test_events_carry_no_more_than_the_bound() -> None:
    async def body() -> tuple[Told, int]:
        told = Told()
        piped = Piped(told, output_bytes=1000)
        await piped.write(b"x" * 300_000)
        await piped.end()
        return told, piped.capture.stream().total_bytes

    told, total = asyncio.run(body())
    assert told.output() == b"x" * 500  # the head; the tail is in the record
    assert total == 300_000


def test_a_client_that_takes_nothing_stops_the_reading() -> None:
    async def body() -> None:
        release = asyncio.Event()

        async def wait(_: Event) -> None:
            await release.wait()

        told = Told(act=wait)
        piped = Piped(told, output_bytes=16 << 20)
        writing = asyncio.ensure_future(piped.write(bytes(8 << 20)))
        await piped.paused.wait()
        assert not writing.done()
        assert piped.capture.stream().total_bytes < 1 << 20
        release.set()
        await writing
        await piped.end()
        assert piped.capture.stream().total_bytes == 8 << 20
        assert len(told.output()) == 8 << 20

    asyncio.run(body())


def test_after_the_end_of_the_command_no_client_is_waited_for() -> None:
    async def body() -> None:
        async def wait(_: Event) -> None:
            await asyncio.Event().wait()

        piped = Piped(Told(act=wait), output_bytes=16 << 20)
        writing = asyncio.ensure_future(piped.write(bytes(4 << 20)))
        await piped.paused.wait()
        piped.capture.hurry()
        await writing
        os.close(piped.write_fd)
        await piped.capture.done.wait()
        assert piped.capture.stream().total_bytes == 4 << 20
        piped.teller.abandon()

    asyncio.run(body())


def test_a_client_that_refuses_an_event_gets_no_more_and_stops_nothing() -> None:
    async def body() -> None:
        def refuse(_: Event) -> None:
            raise ConnectionError("gone")

        told = Told(act=refuse)
        piped = Piped(told, output_bytes=16 << 20)
        await piped.write(bytes(4 << 20))
        await piped.end()
        assert piped.capture.stream().total_bytes == 4 << 20
        assert len(told.events) == 1

    asyncio.run(body())


def test_a_stream_that_passes_its_total_says_so_once() -> None:
    async def body() -> int:
        calls: list[None] = []
        piped = Piped(Told(), output_total_bytes=1000, on_limit=lambda: calls.append(None))
        await piped.write(b"x" * 1000)
        await piped.told.printed(b"x" * 1000)
        assert not calls
        await piped.write(b"y" * 200_000)
        await piped.end()
        return len(calls)

    assert asyncio.run(body()) == 1


def test_one_stream_does_not_keep_the_loop_to_itself() -> None:
    async def body() -> None:
        flood, other = Piped(Told()), Piped(Told())
        writing = asyncio.ensure_future(flood.write(bytes(16 << 20)))
        await other.write(b"hello")
        await other.end()
        assert other.capture.stream().text() == "hello"
        assert not writing.done()
        await writing
        await flood.end()

    asyncio.run(body())
