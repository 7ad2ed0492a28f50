"""How do messages and descriptors cross between daemon, launcher and init?

One message is one datagram of a ``SOCK_SEQPACKET`` socket pair (unix(7)): JSON as
`launcher.records` writes it, descriptors by ``SCM_RIGHTS``. A message too large for a datagram
travels in a sealed memfd_create(2) file passed as the last descriptor. Whoever receives checks
``MSG_CTRUNC``, the number of descriptors and the seals; what is not wanted is closed at once.
"""

from __future__ import annotations

import array
import fcntl
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar, overload

from launcher import records
from launcher.records import Malformed

M = TypeVar("M")
N = TypeVar("N")
More = TypeVar("More")

MAX_FDS = 250  # below SCM_MAX_FD (253) of <net/scm.h>
_INLINE_BYTES = 48 << 10
_MAX_BYTES = 4 << 20
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Enclosed:
    """The message proper is in the memfd that is this datagram's last descriptor."""

    size: int


def pair() -> tuple[socket.socket, socket.socket]:
    """Return the two ends of a new channel, close-on-exec and blocking."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(channel: socket.socket, message: object, fds: Sequence[int] = ()) -> None:
    """Send one message; the descriptors stay the caller's.

    Raises:
        OSError: the other end is gone, or (non-blocking) the queue is full.

    """
    data = records.encode(message)
    if len(data) <= _INLINE_BYTES:
        _send(channel, data, fds)
        return
    memfd = os.memfd_create("message", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.write(memfd, data)
        fcntl.fcntl(memfd, fcntl.F_ADD_SEALS, _SEALS)
        _send(channel, records.encode(Enclosed(size=len(data))), [*fds, memfd])
    finally:
        os.close(memfd)


def _send(channel: socket.socket, data: bytes, fds: Sequence[int]) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    channel.sendmsg([data], rights)


@overload
def receive(channel: socket.socket, first: type[M], /) -> tuple[M, list[int]] | None: ...
@overload
def receive(
    channel: socket.socket, first: type[M], second: type[N], /
) -> tuple[M | N, list[int]] | None: ...
@overload
def receive(
    channel: socket.socket, first: type[M], second: type[N], /, *more: type[More]
) -> tuple[M | N | More, list[int]] | None: ...
def receive(channel: socket.socket, *accepted: type[object]) -> tuple[object, list[int]] | None:
    """Receive one message of an accepted type with its descriptors, or None at end of file.

    Raises:
        Malformed: the other end does not keep to the protocol; its descriptors are closed.
        BlockingIOError: nothing is waiting on a non-blocking channel.

    """
    data, fds = _receive(channel)
    if not data:
        return None
    try:
        message = records.decode(data, Enclosed, *accepted)
        if isinstance(message, Enclosed):
            message = records.decode(_unseal(message, fds), *accepted)
    except BaseException:
        close_all(fds)
        raise
    return message, fds


def _receive(channel: socket.socket) -> tuple[bytes, list[int]]:
    space = socket.CMSG_SPACE(MAX_FDS * array.array("i").itemsize)
    cloexec = socket.MSG_CMSG_CLOEXEC
    try:
        data, ancillary, flags, _ = channel.recvmsg(_INLINE_BYTES + 1, space, cloexec)
    except ConnectionResetError:
        # The other end was closed with messages of ours unread. The kernel says so once, before
        # it hands out what that end had sent: its last words come next, then end of file.
        data, ancillary, flags, _ = channel.recvmsg(_INLINE_BYTES + 1, space, cloexec)
    fds = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    if flags & (socket.MSG_CTRUNC | socket.MSG_TRUNC):
        close_all(fds)
        raise Malformed("", "the datagram was cut")
    return data, fds.tolist()


def _unseal(message: Enclosed, fds: list[int]) -> bytes:
    if not fds or not 0 < message.size <= _MAX_BYTES:
        raise Malformed("", "no enclosed message of a possible size")
    memfd = fds.pop()
    try:
        if fcntl.fcntl(memfd, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
            raise Malformed("", "the enclosed message is not sealed")
        data = os.pread(memfd, message.size + 1, 0)
    except OSError as error:
        raise Malformed("", f"the enclosed message cannot be read ({error})") from None
    finally:
        os.close(memfd)
    if len(data) != message.size:
        raise Malformed("", "the enclosed message has another size")
    return data


def close_all(fds: Sequence[int]) -> None:
    """Close every descriptor."""
    for fd in fds:
        os.close(fd)
