"""Clients of both kinds, scripted servers, and daemons of their own."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator

import pytest

from sandboxd import autostart
from tests.client.living import Place, make_place
from tests.client.scripted import Answer, Scripted

PROFILES = {
    "ask": """
name = "ask"
risk = "low"
executable = { path = "/usr/bin/printf" }
arguments = { text = { type = "string" } }
argv = { template = ["--", "%s", "{text}"] }
approval = { mode = "ask" }
""",
    "shell": """
name = "shell"
risk = "medium"
executable = { path = "/bin/bash", interpreter = true }
arguments = { script = { type = "string", max_length = 65536, multiline = true } }
argv = { template = ["-c", "--", "{script}"] }
environment = { pass = ["GREETING"] }
approval = { mode = "allow" }
limits = { output = "1KiB" }
""",
}


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


@pytest.fixture
def place(directory: str) -> Iterator[Place]:
    """Where a daemon may be started; whatever was started there is ended."""
    made = make_place(directory)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def living() -> Iterator[Place]:
    """Where a daemon runs for all tests of a module."""
    with tempfile.TemporaryDirectory(prefix="sbx") as path:
        made = make_place(path)
        for name, text in PROFILES.items():
            with open(os.path.join(made.profiles, f"{name}.toml"), "w", encoding="ascii") as file:
                file.write(text)
        autostart.ensure_running(made.endpoints)
        yield made
        made.stop()
