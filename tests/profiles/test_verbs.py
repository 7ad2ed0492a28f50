"""What `sandboxctl profile check` and `pin` tell of programs, and which files they write."""

from __future__ import annotations

import hashlib
import json
import os
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest

from sandboxd import profiles
from sandboxd.cli import profile_verbs
from sandboxd.endpoints import shipped_profiles
from sandboxd.errors import ProfileError
from tests.profiles.writing import PROGRAM, Write

ARGV = "[argv]\ntemplate = []\n"
Use = Callable[..., None]


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Use:
    def use(*directories: Path | str) -> None:
        monkeypatch.setenv("SANDBOXD_PROFILES", ":".join(map(str, directories)))

    return use


def check(path: Path | None = None, *, as_json: bool = False) -> int:
    return profile_verbs.check(Namespace(path=path and str(path), json=as_json))


def pin(name: str) -> int:
    return profile_verbs.pin(Namespace(name=name, json=False))


def test_a_missing_program_is_a_warning(
    write: Write, directory: Path, use: Use, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write(PROGRAM.format(name="tool", path="/usr/bin/no-such") + ARGV)
    use(directory)
    for where in (None, directory, path):
        assert check(where) == 0
        assert capfd.readouterr().out == (
            "executable missing: /usr/bin/no-such (profile tool)\n1 profiles are right: tool\n"
        )
    assert check(as_json=True) == 0
    told = json.loads(capfd.readouterr().out)
    assert told["ok"] is True
    assert told["executable_problems"] == {
        "tool": "cannot run /usr/bin/no-such; there is no such file"
    }


def test_a_wrong_pin_is_told_and_pinning_again_mends_it(
    write: Write, directory: Path, use: Use, capfd: pytest.CaptureFixture[str]
) -> None:
    wrong = f'/usr/bin/true"\nsha256 = "{"0" * 64}'
    path = write(PROGRAM.format(name="tool", path=wrong) + ARGV)
    write(PROGRAM.format(name="right", path="/usr/bin/true") + ARGV, "right")
    use(directory)
    assert check() == 1
    problem, right = capfd.readouterr().out.splitlines()
    assert problem.startswith(f"{path}: executable.sha256: cannot run /usr/bin/true; the program")
    assert problem.endswith("`sandboxctl profile pin tool` pins what is there now")
    assert right == "1 profiles are right: right"
    assert check(path, as_json=True) == 1
    assert json.loads(capfd.readouterr().out)["ok"] is False
    assert pin("tool") == 0
    assert capfd.readouterr().out.endswith("`sandboxctl reload` puts it in force\n")
    assert check() == 0


def test_a_shipped_profile_is_pinned_in_a_copy_of_ones_own(
    trusted: Path, use: Use, capfd: pytest.CaptureFixture[str]
) -> None:
    shipped = Path(shipped_profiles(), "true.toml")
    before, own = shipped.read_bytes(), trusted / "config/profiles"
    use(shipped_profiles(), trusted / "earlier", own)
    mask = os.umask(0o002)
    try:
        assert pin("true") == 0
    finally:
        os.umask(mask)
    digest = hashlib.sha256(Path("/usr/bin/true").read_bytes()).hexdigest()
    assert f"{own}/true.toml: sha256 = {digest}\n" in capfd.readouterr().out
    assert shipped.read_bytes() == before
    assert os.listdir(trusted) == ["config"]
    assert os.listdir(own) == ["true.toml"]
    profile = profiles.load([shipped_profiles(), str(own)]).get("true")
    assert profile is not None
    assert profile.source == f"{own}/true.toml"
    assert profile.executable.sha256 == digest
    assert profile.executable_problem is None
    assert pin("true") == 0, "now it is one's own"


def test_without_a_directory_of_ones_own_nothing_is_written(use: Use, trusted: Path) -> None:
    use(shipped_profiles())
    with pytest.raises(ProfileError, match="no directory of your own to copy it to"):
        pin("true")
    use(shipped_profiles(), trusted)
    (trusted / "true.toml").write_text(PROGRAM.format(name="other", path="/usr/bin/true") + ARGV)
    (trusted / "true.toml").chmod(0o644)
    with pytest.raises(ProfileError, match=r"true\.toml is there already"):
        pin("true")
    assert os.listdir(trusted) == ["true.toml"]


def test_a_problem_is_told_once(write: Write, directory: Path, use: Use) -> None:
    path = write("x = [\n")
    use(directory, directory)
    for where in (None, path, directory):
        with pytest.raises(ProfileError) as caught:
            check(where)
        assert len(caught.value.message.splitlines()) == 1
