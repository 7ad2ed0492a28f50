"""Sizes and durations: a unit is always written, and nothing else is accepted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd import units


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("0B", 0), ("1B", 1), ("64KiB", 65536), ("512MiB", 512 << 20), ("1GiB", 1 << 30)],
)
def test_a_size_is_bytes(text: str, size_bytes: int) -> None:
    assert units.parse_size(text) == size_bytes
    assert units.parse_size(units.show_size(size_bytes)) == size_bytes


@pytest.mark.parametrize(
    ("text", "duration_ms"), [("0ms", 0), ("500ms", 500), ("30s", 30_000), ("15m", 900_000)]
)
def test_a_duration_is_milliseconds(text: str, duration_ms: int) -> None:
    assert units.parse_duration(text) == duration_ms
    assert units.parse_duration(units.show_duration(duration_ms)) == duration_ms


ODD = ["", "1", "MiB", "-1s", "+1s", "1.5s", "1 s", " 1s", "1s\n", "1S", "1kb", "1MB", "1e3B"]
ODD += ["1sB", "inf", "\N{ARABIC-INDIC DIGIT ONE}s", "1" * 20 + "B", "0x1B", "1_0B", "1s 1s"]


@pytest.mark.parametrize("text", ODD)
def test_anything_else_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="cannot read size"):
        units.parse_size(text)
    with pytest.raises(ValueError, match="cannot read duration"):
        units.parse_duration(text)


@given(st.integers(0, 10**12 - 1))
def test_what_is_shown_means_the_same(value: int) -> None:
    assert units.parse_size(units.show_size(value)) == value
    assert units.parse_duration(units.show_duration(value)) == value
