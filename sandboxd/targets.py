"""What stands behind a path argument, held so that nobody can exchange it?

Each path is opened once, beneath the workspace's descriptor, with openat2(2): no symbolic link
anywhere, no way out. What was approved is what the descriptor names; the text only repeats it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from launcher import paths
from sandboxd.argv import PASSTHROUGH, Value
from sandboxd.prepared import OpenedTarget
from sandboxd.profile import Profile
from sandboxd.profile_arguments import List, Path
from sandboxd.protocol import Denial, ReasonCode
from sandboxd.refusals import MAX_DENIALS, NO_RESOURCES, refuse, shown

_ATTEMPTS = 8  # openat2(2): EAGAIN means that a rename was going on, try again
_REASONS: dict[int, tuple[ReasonCode, str]] = {
    errno.ELOOP: ("SYMLINK_REFUSED", "a symbolic link is on the way"),
    errno.EXDEV: ("PATH_NOT_GRANTED", "it leaves the workspace"),
    errno.EACCES: ("PATH_NOT_GRANTED", "a directory on the way may not be searched"),
    errno.ENOENT: ("ARGUMENT_INVALID", "it does not exist"),
    errno.ENOTDIR: ("ARGUMENT_INVALID", "a component on the way is no directory"),
    errno.ENAMETOOLONG: ("ARGUMENT_INVALID", "the name is too long for the file system"),
    errno.EAGAIN: ("PATH_NOT_GRANTED", "directories on the way are being renamed"),
}
_KINDS: dict[str, tuple[int, ...]] = {
    "file": (stat.S_IFREG,),
    "directory": (stat.S_IFDIR,),
    "any": (stat.S_IFREG, stat.S_IFDIR),
}
_NAMES = {"file": "regular file", "directory": "directory", "any": "file or directory"}


class _Found(NamedTuple):
    """A path among the values: its target, what the profile says of it, and its text."""

    target: str
    rule: Path
    text: str


def open_targets(
    profile: Profile,
    values: Mapping[str, Value],
    workspace_fd: int,
    keep: Callable[[int], int],
) -> tuple[tuple[OpenedTarget, ...], tuple[Denial, ...]]:
    """Open every path among ``values``; ``keep`` is told each descriptor at once."""
    opened: list[OpenedTarget] = []
    denials: list[Denial] = []
    for found in _paths(profile, values):
        result = _open(found, profile.name, workspace_fd, keep)
        if isinstance(result, Denial):
            denials.append(result)
        else:
            opened.append(result)
        if len(denials) == MAX_DENIALS:
            break
    return tuple(opened), tuple(denials)


def without_workspace(profile: Profile, values: Mapping[str, Value]) -> tuple[Denial, ...]:
    """Deny every path among ``values`` of a request that came without a workspace."""
    denials = [
        refuse(
            "workspace",
            "workspace",
            "ARGUMENT_INVALID",
            f"cannot use {target} {shown(text)}; no workspace was sent to find it in",
            profile=profile.name,
            rule=f"{profile.name}: workspace.access = {profile.workspace.access}",
            advice="send the directory to work in",
        )
        for target, text in (
            *((f.target, f.text) for f in _paths(profile, values)),
            *_passed(profile, values),
        )
    ]
    return tuple(denials[:MAX_DENIALS])


def _passed(profile: Profile, values: Mapping[str, Value]) -> Iterator[tuple[str, str]]:
    """List what a command line that is passed through names as paths."""
    rule, passed = profile.argv.passthrough, values.get(PASSTHROUGH)
    if rule is None or not rule.paths or not isinstance(passed, tuple):
        return
    for index, text in enumerate(map(str, passed)):
        if not text.startswith("-"):
            yield f"{PASSTHROUGH}[{index}]", text


def _paths(profile: Profile, values: Mapping[str, Value]) -> Iterator[_Found]:
    for name, argument in profile.arguments.items():
        value = values[name]
        if isinstance(argument, Path) and value is not None:
            yield _Found(name, argument, str(value))
        elif isinstance(argument, List) and isinstance(argument.items, Path):
            for index, item in enumerate(value if isinstance(value, tuple) else ()):
                yield _Found(f"{name}[{index}]", argument.items, str(item))


def _open(
    found: _Found, profile: str, workspace_fd: int, keep: Callable[[int], int]
) -> OpenedTarget | Denial:
    try:
        fd, kind = _open_or_parent(found, workspace_fd)
    except OSError as error:
        number = error.errno or 0
        if number in NO_RESOURCES:
            raise
        reason, why = _REASONS.get(number, ("PATH_NOT_GRANTED", os.strerror(number)))
        if number == errno.ENOENT and not found.rule.must_exist:
            why = "its directory does not exist"
        return _denial(profile, found, reason, why)
    identity = paths.identity(keep(fd))
    if identity.kind not in _KINDS[kind]:
        return _denial(profile, found, "ARGUMENT_INVALID", f"it is no {_NAMES[kind]}")
    return OpenedTarget(
        argument=found.target,
        text=found.text,
        fd=fd,
        identity=identity,
        access=found.rule.access,
    )


def _open_or_parent(found: _Found, workspace_fd: int) -> tuple[int, str]:
    """Return a descriptor and the kind it must have: of what may be created, its directory's."""
    try:
        return _open_beneath(workspace_fd, found.text), found.rule.kind
    except FileNotFoundError:
        if found.rule.must_exist:
            raise
    return _open_beneath(workspace_fd, found.text.rpartition("/")[0] or "."), "directory"


def _open_beneath(workspace_fd: int, text: str) -> int:
    for _ in range(_ATTEMPTS):
        try:
            return paths.open_beneath(workspace_fd, text)
        except BlockingIOError:
            continue
    return paths.open_beneath(workspace_fd, text)


def _denial(profile: str, found: _Found, reason: ReasonCode, why: str) -> Denial:
    return refuse(
        "path",
        found.target,
        reason,
        f"cannot use {found.target} {shown(found.text)}; {why}",
        profile=profile,
        rule=f"{profile}: arguments.{found.target.partition('[')[0]}",
        advice="name the file itself, not a link to it" if reason == "SYMLINK_REFUSED" else "",
    )
