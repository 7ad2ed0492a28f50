"""How does the text of a file become a checked profile, or problems with lines?

TOML is parsed once; pydantic judges types and keys; every problem is given the line of the key it
is about.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from pydantic import ValidationError

from sandboxd.profile import ProfileFile
from sandboxd.profile_source import Place, line_of
from sandboxd.profile_wording import place_of, wording

_POSITION = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")


@dataclass(frozen=True, slots=True)
class ProfileText:
    """A file that is TOML and has a name; nothing else is known of it."""

    source: str
    text: str
    document: Mapping[str, Any]
    name: str


class Rejected(Exception):
    """A file cannot be used; ``problems`` are complete lines, ``file:line: key: what``."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems

    @classmethod
    def at(cls, text: ProfileText, found: Iterable[tuple[Place, str]]) -> Self:
        """Give each problem the line of its key."""
        return cls([f"{text.source}:{_where(text.text, place)}: {why}" for place, why in found])


def _where(text: str, place: Place) -> str:
    line = line_of(text, place)
    key = ".".join(str(part) for part in place)
    return f"{line}: {key}" if key else str(line)


def read_text(source: str, content: bytes) -> ProfileText:
    """Parse a file as far as its name.

    Raises:
        Rejected: it is no TOML, or has no name.

    """
    try:
        text = content.decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise Rejected([f"{source}:{line}: cannot read it; UTF-8 is needed"]) from None
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        position = _POSITION.search(str(error))
        line = int(position[1] or text.count("\n") + 1) if position else 1
        why = _POSITION.sub("", str(error))
        raise Rejected([f"{source}:{line}: cannot read it as TOML; {why}"]) from None
    except RecursionError:
        raise Rejected([f"{source}:1: cannot read it; it is nested too deeply"]) from None
    name = document.get("name")
    if not isinstance(name, str):
        line = line_of(text, ("name",))
        raise Rejected([f'{source}:{line}: cannot use it; name = "..." is needed at the top'])
    return ProfileText(source, text, document, name)


def validate(text: ProfileText, document: Mapping[str, Any]) -> ProfileFile:
    """Check types and keys of ``document``, which is that of ``text`` or what it inherits too.

    Raises:
        Rejected: with every problem.

    """
    odd = list(_odd(document, ()))
    if odd:
        raise Rejected.at(text, odd)
    try:
        return ProfileFile.model_validate_json(json.dumps(document, allow_nan=False))
    except ValidationError as error:
        details = error.errors(include_url=False)
        raise Rejected.at(text, [(place_of(each), wording(each)) for each in details]) from None


def _odd(value: object, place: Place) -> Iterator[tuple[Place, str]]:
    """List the values that TOML has and no profile does."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _odd(item, (*place, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _odd(item, (*place, index))
    elif isinstance(value, dt.date | dt.time):
        yield place, "cannot use a date or time here"
    elif isinstance(value, float) and not math.isfinite(value):
        yield place, "cannot use a number that is not finite"
