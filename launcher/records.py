"""How does a frozen dataclass become JSON and back, strictly?

Both ends of every channel use this one codec, so no structure is written twice. Decoding accepts
exactly what the annotations say: no unknown, missing or duplicate member, no ``bool`` where an
``int`` is due, no number that is not an integer. Strings may hold undecodable bytes as lone
surrogates (os.fsencode), and come back as they were.

What an annotation means is worked out once a class (`prepare`), since every run crosses three
channels and two of them end in processes just forked.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

R = TypeVar("R")
Converter = Callable[[Any], Any]
_MISSING = dataclasses.MISSING


class Malformed(ValueError):
    """A message is not what its type says; ``where`` is the member, such as ``plan.binds[2]``."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"cannot read {where or 'message'}: {problem}")
        self.where = where
        self.problem = problem

    def below(self, step: str) -> Malformed:
        """Return the same problem, seen from one level further up."""
        joint = "." if self.where and not self.where.startswith("[") else ""
        return Malformed(f"{step}{joint}{self.where}", self.problem)


def prepare(*classes: type) -> None:
    """Work out the annotations of message classes now; a process forked later has them."""
    for cls in typing.cast("tuple[Any, ...]", classes):
        _converter_of_class(cls)
        _names(cls)


def to_plain(value: object) -> Any:  # noqa: ANN401  # JSON has no narrower type
    """Turn dataclasses, tuples and dictionaries into what `json.dumps` takes."""
    kind: Any = type(value)
    if kind in _ATOMS:
        return value
    if kind is tuple or kind is list:
        return [to_plain(item) for item in value]  # type: ignore[attr-defined]  # it is one
    if kind is dict:
        return {key: to_plain(item) for key, item in value.items()}  # type: ignore[attr-defined]
    return {name: to_plain(getattr(value, name)) for name in _names(kind)}


_ATOMS = frozenset({str, int, float, bool, type(None)})


def _members(value: object) -> dict[str, Any]:
    kind: Any = type(value)
    return {name: getattr(value, name) for name in _names(kind)}


@functools.cache
def _names(cls: Any) -> tuple[str, ...]:  # noqa: ANN401  # a dataclass has no common type
    return tuple(field.name for field in dataclasses.fields(cls))


def encode(message: object) -> bytes:
    """Encode a dataclass with its class's name as member ``type``."""
    plain = {"type": type(message).__name__, **_members(message)}
    return json.dumps(plain, separators=(",", ":"), default=_members).encode()


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
    """Build the dataclass ``cls`` from a parsed JSON object, which stands at ``where``.

    Raises:
        Malformed: it has another shape; nothing is converted to make it fit.

    """
    try:
        return typing.cast("R", _converter_of_class(typing.cast("Any", cls))(plain))
    except Malformed as error:
        raise error.below(where) if where else error from None


@functools.cache
def _converter_of_class(cls: Any) -> Converter:  # noqa: ANN401  # a dataclass has no common type
    hints = typing.get_type_hints(cls)
    converters = {name: _converter(hints[name]) for name in _names(cls)}
    required = {
        field.name
        for field in dataclasses.fields(cls)
        if field.default is _MISSING and field.default_factory is _MISSING
    }

    def convert(plain: object) -> object:
        if not isinstance(plain, dict):
            raise Malformed("", "an object is needed")
        values = {}
        for name, value in plain.items():
            converter = converters.get(name)
            if converter is None:
                raise Malformed(name, "unknown member")
            try:
                values[name] = converter(value)
            except Malformed as error:
                raise error.below(name) from None
        for name in required:
            if name not in values:
                raise Malformed(name, "missing")
        try:
            return cls(**values)
        except (TypeError, ValueError) as error:
            raise Malformed("", str(error)) from None

    return convert


def _converter(hint: Any) -> Converter:  # noqa: ANN401  # any annotation
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in {typing.Union, types.UnionType}:
        return _union(parts)
    if origin in {tuple, list}:
        return _sequence(origin, _converter(parts[0]))
    if origin is dict:
        return _mapping(_converter(parts[1]))
    if origin is typing.Literal:
        return _literal(parts)
    return _plain_converter(hint)


def _plain_converter(hint: Any) -> Converter:  # noqa: ANN401  # any annotation
    if dataclasses.is_dataclass(hint):
        return _converter_of_class(typing.cast("Any", hint))
    if hint is Any or hint is object:
        return lambda value: value
    return _float if hint is float else _exactly(hint)


def _sequence(kind: Callable[[Iterable[Any]], Any], item: Converter) -> Converter:
    def convert(value: object) -> object:
        if not isinstance(value, list):
            raise Malformed("", "a list is needed")
        items = []
        for position, each in enumerate(value):
            try:
                items.append(item(each))
            except Malformed as error:
                raise error.below(f"[{position}]") from None
        return kind(items)

    return convert


def _mapping(item: Converter) -> Converter:
    def convert(value: object) -> object:
        if not isinstance(value, dict):
            raise Malformed("", "an object is needed")
        items = {}
        for name, each in value.items():
            try:
                items[name] = item(each)
            except Malformed as error:
                raise error.below(name) from None
        return items

    return convert


def _literal(choices: tuple[Any, ...]) -> Converter:
    def convert(value: object) -> object:
        if not any(value == choice and type(value) is type(choice) for choice in choices):
            raise Malformed("", f"not one of {', '.join(map(str, choices))}")
        return value

    return convert


def _union(options: tuple[Any, ...]) -> Converter:
    converters = [_converter(option) for option in options if option is not types.NoneType]
    optional = types.NoneType in options

    def convert(value: object) -> object:
        if value is None and optional:
            return None
        problem = Malformed("", "no value is possible")
        for converter in converters:
            try:
                return converter(value)
            except Malformed as error:
                problem = error
        raise problem

    return convert


def _float(value: object) -> object:
    if type(value) is int:
        return float(value)
    if type(value) is not float:
        raise Malformed("", "float is needed")
    return value


def _exactly(kind: type) -> Converter:
    def convert(value: object) -> object:
        if type(value) is not kind:
            raise Malformed("", f"{kind.__name__} is needed")
        return value

    return convert


def _no_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    plain = dict(pairs)
    if len(plain) != len(pairs):
        raise Malformed("", "a name stands twice in one object")
    return plain


def _no_constant(name: str) -> object:
    raise Malformed("", f"{name} is not a number")
