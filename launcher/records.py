"""How does a frozen dataclass become JSON and back, strictly?

Both ends of every channel use this one codec, so no structure is written twice. Decoding accepts
exactly what the annotations say: no unknown, missing or duplicate member, no ``bool`` where an
``int`` is due, no number that is not an integer. Strings may hold undecodable bytes as lone
surrogates (os.fsencode), and come back as they were.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Callable
from typing import Any, TypeVar

R = TypeVar("R")
_HINTS: dict[Any, dict[str, Any]] = {}


class Malformed(ValueError):
    """A message is not what its type says; ``where`` is the member, such as ``plan.binds[2]``."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"cannot read {where or 'message'}: {problem}")
        self.where = where
        self.problem = problem


def prepare(*classes: type) -> None:
    """Look up the annotations of message classes now; a process forked later has them."""
    for cls in classes:
        for hint in _hints(cls).values():
            for part in (hint, *typing.get_args(hint)):
                if dataclasses.is_dataclass(part):
                    prepare(typing.cast("type", part))


def to_plain(value: object) -> Any:  # noqa: ANN401  # JSON has no narrower type
    """Turn dataclasses, tuples and dictionaries into what `json.dumps` takes."""
    if dataclasses.is_dataclass(value):
        return {f: to_plain(getattr(value, f)) for f in _hints(type(value))}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: to_plain(item) for key, item in value.items()}
    return value


def encode(message: object) -> bytes:
    """Encode a dataclass with its class's name as member ``type``."""
    plain = {"type": type(message).__name__, **to_plain(message)}
    return json.dumps(plain, separators=(",", ":")).encode()


def decode(data: bytes, *accepted: type[R]) -> R:
    """Decode one of the ``accepted`` dataclasses.

    Raises:
        Malformed: the bytes are no such message.

    """
    plain = parse(data)
    if not isinstance(plain, dict):
        raise Malformed("", "not an object")
    name = plain.pop("type", None)
    for cls in accepted:
        if cls.__name__ == name:
            return from_plain(cls, plain, "")
    raise Malformed("type", f"unknown message {name!r}")


def parse(data: bytes | str) -> object:
    """json.loads without its leniencies: no duplicate names, no NaN, no endless nesting.

    Raises:
        Malformed: not JSON in this sense.

    """
    try:
        return json.loads(data, object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
    except Malformed:
        raise
    except (ValueError, RecursionError) as error:
        raise Malformed("", f"not JSON ({type(error).__name__})") from None


def from_plain(cls: type[R], plain: object, where: str) -> R:
    """Build the dataclass ``cls`` from a parsed JSON object."""
    if not isinstance(plain, dict):
        raise Malformed(where, "an object is needed")
    hints = _hints(cls)
    for name in plain:
        if name not in hints:
            raise Malformed(f"{where}.{name}".lstrip("."), "unknown member")
    values = {}
    for name, hint in hints.items():
        member = f"{where}.{name}".lstrip(".")
        if name in plain:
            values[name] = _convert(hint, plain[name], member)
        elif not _has_default(cls, name):
            raise Malformed(member, "missing")
    try:
        return cls(**values)
    except (TypeError, ValueError) as error:
        raise Malformed(where, str(error)) from None


def _convert(hint: Any, value: object, where: str) -> Any:  # noqa: ANN401  # any annotation
    origin = typing.get_origin(hint)
    if origin in _GENERIC:
        return _GENERIC[origin](hint, value, where)
    if dataclasses.is_dataclass(hint):
        return from_plain(typing.cast("type[Any]", hint), value, where)
    if hint is Any or hint is object:
        return value
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is not hint:
        raise Malformed(where, f"{getattr(hint, '__name__', hint)} is needed")
    return value


def _convert_sequence(hint: Any, value: object, where: str) -> Any:  # noqa: ANN401
    if not isinstance(value, list):
        raise Malformed(where, "a list is needed")
    item = typing.get_args(hint)[0]
    items = (_convert(item, each, f"{where}[{i}]") for i, each in enumerate(value))
    return list(items) if typing.get_origin(hint) is list else tuple(items)


def _convert_mapping(hint: Any, value: object, where: str) -> Any:  # noqa: ANN401
    if not isinstance(value, dict):
        raise Malformed(where, "an object is needed")
    item = typing.get_args(hint)[1]
    return {key: _convert(item, each, f"{where}.{key}") for key, each in value.items()}


def _convert_literal(hint: Any, value: object, where: str) -> Any:  # noqa: ANN401
    choices = typing.get_args(hint)
    if not any(value == choice and type(value) is type(choice) for choice in choices):
        raise Malformed(where, f"not one of {', '.join(map(str, choices))}")
    return value


def _convert_union(hint: Any, value: object, where: str) -> Any:  # noqa: ANN401  # any annotation
    options = typing.get_args(hint)
    if value is None and types.NoneType in options:
        return None
    problem: Malformed | None = None
    for option in options:
        if option is types.NoneType:
            continue
        try:
            return _convert(option, value, where)
        except Malformed as error:
            problem = error
    raise problem or Malformed(where, "no value is possible")


_GENERIC: dict[Any, Callable[[Any, object, str], Any]] = {
    tuple: _convert_sequence,
    list: _convert_sequence,
    dict: _convert_mapping,
    typing.Literal: _convert_literal,
    typing.Union: _convert_union,
    types.UnionType: _convert_union,
}


def _hints(cls: Any) -> dict[str, Any]:  # noqa: ANN401  # a dataclass has no common type
    if cls not in _HINTS:
        names = {field.name for field in dataclasses.fields(cls)}
        _HINTS[cls] = {k: v for k, v in typing.get_type_hints(cls).items() if k in names}
    return _HINTS[cls]


def _has_default(cls: Any, name: str) -> bool:  # noqa: ANN401  # a dataclass has no common type
    missing = dataclasses.MISSING
    field = cls.__dataclass_fields__[name]
    return field.default is not missing or field.default_factory is not missing


def _no_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    plain = dict(pairs)
    if len(plain) != len(pairs):
        raise Malformed("", "a name stands twice in one object")
    return plain


def _no_constant(name: str) -> object:
    raise Malformed("", f"{name} is not a number")
