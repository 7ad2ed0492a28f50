"""How does a frame become a method call, and what is answered?

asyncvarlink gives the call and reply messages, the registry and org.varlink.service; decoding is
`launcher.records`, which refuses what Varlink libraries let pass: duplicate and unknown members,
numbers that are none, endless nesting. What is not a call ends the connection; what is a call gets
an answer, a fault as ``io.sandboxd.Fault.<Class>``.
"""

from __future__ import annotations

import asyncio
import json
import math
import typing
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from asyncvarlink import VarlinkInterface, VarlinkInterfaceRegistry, VarlinkMethodCall
from asyncvarlink.conversion import ConversionError
from asyncvarlink.error import VarlinkErrorReply
from asyncvarlink.message import VarlinkMethodReply
from asyncvarlink.serviceerrors import InvalidParameter, MethodNotFound

from launcher.records import Malformed, from_plain, parse, to_plain
from sandboxd import errors
from sandboxd.connection import BadFrame, Connection, Frame, PeerGone
from sandboxd.describe import describe
from sandboxd.messages import EventReply
from sandboxd.protocol import MAX_DEPTH, Event

FAULT_INTERFACE = "io.sandboxd.Fault"
_MAX_METHOD_LENGTH = 128
_DESCRIPTOR_MEMBERS = ("workspace", "stdin")
_ENVELOPE = {"method", "parameters", "more"}
_EXPLANATIONS = {
    "UsageError": "(message: string, field: ?string, retryable: bool)",
    "SetupFailed": "(message: string, retryable: bool, layer: string, step: string, errno: int)",
}


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, over which connection, with which descriptors, and whether events are wanted."""

    connection: Connection
    frame: Frame
    more: bool

    @property
    def uid(self) -> int:
        """The peer's uid, the only thing about it that decides anything."""
        return self.connection.peer.uid

    def descriptor(self, index: int | None) -> int | None:
        """Return the descriptor that a parameter refers to. It stays open during the call."""
        return None if index is None else self.frame.descriptors[index]

    async def tell(self, event: Event) -> None:
        """Send an event if the caller wants events. Waits for a slow reader.

        A caller that has gone is no error here: its connection notices, and ends the run.
        """
        if self.more and not self.connection.gone.is_set():
            try:
                await self.connection.send(_reply(to_plain(EventReply(event=event)), more=True))
            except PeerGone:
                self.connection.gone.set()
            except asyncio.CancelledError:  # half a frame may be out: nothing can follow it
                self.connection.gone.set()
                raise


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A method of an interface: its parameters, its reply, and whether events precede that."""

    handler: Callable[..., Awaitable[Any]]
    takes: type
    gives: type
    streams: bool


def method(
    takes: type, gives: type, *, streams: bool = False
) -> Callable[[Callable[..., Awaitable[Any]]], Method]:
    """Make an ``async def some_name(self, caller, parameters)`` the method ``SomeName``."""
    return lambda handler: Method(handler=handler, takes=takes, gives=gives, streams=streams)


class Interface(VarlinkInterface, name="io.sandboxd.Abstract"):
    """An interface whose methods are made by `method`."""

    @classmethod
    def methods(cls) -> dict[str, Method]:
        """Return the methods in the order of their definition, by the names they have outside."""
        return {
            "".join(word.capitalize() for word in name.split("_")): value
            for name, value in vars(cls).items()
            if isinstance(value, Method)
        }

    @classmethod
    def render_interface_description(cls, *, comments: bool = True) -> str:
        """Describe the interface in Varlink's notation."""
        table = {
            name: (each.handler.__doc__ or "" if comments else "", each.takes, each.gives)
            for name, each in cls.methods().items()
        }
        return describe(cls.name, cls.__doc__ or "", table, {})


class FaultInterface(VarlinkInterface, name=FAULT_INTERFACE):
    """The errors that the methods of sandboxd's interfaces answer with."""

    @classmethod
    def render_interface_description(cls, *, comments: bool = True) -> str:
        """Describe every fault; it has no methods."""
        plain = "(message: string, field: ?string, retryable: bool)"
        declared = {name: _EXPLANATIONS.get(name, plain) for name in errors.FAULTS}
        return describe(cls.name, cls.__doc__ or "" if comments else "", {}, declared)


def decode_call(data: bytes) -> VarlinkMethodCall:
    """Read a frame as a method call.

    Raises:
        BadFrame: it is none.

    """
    try:
        plain = parse(data.decode())
        _check_shape(plain)
        if not isinstance(plain, dict):
            raise BadFrame("cannot read frame: not an object")
        for name in plain.keys() - _ENVELOPE:
            raise BadFrame(f"cannot read frame: unknown member {name[:64]!r}")
        if len(str(plain.get("method", ""))) > _MAX_METHOD_LENGTH:
            raise BadFrame("cannot read frame: the method's name is too long")
        return VarlinkMethodCall.fromjson(plain)
    except UnicodeDecodeError:
        raise BadFrame("cannot read frame: not UTF-8") from None
    except (Malformed, TypeError, ValueError) as error:
        raise BadFrame(f"cannot read frame: {str(error)[:200]}") from None


async def answer(
    registry: VarlinkInterfaceRegistry, call: VarlinkMethodCall, caller: Caller
) -> None:
    """Carry out one call and send its last reply.

    Raises:
        BadFrame: more descriptors came than the method takes.
        PeerGone: the reply finds no reader.

    """
    try:
        reply = _reply(await _carry_out(registry, call, caller))
    except VarlinkErrorReply as error:
        reply = _encode(error.toreply())
    except errors.SandboxdError as fault:
        reply = encode_fault(fault)
    await caller.connection.send(reply)


def encode_fault(fault: errors.SandboxdError) -> bytes:
    """Encode a fault as a Varlink error reply."""
    name = type(fault).__name__ if type(fault).__name__ in errors.FAULTS else "Unavailable"
    parameters: dict[str, Any] = {"message": fault.message, "retryable": fault.retryable}
    if fault.field is not None:
        parameters["field"] = fault.field
    if isinstance(fault, errors.SetupFailed):
        parameters |= {"layer": fault.layer, "step": fault.step, "errno": fault.errno}
    return _encode(VarlinkMethodReply(parameters, error=f"{FAULT_INTERFACE}.{name}"))


async def _carry_out(
    registry: VarlinkInterfaceRegistry, call: VarlinkMethodCall, caller: Caller
) -> dict[str, Any]:
    interface = registry.interfaces.get(call.method_interface)
    if not isinstance(interface, Interface):
        _check_descriptors(None, len(caller.frame.descriptors))
        return _service(registry, call)
    found = interface.methods().get(call.method_name)
    if found is None:
        raise MethodNotFound(method=call.method)
    try:
        parameters: object = from_plain(found.takes, call.parameters, "")
    except Malformed as error:
        raise InvalidParameter(parameter=error.where) from None
    if call.more and not found.streams:
        raise errors.UsageError(f"cannot call {call.method_name} with more: it has one reply")
    _check_descriptors(parameters, len(caller.frame.descriptors))
    return typing.cast(
        "dict[str, Any]", to_plain(await found.handler(interface, caller, parameters))
    )


def _check_descriptors(parameters: object, received: int) -> None:
    """Let every descriptor be referred to by one member, and every such member have one."""
    referred = [
        index
        for name in _DESCRIPTOR_MEMBERS
        if (index := getattr(parameters, name, None)) is not None
    ]
    for index in referred:
        if not 0 <= index < received or referred.count(index) > 1:
            raise errors.UsageError(f"cannot find descriptor {index} of {received} received")
    if len(referred) < received:
        raise BadFrame("cannot take descriptors that no parameter refers to")


def _service(registry: VarlinkInterfaceRegistry, call: VarlinkMethodCall) -> dict[str, Any]:
    """Answer a call of org.varlink.service, or say that there is no such interface."""
    if call.more:
        raise errors.UsageError(f"cannot call {call.method_name} with more: it has one reply")
    handler, signature = registry.lookup_method(call)
    try:
        result = handler(**signature.parameter_type.fromjson(call.parameters))
    except ConversionError as error:
        raise InvalidParameter(parameter=str(error.location[0])) from None
    return typing.cast("dict[str, Any]", signature.return_type.tojson(result.parameters))


def _reply(parameters: dict[str, Any], *, more: bool = False) -> bytes:
    return _encode(VarlinkMethodReply(parameters, continues=more))


def _encode(reply: VarlinkMethodReply) -> bytes:
    return json.dumps(reply.tojson(), separators=(",", ":")).encode() + b"\0"


def _check_shape(value: object, depth: int = 0) -> None:
    """Refuse what JSON can say and nothing here can keep: see `Malformed`'s texts."""
    if depth > MAX_DEPTH:
        raise BadFrame(f"cannot read frame: nested deeper than {MAX_DEPTH}")
    match value:
        case dict():
            for name, member in value.items():
                _check_shape(name, depth)
                _check_shape(member, depth + 1)
        case list():
            for member in value:
                _check_shape(member, depth + 1)
        case float() if not math.isfinite(value):
            raise BadFrame("cannot read frame: a number is out of range")
        case str() if not value.isascii():
            value.encode()  # a lone surrogate raises UnicodeEncodeError, which is a ValueError
        case _:
            pass
