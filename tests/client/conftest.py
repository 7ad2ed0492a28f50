"""Clients of both kinds, scripted servers, and daemons of their own."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator

import pytest

from tests.client.scripted import Answer, Scripted


@pytest.fixture
def directory() -> Iterator[str]:
    """A directory whose path is short enough for the address of a socket (unix(7))."""
    with tempfile.TemporaryDirectory(prefix="sbx") as path:
        yield path


@pytest.fixture
def serve(directory: str) -> Iterator[Callable[..., Scripted]]:
    """Start a scripted server; at the end all of its answers must have been asked for."""
    started: list[Scripted] = []

    def start(*answers: Answer) -> Scripted:
        started.append(Scripted(os.path.join(directory, f"{len(started)}.sock"), *answers))
        return started[-1]

    yield start
    for server in started:
        server.close()
