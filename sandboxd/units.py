"""How do "512MiB" and "30s" become numbers?

Sizes become bytes, durations milliseconds. A unit is always written, so that no number is read in
another unit than its author meant; there is no sign, no fraction and no "unlimited".
"""

from __future__ import annotations

import re

_SIZES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_DURATIONS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
_SIZE = re.compile(r"([0-9]{1,12})(B|KiB|MiB|GiB|TiB)", re.ASCII)
_DURATION = re.compile(r"([0-9]{1,12})(ms|s|m|h)", re.ASCII)


def parse_size(text: str) -> int:
    """Return the bytes that ``text`` such as "64KiB" stands for.

    Raises:
        ValueError: it is no such text.

    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f'cannot read size {text[:40]!r}; write it like "64KiB" or "1GiB"')
    return int(match[1]) * _SIZES[match[2]]


def parse_duration(text: str) -> int:
    """Return the milliseconds that ``text`` such as "30s" stands for.

    Raises:
        ValueError: it is no such text.

    """
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f'cannot read duration {text[:40]!r}; write it like "500ms" or "30s"')
    return int(match[1]) * _DURATIONS[match[2]]


def guess_size(number: int, least: int, most: int) -> str | None:
    """Write the size that was meant by a number without a unit, if there is one in the range.

    A small number is taken for mebibytes, a large one for bytes.
    """
    if least <= number <= most and number >= 1 << 16:
        return show_size(number)
    return _guess(number, ("MiB", "KiB", "GiB", "B"), _SIZES, range(least, most + 1))


def guess_duration(number: int, least: int, most: int) -> str | None:
    """Write the duration that was meant by a number without a unit, if one is in the range.

    A small number is taken for seconds, a large one for milliseconds.
    """
    if least <= number <= most and number >= 1000:
        return show_duration(number)
    return _guess(number, ("s", "ms", "m", "h"), _DURATIONS, range(least, most + 1))


def _guess(
    number: int, order: tuple[str, ...], units: dict[str, int], allowed: range
) -> str | None:
    return next((f"{number}{unit}" for unit in order if number * units[unit] in allowed), None)


def show_size(size_bytes: int) -> str:
    """Write bytes in the largest unit that needs no fraction."""
    return _show(size_bytes, _SIZES)


def show_duration(duration_ms: int) -> str:
    """Write milliseconds in the largest unit that needs no fraction."""
    return _show(duration_ms, _DURATIONS)


def _show(value: int, units: dict[str, int]) -> str:
    unit = max(
        (u for u in units if value and value % units[u] == 0), key=units.__getitem__, default=""
    )
    return f"{value // units[unit]}{unit}" if unit else f"0{next(iter(units))}"
