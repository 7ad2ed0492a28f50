"""Is what an agent sent what the profile's ``[arguments]`` say?

Pure: values in, checked values or denials out. Nothing is converted, nothing unknown is dropped,
and nothing is cleaned up: a text passes exactly as it is or not at all. Paths are judged here as
texts; `sandboxd.targets` opens them.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from sandboxd.argv import PASSTHROUGH, Scalar, Value
from sandboxd.patterns import fullmatch
from sandboxd.profile import Profile
from sandboxd.profile_arguments import (
    MAX_TEXT,
    Argument,
    Boolean,
    Integer,
    Item,
    List,
    Number,
    Path,
    String,
)
from sandboxd.profile_sections import Passthrough
from sandboxd.protocol import Denial, ReasonCode
from sandboxd.refusals import MAX_DENIALS, bare, refuse, shown

_PATH_BYTES = 4095  # <linux/limits.h>, PATH_MAX without its NUL
_NAME_BYTES = 255  # NAME_MAX
_CONTROLS = "".join(map(chr, (*range(1, 0x20), *range(0x7F, 0xA0))))  # Unicode's Cc


class Problem(NamedTuple):
    """Why one value cannot be taken, and what would help."""

    text: str
    advice: str = ""
    reason: ReasonCode = "ARGUMENT_INVALID"


Checked = dict[str, Value] | tuple[Denial, ...]


def check_arguments(profile: Profile, given: Mapping[str, object]) -> Checked:
    """Return a value for every argument of the profile (None: absent), or every problem."""
    found: list[tuple[str, Problem]] = []
    values: dict[str, Value] = {}
    passthrough = profile.argv.passthrough
    known = set(profile.arguments) if passthrough is None else {PASSTHROUGH}
    for name in given:
        if name not in known:
            names = ", ".join(sorted(known)) or "none"
            found.append((bare(name), Problem("there is no such argument", f"arguments: {names}")))
    if passthrough is not None:
        values[PASSTHROUGH] = _passed(passthrough, given.get(PASSTHROUGH, []), found)
    for name, argument in profile.arguments.items():
        values[name] = _argument(name, argument, given, found)
    if found:
        return tuple(_denial(profile.name, *each) for each in found[:MAX_DENIALS])
    return values


def _denial(profile: str, target: str, problem: Problem) -> Denial:
    return refuse(
        "path" if problem.reason == "PATH_NOT_GRANTED" else "argument",
        target,
        problem.reason,
        f"cannot take {target}; {problem.text}",
        profile=profile,
        rule=f"{profile}: arguments.{target.partition('[')[0]}",
        advice=problem.advice,
    )


def _argument(
    name: str,
    argument: Argument,
    given: Mapping[str, object],
    found: list[tuple[str, Problem]],
) -> Value:
    value = given.get(name, argument.default)
    if name in given or value is not None:
        return _value(name, argument, value, found)
    if argument.required:
        found.append((name, Problem("it is missing", "the command's parameters list it")))
    return () if isinstance(argument, List) else None


def value_problems(name: str, argument: Argument, value: object) -> list[tuple[str, Problem]]:
    """Say what is wrong with ``value``, by target such as ``paths[0]``."""
    found: list[tuple[str, Problem]] = []
    _value(name, argument, value, found)
    return found


def _value(
    name: str, argument: Argument, value: object, found: list[tuple[str, Problem]]
) -> Value:
    if not isinstance(argument, List):
        return _one(name, argument, value, found)
    if not isinstance(value, list | tuple):
        found.append((name, Problem(f"a list is needed, not {_kind(value)}")))
        return None
    if not argument.min_items <= len(value) <= argument.max_items:
        allowed = f"from {argument.min_items} to {argument.max_items} may be"
        found.append((name, Problem(f"it has {len(value)} items; {allowed}")))
        return None
    items = [
        _one(f"{name}[{index}]", argument.items, item, found) for index, item in enumerate(value)
    ]
    return tuple(item for item in items if item is not None)


def _passed(
    passthrough: Passthrough, given: object, found: list[tuple[str, Problem]]
) -> tuple[str, ...]:
    if not isinstance(given, list) or len(given) > passthrough.max_items:
        need = f"a list of at most {passthrough.max_items} texts is needed"
        found.append((PASSTHROUGH, Problem(need)))
        return ()
    passed = []
    for index, item in enumerate(given):
        problem = text_problem(item, MAX_TEXT)
        if problem is None and isinstance(item, str):
            option = item.startswith("-") or not passthrough.paths
            problem = None if option else path_problem(item)
            passed.append(item)
        if problem is not None:
            found.append((f"{PASSTHROUGH}[{index}]", problem))
    return tuple(passed)


def _one(
    target: str, argument: Item | Boolean, value: object, found: list[tuple[str, Problem]]
) -> Scalar | None:
    problem = _problem(argument, value)
    if problem is not None:
        found.append((target, problem))
        return None
    if isinstance(value, str | int | float):
        return value
    raise AssertionError(f"an accepted value is a scalar, not {type(value).__name__}")


def _problem(argument: Item | Boolean, value: object) -> Problem | None:
    match argument:
        case String():
            return _string_problem(argument, value)
        case Path():
            return text_problem(value, _PATH_BYTES) or path_problem(str(value))
        case Boolean():
            return (
                None
                if type(value) is bool
                else Problem(f"a boolean is needed, not {_kind(value)}")
            )
        case Integer():
            if type(value) is not int:
                return Problem(f"a whole number is needed, not {_kind(value)}")
        case Number():
            if type(value) not in {int, float}:
                return Problem(f"a number is needed, not {_kind(value)}")
    return _range_problem(argument, value)


def _range_problem(argument: Integer | Number, value: object) -> Problem | None:
    if isinstance(value, int | float):
        finite = isinstance(value, int) or math.isfinite(value)
        if finite and argument.min <= value <= argument.max:
            return None
    return Problem(f"from {argument.min} to {argument.max} may be")


def _string_problem(argument: String, value: object) -> Problem | None:
    allowed = "\n\t" if argument.multiline else ""
    problem = text_problem(value, argument.max_length, allowed, control=argument.control)
    if problem is not None or not isinstance(value, str):
        return problem
    if len(value) < argument.min_length:
        return Problem(f"it has {len(value)} characters; at least {argument.min_length} must be")
    if argument.choices is not None and value not in argument.choices:
        return Problem(f"{shown(value)} is not one of {', '.join(argument.choices)}")
    if argument.pattern is not None and not fullmatch(argument.pattern, value):
        return Problem(f"{shown(value)} does not match {argument.pattern}")
    return None


def text_problem(
    value: object, max_length: int, allowed: str = "", *, control: bool = False
) -> Problem | None:
    """Judge what every text must be, before anything else looks at it.

    ``allowed`` are control characters that may be in it; with ``control`` all but NUL may.
    """
    if not isinstance(value, str):
        return Problem(f"a string is needed, not {_kind(value)}")
    if len(value) > max_length:
        return Problem(f"it has {len(value)} characters; at most {max_length} may be")
    match = _forbidden("" if control else _CONTROLS, allowed).search(value)
    if match is None:
        return None
    if match[0] == "\0":
        return Problem("it holds a NUL character")
    if match[0] >= "\ud800":
        return Problem("it holds a lone surrogate, which no encoding has")
    return Problem(f"it holds the control character U+{ord(match[0]):04X}")


@functools.cache
def _forbidden(controls: str, allowed: str) -> re.Pattern[str]:
    kept = "".join(each for each in controls if each not in allowed)
    return re.compile("[\0\ud800-\udfff" + re.escape(kept) + "]")


def path_problem(path: str) -> Problem | None:
    """Judge a path by its text: relative to the workspace, nothing to clean up in it."""
    return next(_path_problems(path), None)


def _path_problems(path: str) -> Iterator[Problem]:
    size, parts = len(path.encode()), path.split("/")
    longest = max(len(part.encode()) for part in parts)
    if not path:
        yield Problem("an empty path names nothing", "use '.' for the workspace itself")
    if size > _PATH_BYTES:
        yield Problem(f"the path has {size} bytes; at most {_PATH_BYTES} may be")
    if path.startswith("/"):
        advice = "give the path relative to the workspace"
        yield Problem("the path is absolute", advice, "PATH_NOT_GRANTED")
    if ".." in parts:
        advice = "stay inside the workspace"
        yield Problem("the path has a '..' component", advice, "PATH_NOT_GRANTED")
    if path.endswith("/"):
        yield Problem("the path ends with '/'", "leave it out")
    if "" in parts:
        yield Problem("the path has an empty component ('//')", "leave it out")
    if "." in parts and path != ".":
        yield Problem("the path has a '.' component", "leave it out")
    if longest > _NAME_BYTES:
        yield Problem(f"a component has {longest} bytes; at most {_NAME_BYTES} may be")


def _kind(value: object) -> str:
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a string"}
    names |= {list: "a list", dict: "an object"}
    return "null" if value is None else names.get(type(value), type(value).__name__)
