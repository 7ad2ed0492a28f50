"""Which profiles are there, and are all of them right?

A set is loaded as a whole or not at all: one broken file, and nothing changes. Later directories
replace earlier ones by name. Files are opened beneath their directory's descriptor and must be
what only root or the daemon's own user could have written.

The profiles that come with the package are not judged so: whoever can write them can write the
daemon's own code beside them, and an installer may have linked both from its cache.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from launcher import paths
from sandboxd.canonical import canonical_digest
from sandboxd.endpoints import shipped_profiles
from sandboxd.errors import ProfileError
from sandboxd.profile import Profile
from sandboxd.profile_inheritance import merge, widenings
from sandboxd.profile_text import ProfileText, Rejected, read_text, validate
from sandboxd.profile_trial import complete

_PROFILE = re.compile(r"[^.].*\.toml", re.DOTALL)  # what a shell means by *.toml
_MAX_BYTES = 256 << 10
_MAX_FILES = 1024
_MAX_SHOWN = 40


@dataclass(frozen=True, slots=True)
class ProfileSet:
    """The allowlist: every command there is, by name; ``digest`` tells one set from another."""

    _profiles: Mapping[str, Profile]
    digest: str = field(default="")

    def get(self, name: str) -> Profile | None:
        """Return the profile of exactly this name."""
        return self._profiles.get(name)

    def names(self) -> tuple[str, ...]:
        """Return the names of all commands, sorted."""
        return tuple(sorted(self._profiles))

    def __iter__(self) -> Iterator[Profile]:
        """Go through the profiles by name."""
        return (self._profiles[name] for name in self.names())


def load(dirs: Sequence[str]) -> ProfileSet:
    """Load all ``*.toml`` of ``dirs``; a directory that does not exist holds none.

    Raises:
        ProfileError: at least one cannot be used; the text names file and line of each problem.

    """
    problems: list[str] = []
    texts: dict[str, ProfileText] = {}
    for directory in dirs:
        texts |= _directory(directory, problems)
    profiles = {}
    for text in texts.values():
        try:
            profile = _resolve(text, texts)
        except Rejected as rejected:
            problems += rejected.problems
            continue
        if profile is not None:
            profiles[profile.name] = profile
    problems = list(dict.fromkeys(problems))  # a directory may be named twice
    if problems:
        shown = problems[:_MAX_SHOWN]
        more = len(problems) - len(shown)
        raise ProfileError("\n".join([*shown, *([f"and {more} more problems"] if more else [])]))
    digests = {name: profile.digest for name, profile in profiles.items()}
    return ProfileSet(MappingProxyType(profiles), canonical_digest(digests))


def _directory(directory: str, problems: list[str]) -> dict[str, ProfileText]:
    """Read the files of one directory, by profile name."""
    texts: dict[str, ProfileText] = {}
    for source, content in _contents(directory, problems):
        try:
            text = read_text(source, content)
        except Rejected as rejected:
            problems += rejected.problems
            continue
        if text.name in texts:
            problems.append(
                f"{source}:1: cannot use the name {text.name!r}; {texts[text.name].source} has it"
            )
        texts[text.name] = text
    return texts


def _contents(directory: str, problems: list[str]) -> Iterator[tuple[str, bytes]]:
    """Yield path and bytes of every profile of a directory that only its owner can change."""
    try:
        directory_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return
    except OSError as error:
        problems.append(f"{directory}: cannot open it: {os.strerror(error.errno or 0)}")
        return
    packaged = directory == shipped_profiles()
    try:
        problem = None if packaged else _directory_problem(directory_fd)
        if problem is not None:
            problems.append(f"{directory}: cannot load profiles from it; {problem}")
            return
        names = sorted(name for name in os.listdir(directory_fd) if _PROFILE.fullmatch(name))
        if len(names) > _MAX_FILES:
            problems.append(f"{directory}: cannot load {len(names)} files; {_MAX_FILES} may be")
            return
        for name in names:
            try:
                yield f"{directory}/{name}", _read(directory_fd, name, packaged=packaged)
            except (ValueError, OSError) as error:
                why = os.strerror(error.errno or 0) if isinstance(error, OSError) else error
                problems.append(f"{directory}/{ascii(name)[1:-1]}:1: cannot load it; {why}")
    finally:
        os.close(directory_fd)


def _directory_problem(directory_fd: int) -> str | None:
    """Judge the directory, and the way to it: a sticky directory on the way is none of others'."""
    problem = _owner_problem(os.fstat(directory_fd))
    if problem is not None:
        return problem
    path = paths.name_of(directory_fd)
    while path != "/":
        path = os.path.dirname(path)
        status = os.stat(path)
        if status.st_uid not in {0, os.geteuid()}:
            return f"{path} belongs to uid {status.st_uid}"
        if status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX:
            return f"{path} is writable by others; chmod go-w it"
    return None


def _owner_problem(status: os.stat_result) -> str | None:
    if status.st_uid not in {0, os.geteuid()}:
        return f"it belongs to uid {status.st_uid}, not to root or uid {os.geteuid()}"
    if status.st_mode & 0o022:
        return f"it is writable by others (mode {stat.S_IMODE(status.st_mode):04o}); chmod go-w it"
    return None


def _file_problem(status: os.stat_result, *, packaged: bool) -> str | None:
    if not stat.S_ISREG(status.st_mode):
        return "it is no regular file"
    if packaged:
        return None
    if status.st_nlink != 1:
        return "it has another name too (a hard link); copy it instead"
    return _owner_problem(status)


def _read(directory_fd: int, name: str, *, packaged: bool) -> bytes:
    """Read one file. `O_PATH` first: a FIFO or a device has no effect before it is judged."""
    try:
        fd = paths.open_beneath(directory_fd, name)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ValueError("it is a symbolic link; put the file itself here") from None
        raise
    try:
        status = os.fstat(fd)
        problem = _file_problem(status, packaged=packaged)
        if problem is not None:
            raise ValueError(problem)
        with open(f"/proc/self/fd/{fd}", "rb") as file:
            content = file.read(_MAX_BYTES + 1)
    finally:
        os.close(fd)
    if len(content) > _MAX_BYTES:
        raise ValueError(f"it is larger than {_MAX_BYTES} bytes")
    return content


def _resolve(text: ProfileText, texts: Mapping[str, ProfileText]) -> Profile | None:
    """Return the profile in force, or None for one that can only be extended.

    Raises:
        Rejected: with every problem of this file.

    """
    own = validate(text, text.document)
    if own.extends is None:
        return complete(text, own)
    parent = texts.get(own.extends)
    if parent is None:
        raise Rejected.at(text, [(("extends",), f"cannot extend {own.extends}; there is none")])
    if parent.name == text.name or parent.document.get("extends") == text.name:
        raise Rejected.at(text, [(("extends",), f"cannot extend {own.extends}; it is a cycle")])
    if "extends" in parent.document:
        why = f"cannot extend {own.extends}, which extends another; one level may be"
        raise Rejected.at(text, [(("extends",), why)])
    try:
        extended = validate(parent, parent.document)
    except Rejected:
        return None  # its problems are told, and the set refused, in its own turn
    merged = validate(text, merge(text.document, parent.document))
    wider = list(widenings(merged, extended))
    if wider:
        raise Rejected.at(text, wider)
    return complete(text, merged)
