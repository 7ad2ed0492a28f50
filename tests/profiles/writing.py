"""How do tests write profiles, and what do their fixtures give?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sandboxd.profile import Profile
from sandboxd.protocol import Denial

PROGRAM = """
name = "{name}"
[executable]
path = "{path}"
[approval]
mode = "allow"
"""

Write = Callable[..., Path]
Load = Callable[..., Profile]


def refused(result: object) -> list[tuple[str, str]]:
    """Return target and reason of each denial of a result that must be denials."""
    assert isinstance(result, tuple), result
    assert result, "no denial"
    for denial in result:
        assert isinstance(denial, Denial)
        assert denial.message.startswith("cannot "), denial.message
        assert not denial.message.endswith("."), denial.message
        assert denial.message.isascii(), denial.message
        assert denial.key
    return [(denial.target, denial.reason) for denial in result]
