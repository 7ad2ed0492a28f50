"""A daemon a test module, one that a test sets up itself, and connections to it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator

import pytest

from tests.daemon.harness import Daemon, Wire


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with tempfile.TemporaryDirectory(prefix="sbx") as directory:
        one = Daemon(directory).start()
        yield one
        assert one.stop() == 0
        assert not [line for line in one.log() if line["event"] == "internal_error"]


@pytest.fixture
def make_daemon() -> Iterator[Callable[..., Daemon]]:
    with tempfile.TemporaryDirectory(prefix="sbx") as directory:
        made: list[Daemon] = []

        def make(config: str = "", *arguments: str) -> Daemon:
            made.append(Daemon(directory, config, *arguments))
            return made[-1]

        yield make
        for one in made:
            if one.process is not None:
                one.stop()
                assert not [line for line in one.log() if line["event"] == "internal_error"]


@pytest.fixture
def agent(daemon: Daemon) -> Iterator[Wire]:
    with daemon.agent() as wire:
        yield wire


@pytest.fixture
def admin(daemon: Daemon) -> Iterator[Wire]:
    with daemon.admin() as wire:
        yield wire
