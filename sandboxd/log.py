"""What does an operator read about this daemon?

One JSON object a line on standard error: ``at`` (UTC, milliseconds since 1970), ``event`` (a fixed
word) and fields. ASCII only, so no control character and no line break can be smuggled in; no
environment values and no file contents are ever given to it.
"""

from __future__ import annotations

import contextlib
import json
import os
import time

_MAX_FIELD_LENGTH = 512
_REPEAT_S = 10.0
_last: dict[str, tuple[float, int]] = {}


def log(event: str, **fields: object) -> None:
    """Write one line. A standard error that takes nothing must not stop the daemon."""
    shown = {name: _short(value) for name, value in fields.items()}
    line = json.dumps({"at": time.time_ns() // 1_000_000, "event": event} | shown)
    with contextlib.suppress(OSError):
        os.write(2, line.replace("\x7f", "\\u007f").encode() + b"\n")


def log_rarely(event: str, **fields: object) -> None:
    """Write a line for what strangers can cause; at most one in ten seconds for each event."""
    now = time.monotonic()
    since, left_out = _last.get(event, (-_REPEAT_S, 0))
    if now - since < _REPEAT_S:
        _last[event] = (since, left_out + 1)
        return
    _last[event] = (now, 0)
    log(event, left_out=left_out, **fields)


def _short(value: object) -> object:
    if isinstance(value, str) and len(value) > _MAX_FIELD_LENGTH:
        return f"{value[:_MAX_FIELD_LENGTH]}… ({len(value)} characters)"
    return value
