"""Are profiles checked and pinned without changing anything else in their files?"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tomllib

import pytest

from sandboxd.cli.profile_verbs import pinned
from sandboxd.errors import ProfileError
from tests.client.living import TOP, Place

DIGEST = "0123456789abcdef" * 4
MINE = """\
# mine
name = "mine"
risk = "low"
argv = { template = [] }   # nothing

[executable]  # the program
path = "/usr/bin/true"

[approval]
mode = "allow"
"""


def test_a_pin_is_one_line_more() -> None:
    text = pinned(MINE, DIGEST, "mine.toml")
    assert text == MINE.replace(
        "[executable]  # the program\n", f'[executable]  # the program\nsha256 = "{DIGEST}"\n'
    )
    assert pinned(text, DIGEST, "mine.toml") == text
    other = "f" * 64
    assert pinned(text, other, "mine.toml") == text.replace(DIGEST, other)


@pytest.mark.parametrize(
    "text",
    [
        'name = "x"\nexecutable = { path = "/usr/bin/true" }\n',
        'name = "x"\nexecutable.path = "/usr/bin/true"\n',
        'name = "x"\nsummary = """\n[executable]\n"""\nexecutable.path = "/usr/bin/true"\n',
    ],
)
def test_what_cannot_be_edited_surely_is_left_to_the_owner(text: str) -> None:
    with pytest.raises(ProfileError, match=r"cannot edit x\.toml"):
        pinned(text, DIGEST, "x.toml")


@pytest.fixture
def mine(place: Place) -> str:
    path = os.path.join(place.profiles, "mine.toml")
    with open(path, "w", encoding="ascii") as file:
        file.write(MINE)
    os.chmod(path, 0o640)
    return path


def test_pin_writes_the_digest_of_the_program(place: Place, mine: str) -> None:
    done = place.ctl("profile", "pin", "mine", "--json")
    assert done.returncode == 0, done
    with open("/usr/bin/true", "rb") as program:
        digest = hashlib.sha256(program.read()).hexdigest()
    with open(mine, "rb") as file:
        assert tomllib.load(file)["executable"]["sha256"] == digest
    assert json.loads(done.stdout) == {"profile": "mine", "file": mine, "sha256": digest}
    assert os.stat(mine).st_mode & 0o777 == 0o640
    assert sorted(os.listdir(place.profiles)) == ["mine.toml"]
    assert place.ctl("profile", "check", mine).returncode == 0


def test_check_tells_file_line_and_problem(place: Place, mine: str) -> None:
    with open(mine, "a", encoding="ascii") as file:
        file.write("nonsense = 1\n")
    for where in (mine, place.profiles, None):
        done = place.ctl("profile", "check", *([where] if where else []))
        assert done.returncode == 125
        assert f"{mine}:11: approval.nonsense".encode() in done.stderr


def test_a_file_is_checked_beside_those_it_may_extend(place: Place, mine: str) -> None:
    other = os.path.join(place.directory, "other")
    os.mkdir(other, 0o755)
    path = os.path.join(other, "child.toml")
    with open(path, "w", encoding="ascii") as file:
        file.write('name = "child"\nextends = "mine"\n[limits]\nwall = "1s"\n')
    os.chmod(path, 0o644)
    done = place.ctl("profile", "check", path)
    assert (done.returncode, done.stdout) == (0, b"1 profiles are right: child\n"), done
    del mine


@pytest.mark.parametrize("path", ["/nonexistent", "/etc/passwd"])
def test_what_is_no_profile_is_not_checked(place: Place, path: str) -> None:
    done = place.ctl("profile", "check", path)
    assert done.returncode == 125
    assert b"neither a directory nor a .toml file" in done.stderr


def test_show_shows_the_profile_in_force(place: Place, mine: str) -> None:
    shown = json.loads(place.ctl("profile", "show", "mine", "--json").stdout)
    assert shown["executable"]["path"] == "/usr/bin/true"
    done = place.ctl("profile", "show", "mine")
    assert done.stdout.startswith(f"{mine}, digest ".encode())
    assert place.ctl("profile", "show", "nonsense").returncode == 125


def test_without_the_daemons_modules_it_says_what_to_install() -> None:
    code = (
        f"import sys; sys.path.insert(0, {TOP!r}); from sandboxd.cli import main; "
        "main(['profile', 'check'])"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, check=False
    )
    assert done.returncode == 125
    assert b"install sandboxd[daemon]" in done.stderr
    assert b"Traceback" not in done.stderr
