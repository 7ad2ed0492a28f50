"""Does a whole text match a pattern, in time linear in its length?

Profiles' owners write patterns, agents choose the texts. The backtracking of Python's ``re`` would
let an agent stop the daemon with a well-chosen text, so matching is left to the engine that
pydantic brings (the regex crate of Rust: no look-around, no back-references, no backtracking).
"""

from __future__ import annotations

import functools
from typing import Annotated

from pydantic import StringConstraints, TypeAdapter, ValidationError
from pydantic_core import SchemaError


def check_pattern(pattern: str) -> str:
    """Return ``pattern`` if it can be used.

    Raises:
        ValueError: it is no regular expression of this engine.

    """
    try:
        _adapter(pattern)  # alone first: "a)|(b" must not become right by what is put around it
        _adapter(_whole(pattern))
    except SchemaError:
        raise ValueError(
            f"cannot use pattern {pattern[:80]!r}; it is no regular expression "
            "(look-around and back-references do not exist here)"
        ) from None
    return pattern


def fullmatch(pattern: str, text: str) -> bool:
    """Tell whether ``pattern`` matches all of ``text``, not only a part."""
    try:
        _adapter(_whole(pattern)).validate_python(text)
    except ValidationError:
        return False
    return True


def _whole(pattern: str) -> str:
    return rf"\A(?:{pattern})\z"


@functools.lru_cache(maxsize=4096)
def _adapter(pattern: str) -> TypeAdapter[str]:
    return TypeAdapter(Annotated[str, StringConstraints(strict=True, pattern=pattern)])
