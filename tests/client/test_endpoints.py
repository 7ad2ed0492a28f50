"""Where do the paths come from, and what if the environment does not tell?"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.client.living import TOP

AS_USER = (  # nothing is opened: the paths alone are of interest
    f"import os, sys; sys.path.insert(0, {TOP!r}); os.geteuid = lambda: 4242\n"
)
SHOW = (
    AS_USER + "from sandboxd.endpoints import default_endpoints\n"
    "ends = default_endpoints(); print(ends.runtime_dir, ends.state_dir, ends.profile_dirs[-1])"
)
FOUND = [  # environment, what is found
    (
        {"HOME": "/h"},
        "/h/.local/state/sandboxd/run /h/.local/state/sandboxd /h/.config/sandboxd/pr",
    ),
    (
        {"XDG_STATE_HOME": "/s", "XDG_CONFIG_HOME": "/c"},
        "/s/sandboxd/run /s/sandboxd /c/sandboxd/",
    ),
    (
        {"SANDBOXD_STATE_DIR": "/s", "SANDBOXD_RUNTIME_DIR": "/r", "SANDBOXD_PROFILES": "/p"},
        "/r /s /p",
    ),
]


def found(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", "-c", SHOW],
        env={"XDG_RUNTIME_DIR": "/nonexistent"} | environment,
        capture_output=True,
        check=False,
        text=True,
    )


@pytest.mark.parametrize(("environment", "paths"), FOUND)
def test_the_environment_tells_the_paths(environment: dict[str, str], paths: str) -> None:
    assert found(environment).stdout.startswith(paths)


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({}, "HOME is not set"),
        ({"HOME": ""}, "HOME is not set"),
        ({"HOME": "h"}, "HOME is 'h', no absolute path"),
        ({"XDG_STATE_HOME": "/s"}, "XDG_CONFIG_HOME is not set"),
        ({"SANDBOXD_STATE_DIR": "/s", "SANDBOXD_PROFILES": "/p"}, "HOME is not set"),
    ],
)
def test_without_a_home_there_is_a_usage_error(environment: dict[str, str], named: str) -> None:
    assert "UsageError: cannot tell where" in found(environment).stderr
    assert named in found(environment).stderr


def test_the_command_line_says_that_home_is_not_set() -> None:
    code = AS_USER + "from sandboxd.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, "status"], env={}, capture_output=True, check=False
    )
    assert done.returncode == 64
    assert done.stderr.startswith(b"sandboxctl: cannot tell where sockets, state and profiles are")
