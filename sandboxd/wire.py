"""How does a call become a frame, and a frame of the daemon a value or a fault?

Shared by the blocking and the asyncio client; no socket here. The daemon is not trusted to be
well: what it sends is bounded and decoded as strictly as it decodes its clients, and anything else
is `Unavailable`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from launcher.records import Malformed, from_plain, parse, to_plain
from sandboxd.errors import FAULTS, SandboxdError, SetupFailed, Unavailable, UsageError
from sandboxd.messages import EventReply
from sandboxd.protocol import MAX_FRAME_BYTES, Event, Stream

# The longest reply is a record with both streams in base64; a profile bounds what they keep.
MAX_REPLY_BYTES = 64 << 20
MAX_SENT_DESCRIPTORS = 2  # a workspace and a standard input

_FAULT_PREFIX = "io.sandboxd.Fault."
_REPLY_MEMBERS = {"parameters", "continues", "error"}
R = TypeVar("R")


class ConnectionLost(Unavailable):
    """The daemon closed the connection before it answered. ``unsent``: the call never left."""

    def __init__(self, why: str, *, unsent: bool = False) -> None:
        super().__init__(f"cannot get an answer from the daemon: {why}")
        self.unsent = unsent


@dataclass(frozen=True, slots=True)
class Reply:
    """One reply that is no fault. ``continues``: more replies to the same call follow."""

    parameters: dict[str, Any]
    continues: bool


def encode_call(method: str, parameters: object, *, more: bool) -> bytes:
    """Encode a method call, NUL included.

    Raises:
        UsageError: it has no JSON form, is not UTF-8, or is longer than the daemon takes.

    """
    call: dict[str, Any] = {"method": method}
    if more:
        call["more"] = True
    try:
        call["parameters"] = to_plain(parameters)
        text = json.dumps(call, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        frame = text.encode() + b"\0"
    except UnicodeEncodeError:
        raise UsageError("cannot send a text that is not UTF-8") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"cannot send this as JSON: {error}") from None
    if len(frame) > MAX_FRAME_BYTES:
        raise UsageError(
            f"cannot send a request of {len(frame)} bytes: {MAX_FRAME_BYTES} are taken"
        )
    return frame


class Frames:
    """Takes bytes as they come and gives whole frames, each of bounded size."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._searched = 0

    def feed(self, data: bytes) -> None:
        """Add what was received."""
        self._data += data

    def next(self) -> bytes | None:
        """Return the next whole frame without its NUL, or None until there is one.

        Raises:
            Unavailable: the daemon sends a longer one than any reply is.

        """
        end = self._data.find(0, self._searched)
        if max(end, len(self._data) if end < 0 else 0) > MAX_REPLY_BYTES:
            _give_up(f"its reply is longer than {MAX_REPLY_BYTES} bytes")
        if end < 0:
            self._searched = len(self._data)
            return None
        frame = bytes(self._data[:end])
        del self._data[: end + 1]
        self._searched = 0
        return frame

    @property
    def empty(self) -> bool:
        """True between frames: nothing was received that is not yet given."""
        return not self._data


class Replies:
    """The replies to one call: bytes go in, events and then the last reply come out.

    ``done`` turns true when the last reply, be it a fault, was taken and nothing came after it.
    """

    def __init__(self, *, more: bool) -> None:
        self.done = False
        self._more = more
        self._frames = Frames()

    def feed(self, data: bytes) -> None:
        """Add what was received; nothing means that the daemon closed the connection.

        Raises:
            ConnectionLost: it did.

        """
        if not data:
            raise ConnectionLost("it closed the connection")
        self._frames.feed(data)

    def next(self) -> Event | Reply | None:
        """Return an event, the last reply, or None until more bytes have come.

        Raises:
            SandboxdError: the daemon answered with a fault.
            Unavailable: it sent something else than a reply to this call.

        """
        frame = self._frames.next()
        if frame is None:
            return None
        try:
            reply = decode_reply(frame)
        except SandboxdError:
            self.done = self._frames.empty
            raise
        if not reply.continues:
            self.done = self._frames.empty
            return reply
        if not self._more:
            _give_up("it announces more replies than were asked for")
        event = read(EventReply, reply.parameters).event
        check_data(event)
        return event


def decode_reply(frame: bytes) -> Reply:
    """Read one frame of the daemon.

    Raises:
        SandboxdError: the fault it holds.
        Unavailable: it is no reply.

    """
    try:
        plain = parse(frame.decode())
    except (Malformed, UnicodeDecodeError) as error:
        _give_up(str(error))
    if not isinstance(plain, dict) or not plain.keys() <= _REPLY_MEMBERS:
        _give_up("that is no reply")
    parameters = plain.get("parameters", {})
    continues = plain.get("continues", False)
    error_name = plain.get("error")
    if not isinstance(parameters, dict) or not isinstance(continues, bool):
        _give_up("that is no reply")
    if error_name is not None:
        raise _fault(error_name, parameters)
    return Reply(parameters, continues)


def read(cls: type[R], parameters: dict[str, Any]) -> R:
    """Take a reply's parameters as the dataclass they are.

    Raises:
        Unavailable: they are something else.

    """
    try:
        return from_plain(cls, parameters, "")
    except Malformed as error:
        _give_up(str(error))


def check_data(*holders: Stream | Event) -> None:
    """See that ``data`` is what ``encoding`` says, so that `bytes` cannot fail later.

    Raises:
        Unavailable: it is not.

    """
    try:
        for each in holders:
            each.bytes()
    except ValueError as error:
        _give_up(str(error))


def not_understood(why: str) -> Unavailable:
    """Return the fault for a daemon that does not speak as `sandboxd.protocol` says."""
    return Unavailable(f"cannot understand the daemon: {why[:500]}")


def _give_up(why: str) -> NoReturn:
    raise not_understood(why) from None


def _fault(name: object, parameters: dict[str, Any]) -> SandboxdError:
    """Turn an error reply into the exception that it names."""
    if not isinstance(name, str):
        return not_understood("its error has no name")
    if name == "org.varlink.service.InvalidParameter":
        parameter = parameters.get("parameter")
        where = parameter if isinstance(parameter, str) else ""
        return UsageError(f"cannot use the parameter {where!r}", field=where)
    cls = FAULTS.get(name.removeprefix(_FAULT_PREFIX)) if name.startswith(_FAULT_PREFIX) else None
    message, field = parameters.get("message"), parameters.get("field")
    if cls is None or not isinstance(message, str) or not isinstance(field, str | None):
        return not_understood(f"its error is {name[:100]!r}")
    if cls is SetupFailed:
        return _setup_failed(message, parameters)
    return cls(message, field=field)


def _setup_failed(message: str, parameters: dict[str, Any]) -> SandboxdError:
    layer, step, number = (parameters.get(key) for key in ("layer", "step", "errno"))
    if not (isinstance(layer, str) and isinstance(step, str) and isinstance(number, int)):
        return not_understood("a SetupFailed without layer, step and errno")
    return SetupFailed(message, layer=layer, step=step, errno=number)
