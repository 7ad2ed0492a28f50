"""How many rounds does a test that repeats itself go?

The suite of every day has few; ``SANDBOXD_LONG=1`` asks for the full count of a release.
"""

from __future__ import annotations

import os

LONG = os.environ.get("SANDBOXD_LONG") == "1"


def rounds(usual: int, full: int) -> int:
    """Return ``usual``, or ``full`` in a long run."""
    return full if LONG else usual
