"""Is every frame of the daemon a value or a typed fault, however it arrives?"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd import errors, wire
from sandboxd.errors import SandboxdError, SetupFailed, Unavailable, UsageError
from sandboxd.messages import RunReply
from sandboxd.protocol import MAX_FRAME_BYTES, Event
from tests.client.scripted import event, fault, ran, reply

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
)


def test_frames_come_out_whole_however_they_are_split() -> None:
    stream = reply({"a": "x" * 1000}) + reply({}) + reply({"b": 1})
    for size in (1, 2, 7, 1000, len(stream)):
        frames, found = wire.Frames(), []
        for start in range(0, len(stream), size):
            frames.feed(stream[start : start + size])
            while (frame := frames.next()) is not None:
                found.append(frame + b"\0")
        assert b"".join(found) == stream
        assert len(found) == 3
        assert frames.empty


def test_a_frame_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_REPLY_BYTES", 1000)
    frames = wire.Frames()
    frames.feed(b"x" * 1000)
    assert frames.next() is None
    frames.feed(b"x")
    with pytest.raises(Unavailable, match="longer than 1000"):
        frames.next()


def test_a_frame_that_is_complete_but_too_long_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wire, "MAX_REPLY_BYTES", 1000)
    frames = wire.Frames()
    frames.feed(b"x" * 1001 + b"\0")
    with pytest.raises(Unavailable, match="longer than 1000"):
        frames.next()


@given(st.binary(max_size=200))
def test_junk_is_never_anything_but_a_fault(data: bytes) -> None:
    try:
        wire.decode_reply(data)
    except SandboxdError:
        return
    assert isinstance(json.loads(data), dict)


@given(JSON)
def test_json_that_is_no_record_is_never_anything_but_a_fault(value: Any) -> None:
    for plain in (value, {"parameters": value}, {"parameters": {"run": value}, "error": value}):
        try:
            found = wire.decode_reply(json.dumps(plain).encode())
            wire.read(RunReply, found.parameters)
        except SandboxdError:
            continue
        pytest.fail(f"{plain!r} was read as a run")


NO_REPLIES = [
    (b"", "nothing"),
    (b"[]", "no object"),
    (b"null", "no object"),
    (b'{"parameters": [], "continues": false}', "parameters of another type"),
    (b'{"continues": 1}', "continues of another type"),
    (b'{"parameters": {}, "extra": 1}', "an unknown member"),
    (b'{"parameters": {}, "parameters": {}}', "a name twice"),
    (b'{"parameters": {"a": NaN}}', "no number"),
    (b"\xff", "not UTF-8"),
    (b"[" * 100_000, "nested endlessly"),
    (b'{"error": 7}', "an error without a name"),
    (b'{"error": "io.sandboxd.Fault.Nonsense"}', "an unknown fault"),
    (b'{"error": "io.sandboxd.Fault.NotFound"}', "a fault without message"),
    (b'{"error": "org.varlink.service.MethodNotFound"}', "a daemon of another version"),
]


@pytest.mark.parametrize(("frame", "why"), NO_REPLIES)
def test_what_is_no_reply_is_unavailable(frame: bytes, why: str) -> None:
    del why
    with pytest.raises(Unavailable, match="cannot understand the daemon"):
        wire.decode_reply(frame)


@pytest.mark.parametrize("name", sorted(errors.FAULTS))
def test_every_fault_comes_as_its_class(name: str) -> None:
    extra = {"layer": "seccomp", "step": "load", "errno": 38} if name == "SetupFailed" else {}
    given_field = {} if extra else {"field": "workspace"}
    with pytest.raises(errors.FAULTS[name]) as raised:
        wire.decode_reply(fault(name, message="cannot do it", **extra, **given_field)[:-1])
    assert type(raised.value) is errors.FAULTS[name]
    assert raised.value.message == "cannot do it"
    if isinstance(raised.value, SetupFailed):
        assert (raised.value.layer, raised.value.step, raised.value.errno) == (
            "seccomp",
            "load",
            38,
        )
    else:
        assert raised.value.field == "workspace"


def test_a_setup_failure_without_its_step_is_not_understood() -> None:
    with pytest.raises(Unavailable, match="cannot understand"):
        wire.decode_reply(fault("SetupFailed")[:-1])


def test_a_parameter_that_the_daemon_does_not_take_is_a_usage_error() -> None:
    frame = reply({"parameter": "limits"}, error="org.varlink.service.InvalidParameter")
    with pytest.raises(UsageError) as raised:
        wire.decode_reply(frame[:-1])
    assert raised.value.field == "limits"


UNSENDABLE = [
    ("\udc80", "not UTF-8"),
    (float("nan"), "JSON"),
    (float("inf"), "JSON"),
    (b"bytes", "JSON"),
    ({1, 2}, "JSON"),
    ("x" * MAX_FRAME_BYTES, "bytes"),
]


@pytest.mark.parametrize(("value", "why"), UNSENDABLE)
def test_what_cannot_be_sent_is_a_usage_error_before_anything_is_sent(
    value: object, why: str
) -> None:
    with pytest.raises(UsageError, match=why):
        wire.encode_call("m", {"value": value}, more=False)


def test_a_value_nested_endlessly_is_a_usage_error() -> None:
    nested: list[Any] = []
    nested.append(nested)
    with pytest.raises(UsageError):
        wire.encode_call("m", {"value": nested}, more=False)


def test_events_come_before_the_last_reply_and_then_it_is_done() -> None:
    replies = wire.Replies(more=True)
    replies.feed(event("started", pid=7) + event("output", stream="stdout", data="x") + ran())
    first, second, last = replies.next(), replies.next(), replies.next()
    assert isinstance(first, Event)
    assert first.pid == 7
    assert isinstance(second, Event)
    assert second.bytes() == b"x"
    assert isinstance(last, wire.Reply)
    assert replies.done


def test_bytes_behind_the_last_reply_make_a_connection_useless() -> None:
    replies = wire.Replies(more=False)
    replies.feed(ran() + b"{")
    assert isinstance(replies.next(), wire.Reply)
    assert not replies.done


def test_more_replies_than_were_asked_for_are_not_taken() -> None:
    replies = wire.Replies(more=False)
    replies.feed(event("started"))
    with pytest.raises(Unavailable, match="more replies"):
        replies.next()


@pytest.mark.parametrize(
    ("encoding", "data"), [("base64", "a"), ("base64", "é"), ("utf-8", "\udc80")]
)
def test_data_that_is_not_what_its_encoding_says_is_not_understood(
    encoding: str, data: str
) -> None:
    replies = wire.Replies(more=True)
    replies.feed(event("output", stream="stdout", encoding=encoding, data=data))
    with pytest.raises(Unavailable, match="cannot understand"):
        replies.next()
