"""Is the beginning and the end of a stream kept, all of it counted, and memory bounded?"""

from __future__ import annotations

import hashlib
import tracemalloc
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.output import Keeper, unfinished
from sandboxd.protocol import Stream

Keep = Literal["head+tail", "head", "tail"]
KEEPS: tuple[Keep, ...] = ("head+tail", "head", "tail")


def kept(limit: int, keep: Keep, *chunks: bytes) -> Stream:
    keeper = Keeper(limit, keep)
    for chunk in chunks:
        keeper.add(memoryview(chunk))
    return keeper.stream()


@given(
    limit=st.integers(1, 40),
    keep=st.sampled_from(KEEPS),
    chunks=st.lists(st.binary(max_size=30), max_size=8),
)
def test_what_is_kept_is_the_beginning_and_the_end(
    limit: int, keep: Keep, chunks: list[bytes]
) -> None:
    whole = b"".join(chunks)
    stream = kept(limit, keep, *chunks)
    data = stream.bytes()
    head, tail = data[: stream.head_bytes], data[stream.head_bytes :]
    assert whole.startswith(head)
    assert whole.endswith(tail)
    assert stream.total_bytes == len(whole)
    assert stream.dropped_bytes == len(whole) - len(data)
    assert stream.truncated == (len(whole) > limit)
    assert stream.sha256 == hashlib.sha256(whole).hexdigest()
    assert len(data) <= limit
    if len(whole) <= limit:
        assert data == whole
    elif stream.encoding == "base64":  # nothing is left out for the sake of text that is none
        assert len(data) == limit


@pytest.mark.parametrize(
    ("keep", "expected"), [("head", b"abcd"), ("tail", b"wxyz"), ("head+tail", b"abyz")]
)
def test_each_way_of_keeping(keep: Keep, expected: bytes) -> None:
    assert kept(4, keep, b"abcdef", b"uvwxyz").bytes() == expected


def test_truncation_between_the_bytes_of_a_character_leaves_text() -> None:
    stream = kept(10, "head+tail", "ä€ö𝄞ü".encode() * 9)
    assert stream.encoding == "utf-8"
    assert stream.text().startswith("ä")
    assert stream.text().endswith("ü")
    assert "\ufffd" not in stream.text()


def test_what_is_no_text_is_kept_to_the_byte() -> None:
    everything = bytes(range(256))
    stream = kept(256, "head+tail", everything)
    assert (stream.encoding, stream.bytes()) == ("base64", everything)


@pytest.mark.parametrize(
    ("data", "count"),
    [
        (b"", 0),
        (b"a", 0),
        ("ä".encode(), 0),
        ("ä".encode()[:1], 1),
        ("€".encode()[:2], 2),
        ("𝄞".encode()[:3], 3),
        ("𝄞".encode(), 0),
        (b"\x80\x80\x80\x80", 0),  # belongs to no character
        (b"a\xff", 1),  # cannot become one, but only the next byte would prove it
    ],
)
def test_a_character_that_is_not_complete_is_seen(data: bytes, count: int) -> None:
    assert unfinished(data) == count


@pytest.mark.parametrize("keep", KEEPS)
def test_memory_is_bounded_whatever_is_printed(keep: Keep) -> None:
    limit, chunk = 1 << 18, memoryview(bytes(1 << 16))
    keeper = Keeper(limit, keep)
    tracemalloc.start()
    for _ in range(2048):  # 128 MiB
        keeper.add(chunk)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5 * limit
    assert keeper.stream().total_bytes == 128 << 20
