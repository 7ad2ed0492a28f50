"""Does the README tell the truth about what it shows?"""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from sandboxd import profiles
from tests.client.living import TOP, Place

pytestmark = pytest.mark.kernel


def _readme() -> str:
    with open(os.path.join(TOP, "README.md"), encoding="utf-8") as file:
        return file.read()


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^ *```{language}\n(.*?)^ *```$", _readme(), re.DOTALL | re.MULTILINE)


def test_every_verb_is_in_it(place: Place) -> None:
    shown = place.ctl("--help")
    verbs = re.findall(r"^    ([a-z]+)\s{2,}", shown.stdout.decode(), re.MULTILINE)
    assert len(verbs) > 15, shown.stdout.decode()
    text = _readme()
    assert [verb for verb in verbs if not re.search(rf"\b{verb}\b", text)] == []


def test_its_profile_loads_and_its_examples_hold(place: Place) -> None:
    (text,) = _blocks("toml")
    with open(os.path.join(place.profiles, "count-lines.toml"), "w", encoding="utf-8") as file:
        file.write(text)
    assert profiles.load([place.profiles]).get("count-lines") is not None
    done = place.ctl("run", "count-lines", "-a", "paths=README.md", "-w", TOP)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.split()[0] == str(_readme().count("\n")).encode()


def test_its_first_python_runs(place: Place) -> None:
    sample = _blocks("python")[0]
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {TOP!r})\n{sample}"],
        env=os.environ | place.environment(),
        cwd=TOP,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.startswith(b"exited 0 launcher/")


@pytest.mark.parametrize("line", re.findall(r"^sandboxctl ((?:run|exec|runs|commands).*)$",
                                            _readme(), re.MULTILINE))  # fmt: skip
def test_its_commands_run(place: Place, line: str) -> None:
    words = line.partition("#")[0].split()
    done = place.ctl(*words, cwd=TOP)
    assert done.returncode == 0, done.stderr.decode()
