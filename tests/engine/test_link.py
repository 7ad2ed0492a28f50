"""Is nothing that launcher or init said lost, and nothing that they are told either?"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field

from launcher import channel
from launcher.plan import Destroy, Failed, Ready, Started
from sandboxd.link import Link

Said = Ready | Started | Failed
FAILED = Failed(sandbox="s", step="pivot_root", errno=1, detail="no")


def receive(end: socket.socket) -> tuple[Said, list[int]] | None:
    return channel.receive(end, Ready, Started, Failed)


@dataclass(slots=True)
class Heard:
    """What one link handed on."""

    messages: list[Said] = field(default_factory=list)
    ends: list[Exception | None] = field(default_factory=list)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def on_message(self, message: Said, fds: list[int]) -> None:
        channel.close_all(fds)
        self.messages.append(message)

    def on_end(self, error: Exception | None) -> None:
        self.ends.append(error)
        self.ended.set()


def with_link(test: Callable[[Link[Said], socket.socket, Heard], None], *, wait: bool) -> Heard:
    async def body() -> Heard:
        ours, theirs = channel.pair()
        heard = Heard()
        link = Link(ours, receive, heard.on_message, heard.on_end)
        with theirs:
            test(link, theirs, heard)
        if wait:
            await heard.ended.wait()
        link.close()
        return heard

    return asyncio.run(body())


def test_what_was_said_before_the_end_is_heard_though_ours_was_never_read() -> None:
    def test(link: Link[Said], theirs: socket.socket, _: Heard) -> None:
        link.send(Destroy(sandbox="never read"))
        channel.send(theirs, FAILED)

    heard = with_link(test, wait=True)
    assert heard.messages == [FAILED]
    assert heard.ends == [None]


def test_reading_takes_all_that_is_there_at_once() -> None:
    def test(link: Link[Said], theirs: socket.socket, heard: Heard) -> None:
        for pid in range(100):
            channel.send(theirs, Started(command="c", pid=pid))
        link.read()
        assert [each.pid for each in heard.messages if isinstance(each, Started)] == [*range(100)]

    with_link(test, wait=False)


def test_an_unknown_message_ends_the_link() -> None:
    def test(_: Link[Said], theirs: socket.socket, __: Heard) -> None:
        channel.send(theirs, Destroy(sandbox="s"))
        channel.send(theirs, FAILED)

    heard = with_link(test, wait=True)
    assert heard.messages == []
    assert len(heard.ends) == 1
    assert heard.ends[0] is not None


def test_after_close_nothing_is_heard_and_nothing_sent() -> None:
    def test(link: Link[Said], theirs: socket.socket, heard: Heard) -> None:
        channel.send(theirs, FAILED)
        link.close()
        link.close()
        link.send(Destroy(sandbox="s"))
        link.read()
        assert link.closed
        assert (heard.messages, heard.ends) == ([], [])

    with_link(test, wait=False)


def test_what_is_not_taken_at_once_arrives_later_with_its_descriptors() -> None:
    count = 400

    async def body() -> None:
        ours, theirs = channel.pair()
        heard = Heard()
        link = Link(ours, receive, heard.on_message, heard.on_end)
        read_fd, write_fd = os.pipe()
        for number in range(count):
            link.send(Destroy(sandbox=f"{number}:" + "x" * 2000), [write_fd])
        os.close(write_fd)
        with theirs:
            theirs.setblocking(False)
            for number in range(count):
                message, fds = await _next(theirs)
                assert message.sandbox.startswith(f"{number}:")
                os.write(fds[0], b".")
                channel.close_all(fds)
            assert os.read(read_fd, 2 * count) == b"." * count
            assert os.read(read_fd, 1) == b"", "no duplicate is left open"
        os.close(read_fd)
        await heard.ended.wait()

    asyncio.run(body())


async def _next(end: socket.socket) -> tuple[Destroy, list[int]]:
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    while True:
        try:
            received = channel.receive(end, Destroy)
        except BlockingIOError:
            readable.clear()
            loop.add_reader(end, readable.set)
            await readable.wait()
            loop.remove_reader(end)
            continue
        assert received is not None
        return received


def test_closing_drops_what_was_not_sent_with_its_descriptors() -> None:
    async def body() -> None:
        ours, theirs = channel.pair()
        heard = Heard()
        link = Link(ours, receive, heard.on_message, heard.on_end)
        read_fd, write_fd = os.pipe()
        for _ in range(400):
            link.send(Destroy(sandbox="x" * 2000), [write_fd])
        os.close(write_fd)
        link.close()
        theirs.close()
        assert os.read(read_fd, 1) == b""
        os.close(read_fd)

    asyncio.run(body())
