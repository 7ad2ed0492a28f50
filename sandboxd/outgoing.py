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
        source: bytes | int | None = None,
    ) -> Self:
        """Open the workspace and make the pipe for ``source``.

        Raises:
            UsageError: the workspace cannot be opened as a directory.

        """
        out = cls(request)
        if workspace is not None:
            out._add_workspace(workspace)
            out.request = replace(out.request, workspace=0)
        if source is not None:
            out.feed = Feed(source)
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


def feed_of(source: bytes | int | None) -> contextlib.AbstractContextManager[Feed | None]:
    """Make a feed if there is a ``source``; use it in a ``with``."""
    return contextlib.nullcontext() if source is None else Feed(source)


def request_for(  # noqa: PLR0913  # the members of a request
    command: str,
    arguments: Mapping[str, Any],
    *,
    timeout: float | None = None,
    limits: Mapping[str, int] | None = None,
    env: Mapping[str, str] | None = None,
    reason: str = "",
    idempotency_key: str | None = None,
) -> Request:
    """Make a request. ``timeout`` is seconds; ``limits`` may hold memory, pids and output.

    Raises:
        UsageError: a bound is none.

    """
    bounds = dict(limits or {})
    if timeout is not None:
        if not 0 < timeout < 1e9:
            raise UsageError(f"cannot use a timeout of {timeout} s", field="timeout")
        bounds["wall_ms"] = math.ceil(timeout * 1000)
    try:
        tightening = Tightening(**bounds)
    except TypeError:
        raise UsageError(
            f"cannot limit {', '.join(sorted(bounds))}: the limits are memory, pids and output",
            field="limits",
        ) from None
    try:
        plain = {name: _plain_path(value) for name, value in arguments.items()}
    except RecursionError:
        raise UsageError("cannot send arguments that hold themselves") from None
    return Request(
        command=command,
        arguments=plain,
        environment=dict(env or {}),
        limits=tightening,
        reason=reason,
        idempotency_key=idempotency_key,
    )


def _plain_path(value: object) -> object:
    if isinstance(value, list | tuple):
        return [_plain_path(item) for item in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value
