"""What does a refusal look like?

One place makes every `Denial` of the daemon, so that each has a stable key, and shows texts of a
client only escaped and bounded.
"""

from __future__ import annotations

import errno
import hashlib
from typing import Literal

from sandboxd.protocol import Denial, ReasonCode

Kind = Literal["command", "argument", "path", "executable", "policy", "workspace"]
# The daemon's own shortage is no mistake of a client: these pass through as they are.
NO_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC})
MAX_DENIALS = 32  # of one answer; whoever sends more mistakes mends these first
_SHOWN = 80


def refuse(  # noqa: PLR0913  # the fields of a Denial, by keyword
    kind: Kind,
    target: str,
    reason: ReasonCode,
    message: str,
    *,
    profile: str = "",
    rule: str = "",
    advice: str = "",
) -> Denial:
    """Make a denial; ``key`` is the same for the same refusal under the same profile."""
    facts = f"{kind}\0{target}\0{reason}\0{profile}".encode(errors="surrogatepass")
    return Denial(
        kind=kind,
        target=target,
        reason=reason,
        message=message,
        rule=rule,
        advice=advice,
        key=hashlib.sha256(facts).hexdigest()[:16],
    )


def shown(text: str) -> str:
    """Quote a client's text: printable ASCII as it is, all else escaped, long ones shortened."""
    quoted = ascii(text[:_SHOWN])
    return quoted if len(text) <= _SHOWN else f"{quoted} and {len(text) - _SHOWN} more characters"


def bare(name: str) -> str:
    """Write a client's name (of an argument, of a variable) without quotes, escaped, bounded."""
    return ascii(name[:_SHOWN])[1:-1]
