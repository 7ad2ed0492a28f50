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
from sandboxd.endpoints import default_endpoints
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
    names = _check(options.path)
    if options.json:
        put_json({"profiles": names, "ok": True})
    else:
        put_line(f"{len(names)} profiles are right: {', '.join(names)}")
    return 0


def pin(options: argparse.Namespace) -> int:
    """Write the sha256 of a profile's program into its file."""
    profile = _find(_load(default_endpoints().profile_dirs), options.name)
    if profile.pinned is None or profile.executable is None:
        raise ProfileError(f"cannot pin {profile.name}: its program is not there")
    with _reporting(profile.source), open(profile.source, encoding="utf-8", newline="") as file:
        text = file.read()
    path = profile.pinned.file.real_path
    with _reporting(path), open(path, "rb") as program:
        digest = hashlib.file_digest(program, "sha256").hexdigest()
    _replace(profile.source, pinned(text, digest, profile.source))
    if options.json:
        put_json({"profile": profile.name, "file": profile.source, "sha256": digest})
    else:
        put_line(f"{profile.source}: sha256 = {digest}")
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


def _check(path: str | None) -> tuple[str, ...]:
    directories = default_endpoints().profile_dirs
    if path is None:
        return _load(directories).names()
    if os.path.isdir(path):
        return _load([path]).names()
    if not os.path.isfile(path) or not path.endswith(".toml"):
        raise ProfileError(f"cannot check {path}: it is neither a directory nor a .toml file")
    return _check_file(os.path.abspath(path), directories)


def _check_file(path: str, directories: Sequence[str]) -> tuple[str, ...]:
    """Load a file beside those in force, which it may extend; others' problems are not its own."""
    try:
        loaded = _load([*directories, os.path.dirname(path)])
    except ProfileError as error:
        own = [line for line in error.message.split("\n") if line.startswith(f"{path}:")]
        if own:
            raise ProfileError("\n".join(own)) from None
        raise
    return tuple(
        name
        for name in loaded.names()
        if (profile := loaded.get(name)) is not None and profile.source == path
    )


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


def _replace(path: str, text: str) -> None:
    """Exchange the file's content in one step; it keeps its mode."""
    born = f"{path}.new"
    with _reporting(path):
        mode = os.stat(path).st_mode & 0o777
        fd = os.open(born, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with open(fd, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(fd)
        os.rename(born, path)


@contextlib.contextmanager
def _reporting(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ProfileError(f"cannot pin in {path}: {error.strerror}") from None
