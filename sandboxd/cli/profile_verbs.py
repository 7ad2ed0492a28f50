"""How does an owner of profiles look at them, check them and pin a program?

``list`` asks the daemon. The others read files themselves, with the daemon's own loader
(`sandboxd.profiles`), which needs what ``sandboxd[daemon]`` installs and is imported only there.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import tomllib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from sandboxd.cli.terminal import put_json, put_line, put_table
from sandboxd.client import AdminClient
from sandboxd.endpoints import default_endpoints, shipped_profiles
from sandboxd.errors import NotFound, ProfileError, Unavailable

if TYPE_CHECKING:
    from sandboxd.profile import Profile
    from sandboxd.profiles import ProfileSet

_TABLE = re.compile(r"^[ \t]*\[[ \t]*executable[ \t]*\][^\n]*\n", re.MULTILINE)
_PIN = re.compile(r"^[ \t]*sha256[ \t]*=[^\n]*\n", re.MULTILINE)
_NEXT_TABLE = re.compile(r"^[ \t]*\[", re.MULTILINE)


def list_profiles(options: argparse.Namespace) -> int:
    """List the profiles that the daemon has in force."""
    with AdminClient() as client:
        infos = client.profiles()
    if options.json:
        put_json({"commands": infos})
        return 0
    put_table(
        [
            (info.name, info.risk, info.approval, info.unavailable_because or info.summary)
            for info in infos
        ]
    )
    return 0


def show(options: argparse.Namespace) -> int:
    """Show one profile as it is after inheritance."""
    profile = _find(_load(default_endpoints().profile_dirs), options.name)
    plain = profile.model_dump(mode="json", by_alias=True)
    if options.json:
        put_json(plain)
        return 0
    put_line(f"{profile.source}, digest {profile.digest}")
    for line in json.dumps(plain, indent=2).split("\n"):
        put_line(line)
    return 0


def check(options: argparse.Namespace) -> int:
    """Load the profiles, which runs their examples.

    Raises:
        ProfileError: with a line for each problem.

    """
    profiles = _check(options.path)
    missing = [each for each in profiles if each.pinned is None]
    wrong = [each for each in profiles if each.pinned is not None and each.executable_problem]
    right = [each.name for each in profiles if each not in wrong]
    if options.json:
        problems = {each.name: each.executable_problem for each in (*missing, *wrong)}
        names = [each.name for each in profiles]
        put_json({"profiles": names, "ok": not wrong, "executable_problems": problems})
        return 1 if wrong else 0
    for each in missing:
        put_line(f"executable missing: {each.executable.path} (profile {each.name})")
    for each in wrong:
        put_line(f"{each.source}: executable.sha256: {each.executable_problem}")
    if right or not wrong:
        put_line(f"{len(right)} profiles are right: {', '.join(right)}")
    return 1 if wrong else 0


def pin(options: argparse.Namespace) -> int:
    """Write the sha256 of a profile's program into its file.

    A profile that comes with the package is not touched: the pinned copy goes to the directory of
    one's own that is read last, and takes its place.
    """
    directories = default_endpoints().profile_dirs
    profile = _find(_load(directories), options.name)
    if profile.pinned is None:
        raise ProfileError(f"cannot pin {profile.name}: {profile.executable_problem}")
    with _reporting(profile.source), open(profile.source, encoding="utf-8", newline="") as file:
        text = file.read()
    path = profile.pinned.file.real_path
    with _reporting(path), open(path, "rb") as program:
        digest = hashlib.file_digest(program, "sha256").hexdigest()
    edited = pinned(text, digest, profile.source)
    if os.path.dirname(profile.source) == shipped_profiles():
        written = _copy(profile, edited, directories)
    else:
        written = profile.source
        _replace(written, edited, os.stat(written).st_mode & 0o777)
    if options.json:
        put_json({"profile": profile.name, "file": written, "sha256": digest})
    else:
        put_line(f"{written}: sha256 = {digest}")
        put_line("`sandboxctl reload` puts it in force")
    return 0


def pinned(text: str, digest: str, source: str) -> str:
    """Return the profile ``text`` with ``sha256 = digest`` in its table ``[executable]``.

    Raises:
        ProfileError: it is written in a way that cannot be edited without changing more.

    """
    line = f'sha256 = "{digest}"\n'
    table = _TABLE.search(text)
    if table is not None:
        following = _NEXT_TABLE.search(text, table.end())
        end = following.start() if following else len(text)
        old = _PIN.search(text, table.end(), end)
        start, stop = old.span() if old else (table.end(), table.end())
        edited = text[:start] + line + text[stop:]
        wanted = tomllib.loads(text)
        wanted["executable"]["sha256"] = digest
        with contextlib.suppress(tomllib.TOMLDecodeError):
            if tomllib.loads(edited) == wanted:
                return edited
    raise ProfileError(f"cannot edit {source}: write below [executable] yourself: {line.strip()}")


def _check(path: str | None) -> tuple[Profile, ...]:
    directories = default_endpoints().profile_dirs
    if path is None:
        return tuple(_load(directories))
    if os.path.isdir(path):
        return tuple(_load([path]))
    if not os.path.isfile(path) or not path.endswith(".toml"):
        raise ProfileError(f"cannot check {path}: it is neither a directory nor a .toml file")
    return _check_file(os.path.abspath(path), directories)


def _check_file(path: str, directories: Sequence[str]) -> tuple[Profile, ...]:
    """Load a file beside those in force, which it may extend; others' problems are not its own."""
    own_directory = os.path.dirname(path)
    others = [each for each in directories if each != own_directory]
    try:
        loaded = _load([*others, own_directory])
    except ProfileError as error:
        own = [line for line in error.message.split("\n") if line.startswith(f"{path}:")]
        if own:
            raise ProfileError("\n".join(own)) from None
        raise
    return tuple(profile for profile in loaded if profile.source == path)


def _load(directories: Sequence[str]) -> ProfileSet:
    try:
        from sandboxd import profiles
    except ModuleNotFoundError as error:
        raise Unavailable(
            f"cannot read profiles: the module {error.name} is not installed; "
            "install sandboxd[daemon]"
        ) from None
    return profiles.load(directories)


def _find(loaded: ProfileSet, name: str) -> Profile:
    profile = loaded.get(name)
    if profile is None:
        raise NotFound(f"cannot find a profile named {name!r}")
    return profile


def _copy(profile: Profile, text: str, directories: Sequence[str]) -> str:
    """Write a shipped profile, pinned, where one's own are; return the path."""
    own = [each for each in directories if each != shipped_profiles()]
    if not own:
        raise ProfileError(
            f"cannot pin {profile.name}: {profile.source} comes with the package, and there is no "
            "directory of your own to copy it to; name one in SANDBOXD_PROFILES"
        )
    path = os.path.join(own[-1], os.path.basename(profile.source))
    if os.path.lexists(path):
        raise ProfileError(
            f"cannot pin {profile.name}: {path} is there already, with another name"
        )
    _make_directory(own[-1])
    _replace(path, text, 0o644)
    return path


def _make_directory(path: str) -> None:
    """Make a directory and those above it, none of them writable by others."""
    if not os.path.isdir(path):
        _make_directory(os.path.dirname(path))
        with _reporting(path):
            os.mkdir(path, 0o755)


def _replace(path: str, text: str, mode: int) -> None:
    """Give the file its new content in one step."""
    born = f"{path}.new"
    with _reporting(path):
        fd = os.open(born, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with _removed_on_error(born):
            with open(fd, "w", encoding="utf-8", newline="") as file:
                file.write(text)
                file.flush()
                os.fsync(fd)
            os.rename(born, path)


@contextlib.contextmanager
def _removed_on_error(path: str) -> Iterator[None]:
    try:
        yield
    except OSError:
        os.unlink(path)
        raise


@contextlib.contextmanager
def _reporting(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ProfileError(f"cannot pin in {path}: {error.strerror}") from None
