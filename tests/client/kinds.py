"""One set of tests for both clients: the asyncio client behind the blocking one's methods."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from sandboxd.aclient import AsyncClient
from sandboxd.client import Client


class _Blocking:
    """Calls the methods of an `AsyncClient` from outside its loop."""

    def __init__(self, client: AsyncClient, runner: asyncio.Runner) -> None:
        self._client = client
        self._runner = runner

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        if not inspect.iscoroutinefunction(method):
            return method
        return lambda *args, **kwargs: self._runner.run(method(*args, **kwargs))


@contextlib.contextmanager
def opened(kind: str, path: str | None) -> Iterator[Any]:
    if kind == "blocking":
        with Client(path) as client:
            yield client
        return
    with asyncio.Runner() as runner:
        asynchronous = AsyncClient(path)
        yield _Blocking(asynchronous, runner)
        asynchronous.close()


both = pytest.mark.parametrize("kind", ["blocking", "asyncio"])
