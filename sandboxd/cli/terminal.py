"""What may reach a terminal, and how is anything written at all?

Every byte goes out by write(2), unbuffered, so that nothing is lost or told twice when a reader
goes away. What an agent or a command has written is shown to people only escaped: no control, no
invisible and no direction-changing character reaches a terminal (`reveal`).
"""

from __future__ import annotations

import json
import os
import select

from launcher.records import to_plain

STDOUT, STDERR = 1, 2
_OPTIONS = {  # members of a request, by what sets them
    "limits.wall_ms": "--timeout",
    "limits.memory": "--memory",
    "limits.pids": "--pids",
    "limits.output": "--output",
}
# Printable by their category, yet nothing is seen: fillers, joiners and variation selectors.
_UNSEEN = frozenset(
    map(
        chr,
        (
            0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x180B, 0x180C, 0x180D, 0x180F, 0x2800,
            0x3164, 0xFFA0, *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0),
        ),
    )
)  # fmt: skip


def write_all(fd: int, data: bytes) -> None:
    """Write all of ``data``, also to a descriptor that somebody made non-blocking."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            poll = select.poll()
            poll.register(fd, select.POLLOUT)
            poll.poll()


def reveal(text: str, kept: str = "") -> str:
    r"""Return ``text`` with every character that is not plainly visible written as ``\u{…}``.

    Those in ``kept`` (a newline, a tab) stay.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        c if c in kept or (c.isprintable() and c not in _UNSEEN) else f"\\u{{{ord(c):x}}}"
        for c in text
    )


def show_stream(fd: int, data: bytes) -> None:
    """Write what a command has printed: escaped for a terminal, else byte for byte."""
    if os.isatty(fd):
        data = reveal(data.decode(errors="backslashreplace"), kept="\n\t").encode()
    write_all(fd, data)


def put_line(text: str) -> None:
    """Write one line for people to standard output."""
    write_all(STDOUT, reveal(text).encode() + b"\n")


def put_json(value: object, fd: int = STDOUT) -> None:
    """Write one JSON object as one line of ASCII."""
    write_all(fd, json.dumps(to_plain(value)).encode() + b"\n")


def complain(text: str) -> None:
    """Say on standard error what went wrong; further lines of ``text`` are indented."""
    first, *others = text.split("\n")
    lines = [f"sandboxctl: {first}", *(f"  {line}" for line in others)]
    write_all(STDERR, "".join(reveal(line, kept="\t") + "\n" for line in lines).encode())


def spoken(message: str, target: str | None) -> str:
    """Return a message about ``target`` with what the protocol names as a person types it."""
    option = _OPTIONS.get(target or "")
    return message if option is None else message.replace(target or "", option)


def put_table(rows: list[tuple[str, ...]]) -> None:
    """Write rows in columns that are as wide as their longest cell, the last as it is."""
    shown = [tuple(map(reveal, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)] if shown else []
    for row in shown:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        put_line("  ".join(cells).rstrip())
