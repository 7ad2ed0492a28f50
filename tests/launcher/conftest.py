"""One launcher a module, and a workspace of the caller's own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from tests.launcher.driver import HERE, Launcher, a_launcher


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    with a_launcher() as one:
        yield one


@pytest.fixture
def workspace(tmp_path: object) -> str:
    path = os.path.join(str(tmp_path), "work")
    os.mkdir(path)
    return path


def outside(*attempts: str) -> list[object]:
    """Run attempts of `inside.py` without any sandbox: the control."""
    import json
    import subprocess

    program = os.path.join(HERE, "inside.py")
    done = subprocess.run(
        [sys.executable, "-I", program, *attempts], capture_output=True, check=True
    )
    return [json.loads(line) for line in done.stdout.splitlines()]
