"""What is the digest of a value, whoever computes it?

SHA-256, in hexadecimal, over canonical JSON: sorted names, no blanks, ASCII only. What is approved
and what runs are compared by it.
"""

from __future__ import annotations

import hashlib
import json


def canonical_digest(value: object) -> str:
    """Return the digest of what `json.dumps` takes.

    Raises:
        ValueError: a number is not finite.

    """
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )
    return hashlib.sha256(text.encode()).hexdigest()
