"""A daemon in a directory of its own, started as a newcomer's first command starts it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import pytest

from tests.client.living import Place, make_place


@pytest.fixture
def place() -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="sbx") as directory:
        made = make_place(directory)
        yield made
        made.stop()
