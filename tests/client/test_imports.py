"""What does the client side load, and does a bare Python have all of it?"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib

import pytest

import sandboxd

TOP = os.path.dirname(os.path.dirname(sandboxd.__file__))
HEAVY = {
    "argparse", "asyncio", "asyncvarlink", "ctypes", "email", "http", "logging", "multiprocessing",
    "pathlib", "pickle", "prctl", "psutil", "pydantic", "pyseccomp", "shutil", "sqlite3", "ssl",
    "subprocess", "tempfile", "threading", "tomllib", "unittest", "urllib", "uuid",
}  # fmt: skip


def loaded(statement: str, *options: str) -> set[str]:
    """Return the modules that ``statement`` has loaded in a bare Python."""
    code = (
        f"import sys; sys.path.insert(0, {TOP!r})\n{statement}\n"
        "import json; print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", *options, "-c", code], capture_output=True, check=True
    )
    return set(json.loads(done.stdout))


def test_the_package_itself_costs_nothing() -> None:
    ours = {name for name in loaded("import sandboxd") if name.startswith("sandboxd")}
    assert ours == {"sandboxd"}


@pytest.mark.parametrize(
    "statement",
    [
        "import sandboxd.client",
        "from sandboxd import Client, AdminClient, Run, errors",
        "import sandboxd.cli",
        "import sandboxd.cli.exec_verb",
    ],
)
def test_the_client_and_exec_load_nothing_heavy(statement: str) -> None:
    assert not loaded(statement) & HEAVY


@pytest.mark.parametrize(
    "module",
    [
        "sandboxd.aclient",
        "sandboxd.autostart",
        "sandboxd.cli.parser",
        "sandboxd.cli.profile_verbs",
        "sandboxd.client",
        "sandboxd.doctor",
        "sandboxd.doctor_report",
        "sandboxd.messages",
    ],
)
def test_the_client_side_is_the_standard_library(module: str) -> None:
    new = {name.partition(".")[0] for name in loaded(f"import {module}")}
    assert new - {"sandboxd", "launcher", "__main__"} <= sys.stdlib_module_names


def test_names_of_the_package_are_those_of_their_modules() -> None:
    from sandboxd.aclient import AsyncClient
    from sandboxd.client import Client
    from sandboxd.protocol import Run

    assert (sandboxd.AsyncClient, sandboxd.Client, sandboxd.Run) == (AsyncClient, Client, Run)
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        sandboxd.Nonsense  # noqa: B018  # type: ignore[attr-defined]


def test_the_version_is_that_of_the_project() -> None:
    with open(os.path.join(TOP, "pyproject.toml"), "rb") as file:
        assert tomllib.load(file)["project"]["version"] == sandboxd.__version__
