"""What does an interface look like in Varlink's own notation?

Derived from the very dataclasses that decode and encode its messages, so it cannot say anything
else than the truth. https://varlink.org/Interface-Definition is the notation.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
import typing
from typing import Any

_ENUM_MEMBER = re.compile(r"[A-Za-z](_?[A-Za-z0-9])*")
_NOTE = ("#", "# A parameter with ? may be left out; null is no value of it.")
_SIMPLE: dict[object, str] = {bool: "bool", int: "int", float: "float", str: "string"}


def describe(
    interface: str,
    summary: str,
    methods: dict[str, tuple[str, type, type]],
    errors: dict[str, str],
) -> str:
    """Render an interface: name and documentation, and each method's parameters and reply."""
    named: dict[str, str] = dict.fromkeys(methods, "")  # a type takes no method's name
    lines = []
    for name, (text, takes, gives) in methods.items():
        members = f"{_members(takes, named, incoming=True)} -> {_members(gives, named)}"
        lines += ["", *_comment(text), f"method {name}{members}"]
    types_only = sorted(named.items() - dict.fromkeys(methods, "").items())
    declared = [f"type {name} {text}" for name, text in types_only]
    failures = [f"error {name} {members}" for name, members in sorted(errors.items())]
    head = [*_comment(summary), *_NOTE, f"interface {interface}", ""]
    return "\n".join([*head, *declared, *lines, "", *failures, ""])


def _comment(text: str) -> list[str]:
    return [f"# {line}".rstrip() for line in inspect.cleandoc(text).splitlines()]


def _members(cls: type, named: dict[str, str], *, incoming: bool = False) -> str:
    """Render an object; what has a default may be left out of a message that comes in."""
    hints = typing.get_type_hints(cls)
    rendered = []
    for field in dataclasses.fields(cls):
        optional = incoming and _has_default(field) and not _is_optional(hints[field.name])
        kind = _type(hints[field.name], named)
        rendered.append(f"{field.name}: {'?' if optional else ''}{kind}")
    return f"({', '.join(rendered)})"


def _has_default(field: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return field.default is not missing or field.default_factory is not missing


def _is_optional(hint: object) -> bool:
    return types.NoneType in typing.get_args(hint)


def _type(hint: Any, named: dict[str, str]) -> str:  # noqa: ANN401  # any annotation
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in {typing.Union, types.UnionType}:
        options = [option for option in arguments if option is not types.NoneType]
        optional = "?" if _is_optional(hint) else ""
        return optional + (_type(options[0], named) if len(options) == 1 else _union(options))
    if origin in {tuple, list}:
        return f"[]{_type(arguments[0], named)}"
    if origin is dict:
        return f"[string]{_type(arguments[1], named)}"
    if origin is typing.Literal:
        return _enumeration(arguments)
    if dataclasses.is_dataclass(hint):
        return _named(typing.cast("type", hint), named)
    return _SIMPLE.get(hint, "object")


def _union(options: list[Any]) -> str:
    if all(typing.get_origin(option) is typing.Literal for option in options):
        return _enumeration(tuple(v for option in options for v in typing.get_args(option)))
    return "object"


def _enumeration(values: tuple[object, ...]) -> str:
    """Render an enumeration, or ``string`` where a value is none of Varlink's names."""
    texts = [str(value) for value in values]
    if all(_ENUM_MEMBER.fullmatch(text) for text in texts):
        return f"({', '.join(texts)})"
    return "string"


def _named(cls: type, named: dict[str, str]) -> str:
    """Declare a type once; ``Record`` is added to a name that a method has."""
    name = cls.__name__ + ("Record" if named.get(cls.__name__) == "" else "")
    if name not in named:
        named[name] = "()"  # stands while its own members are rendered
        named[name] = _members(cls, named)
    return name
