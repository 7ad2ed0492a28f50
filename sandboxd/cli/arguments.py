"""How does ``KEY=VALUE`` on a command line become a request?

The command's own JSON Schema tells which values are numbers, switches and lists. What does not fit
it is sent as text: the daemon judges, and says what is wrong with it.
"""

from __future__ import annotations

import argparse
from typing import Any, TypedDict

from launcher.records import Malformed, parse
from sandboxd.client import Client
from sandboxd.errors import UsageError

_SWITCHES = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


class Words(TypedDict):
    """The keyword arguments that `Client.run`, `propose` and `check` share."""

    arguments: dict[str, object]
    workspace: str | None
    timeout: float | None
    limits: dict[str, int]
    env: dict[str, str]


def words(client: Client, options: argparse.Namespace) -> Words:
    """Return what the command line asks for, as keyword arguments of the client."""
    limits = {name: getattr(options, name) for name in ("memory", "pids", "output")}
    return Words(
        arguments=_arguments(client, options.command, options.arguments),
        workspace=options.workspace,
        timeout=options.timeout,
        limits={name: value for name, value in limits.items() if value is not None},
        env=dict(_pair(text, "--env") for text in options.environment),
    )


def _arguments(client: Client, command: str, texts: list[str]) -> dict[str, object]:
    if not texts:
        return {}
    found: dict[str, Any] = next(
        (info.parameters for info in client.commands() if info.name == command), {}
    )
    properties = found.get("properties")
    return read_arguments(texts, properties if isinstance(properties, dict) else {})


def read_arguments(texts: list[str], properties: dict[str, Any]) -> dict[str, object]:
    """Read ``KEY=VALUE`` and ``KEY:=JSON`` by the JSON Schema ``properties``.

    Raises:
        UsageError: one is neither, or a name that is no list stands twice.

    """
    arguments: dict[str, object] = {}
    for text in texts:
        key, value = _pair(text, "--arg")
        schema = properties.get(key.removesuffix(":"))
        schema = schema if isinstance(schema, dict) else {}
        if key.endswith(":"):
            key, given = key[:-1], _json(key[:-1], value)
        elif schema.get("type") == "array":
            items = schema.get("items")
            item = _convert(value, items if isinstance(items, dict) else {})
            earlier = arguments.pop(key, [])
            given = [*earlier, item] if isinstance(earlier, list) else [earlier, item]
        else:
            given = _convert(value, schema)
        if key in arguments:
            raise UsageError(f"cannot set {key!r} twice: it is no list", field=key)
        arguments[key] = given
    return arguments


def _convert(text: str, schema: dict[str, Any]) -> object:
    match schema.get("type"):
        case "boolean":
            return _SWITCHES.get(text.lower(), text)
        case "integer" | "number" as kind:
            try:
                return int(text) if kind == "integer" else float(text)
            except ValueError:
                return text
    return text


def _json(key: str, text: str) -> object:
    try:
        return parse(text)
    except Malformed as error:
        raise UsageError(f"cannot read the value of {key!r}: {error.problem}", field=key) from None


def _pair(text: str, option: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip(":"):
        raise UsageError(f"cannot read {option} {text!r}: write KEY=VALUE")
    return key, value
