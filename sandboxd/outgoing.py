"""How do a caller's words become a request, and its workspace and input descriptors?

A path is opened here, by the client itself, so that it names what the caller sees and nothing more
than the caller may open.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self

from sandboxd.errors import UsageError
from sandboxd.feed import Feed
from sandboxd.protocol import Request, Tightening
from sandboxd.units import parse_duration, parse_size

_LIMITS = ("memory", "pids", "output")


@dataclass(slots=True)
class Outgoing:
    """A request and the descriptors it refers to, which it owns: use it in a ``with``."""

    request: Request
    descriptors: list[int] = field(default_factory=list)
    feed: Feed | None = None
    _opened: list[int] = field(default_factory=list)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        for fd in self._opened:
            os.close(fd)
        self._opened.clear()
        if self.feed is not None:
            self.feed.close()

    @classmethod
    def open(
        cls,
        request: Request,
        *,
        workspace: str | os.PathLike[str] | int | None = None,
        source: str | bytes | int | None = None,
    ) -> Self:
        """Open the workspace and make the pipe for ``source``; a text is sent as UTF-8.

        Raises:
            UsageError: the workspace cannot be opened as a directory, or the source is none.

        """
        given = None if source is None else _source(source)
        out = cls(request)
        if workspace is not None:
            out._add_workspace(workspace)
            out.request = replace(out.request, workspace=0)
        if given is not None:
            out.feed = Feed(given)
            out.descriptors.append(out.feed.read_fd)
            out.request = replace(out.request, stdin=len(out.descriptors) - 1)
        return out

    def _add_workspace(self, workspace: str | os.PathLike[str] | int) -> None:
        if isinstance(workspace, int):
            self.descriptors.append(workspace)
            return
        try:
            fd = os.open(workspace, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise UsageError(
                f"cannot open the workspace {os.fspath(workspace)!r}: {why}", field="workspace"
            ) from None
        self._opened.append(fd)
        self.descriptors.append(fd)


def feed_of(source: str | bytes | int | None) -> contextlib.AbstractContextManager[Feed | None]:
    """Make a feed if there is a ``source``; use it in a ``with``."""
    return contextlib.nullcontext() if source is None else Feed(_source(source))


def _source(source: object) -> bytes | int:
    match source:
        case str():
            try:
                return source.encode()
            except UnicodeEncodeError:
                raise UsageError("cannot send an input that is not UTF-8", field="input") from None
        case bytes() | bytearray() | memoryview():
            return bytes(source)
        case int() if not isinstance(source, bool):
            return source
    raise UsageError(
        f"cannot send an input of type {type(source).__name__}: give bytes, a text or the number "
        "of a descriptor, such as file.fileno()",
        field="input",
    )


def seconds_of(timeout: object) -> float:
    """Read a duration: a number of seconds, or a text such as "500ms".

    Raises:
        UsageError: it is neither, or longer than anybody waits.

    """
    if isinstance(timeout, str):
        try:
            return parse_duration(timeout) / 1000
        except ValueError as error:
            raise UsageError(f"cannot use this timeout; {error}", field="timeout") from None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise UsageError(
            f"cannot use a timeout of type {type(timeout).__name__}: give seconds, or a text "
            'such as "500ms"',
            field="timeout",
        )
    if not abs(timeout) < 1e9:  # nor NaN
        raise UsageError(f"cannot use a timeout of {timeout} s", field="timeout")
    return timeout


def request_for(  # noqa: PLR0913  # the members of a request
    command: str,
    arguments: Mapping[str, Any],
    *,
    timeout: float | str | None = None,
    limits: Mapping[str, int | str] | None = None,
    env: Mapping[str, str] | None = None,
    reason: str = "",
    idempotency_key: str | None = None,
) -> Request:
    """Make a request. ``limits`` may hold memory, pids and output.

    Raises:
        UsageError: a bound is none, or an argument has no JSON form.

    """
    bounds = {name: _bound(name, value) for name, value in (limits or {}).items()}
    if timeout is not None:
        seconds = seconds_of(timeout)
        if seconds <= 0:
            raise UsageError(f"cannot use a timeout of {timeout} s", field="timeout")
        bounds["wall_ms"] = math.ceil(seconds * 1000)
    return Request(
        command=command,
        arguments={name: _argument(name, value) for name, value in arguments.items()},
        environment=dict(env or {}),
        limits=Tightening(**bounds),
        reason=reason,
        idempotency_key=idempotency_key,
    )


def _bound(name: str, value: object) -> int:
    if name not in _LIMITS:
        raise UsageError(
            f"cannot limit {name}: the limits are {', '.join(_LIMITS)}", field="limits"
        )
    if isinstance(value, str) and name != "pids":
        try:
            return parse_size(value)
        except ValueError as error:
            raise UsageError(f"cannot limit {name}; {error}", field=f"limits.{name}") from None
    if isinstance(value, bool) or not isinstance(value, int):
        forms = "a number" if name == "pids" else 'bytes, or a text such as "64MiB"'
        raise UsageError(
            f"cannot limit {name} to {value!r:.40}: give {forms}", field=f"limits.{name}"
        )
    return value


def _argument(name: str, value: object) -> object:
    try:
        return _plain(value)
    except RecursionError:
        problem = "it holds itself, or is nested too deeply"
    except TypeError as error:
        problem = str(error)
    raise UsageError(f"cannot send the argument {name!r}: {problem}", field=name)


def _plain(value: object) -> object:
    """Return the JSON form of a value: paths are texts, tuples are lists."""
    match value:
        case None | bool() | int() | str():
            return value
        case float() if math.isfinite(value):
            return value
        case os.PathLike():
            return _plain(os.fspath(value))
        case list() | tuple():
            return [_plain(item) for item in value]
        case dict() if all(isinstance(key, str) for key in value):
            return {key: _plain(item) for key, item in value.items()}
    shown = value if isinstance(value, float) else f"a value of type {type(value).__name__}"
    raise TypeError(f"{shown} has no form in JSON")
