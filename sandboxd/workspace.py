"""May this directory be granted to a command?

A client proves its access by a descriptor; what is judged is what the descriptor names now. Broad
and foreign trees are refused: a grant is one directory of one's own, not a system or a home.
"""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Callable, Iterator, Sequence

from launcher import paths
from launcher.plan import Identity
from sandboxd.prepared import Workspace
from sandboxd.profile import Profile
from sandboxd.protocol import Denial, ReasonCode
from sandboxd.refusals import NO_RESOURCES, refuse, shown

_TREES = (
    *("/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/run"),
    *("/sbin", "/sys", "/usr", "/var/lib", "/var/run", "/var/lock", "/var/spool", "/lost+found"),
)
_TOO_BROAD = (
    *("/", "/home", "/media", "/mnt", "/opt", "/root", "/srv", "/var"),
    *("/tmp", "/var/tmp"),  # noqa: S108  # names that are refused
    *("/var/cache", "/var/log", "/var/mail", "/var/opt", "/var/local", "/var/backups"),
)


class _Unfit(Exception):
    """The directory may not be granted."""

    def __init__(self, why: str, reason: ReasonCode = "PATH_NOT_GRANTED") -> None:
        super().__init__(why)
        self.reason = reason


def open_workspace(
    profile: Profile,
    workspace_fd: int | None,
    denied: Sequence[str],
    keep: Callable[[int], int],
) -> Workspace | Denial | None:
    """Judge the directory a client sent; the result holds a descriptor of its own.

    Without one, None is returned if the profile takes or needs none.
    """
    access = profile.workspace.access
    if access == "none":
        if workspace_fd is None:
            return None
        why = "the command takes none"
        return _denial(profile, "ARGUMENT_INVALID", why, "send no workspace")
    if workspace_fd is None and not profile.workspace.required:
        return None
    if workspace_fd is None:
        why = "the command needs a directory and none was sent"
        return _denial(profile, "ARGUMENT_INVALID", why, "send the directory to work in")
    try:
        fd, path = _open(workspace_fd, keep)
        _judge(fd, path, denied)
    except _Unfit as unfit:
        return _denial(
            profile, unfit.reason, str(unfit), "choose a directory of your own below it"
        )
    return Workspace(fd=fd, path=path, identity=paths.identity(fd), access=access)


def _denial(profile: Profile, reason: ReasonCode, why: str, advice: str) -> Denial:
    return refuse(
        "workspace",
        "workspace",
        reason,
        f"cannot use the workspace; {why}",
        profile=profile.name,
        rule=f"{profile.name}: workspace.access = {profile.workspace.access}",
        advice=advice,
    )


def _open(workspace_fd: int, keep: Callable[[int], int]) -> tuple[int, str]:
    """Return an ``O_PATH`` descriptor of the same directory and its canonical path."""
    try:
        if not stat.S_ISDIR(os.fstat(workspace_fd).st_mode):
            raise _Unfit("what was sent is no directory", "ARGUMENT_INVALID")
        fd = keep(paths.open_beneath(workspace_fd, ".", os.O_PATH | os.O_DIRECTORY))
        path = paths.name_of(fd)
        root_fd = os.open("/", os.O_PATH | os.O_DIRECTORY)
    except FileNotFoundError:
        raise _Unfit("the directory has been removed", "ARGUMENT_INVALID") from None
    except OSError as error:
        if error.errno in NO_RESOURCES:
            raise
        raise _Unfit(f"it cannot be opened ({os.strerror(error.errno or 0)})") from None
    try:
        # SAFETY: the name of a directory in another mount namespace is another directory's here.
        again_fd = paths.open_path(root_fd, path)
    except OSError as error:
        if error.errno in NO_RESOURCES:
            raise
        raise _Unfit(f"{shown(path)} cannot be reached under its name") from None
    finally:
        os.close(root_fd)
    try:
        if paths.identity(again_fd) != paths.identity(fd):
            raise _Unfit(f"{shown(path)} is another directory here")
    finally:
        os.close(again_fd)
    return fd, path


def _judge(fd: int, path: str, denied: Sequence[str]) -> None:
    if not path.isprintable() or len(path) > 4095:
        raise _Unfit("its path holds characters that cannot be shown", "ARGUMENT_INVALID")
    if path in _TOO_BROAD or path in _homes(os.fstat(fd).st_uid) or _is_home(path):
        raise _Unfit(f"{path} is too broad to be granted")
    if any(paths.is_beneath(path, tree) for tree in _TREES):
        raise _Unfit(f"{path} belongs to the system")
    for name, identity in _canonical(denied):
        same = identity == paths.identity(fd)
        if same or paths.is_beneath(path, name) or paths.is_beneath(name, path):
            raise _Unfit("the daemon keeps its own files there")
    status, user = os.fstat(fd), os.geteuid()
    if user not in {0, status.st_uid}:
        raise _Unfit(f"{path} belongs to uid {status.st_uid}")
    if status.st_mode & stat.S_IWOTH and (status.st_uid != user or status.st_mode & stat.S_ISVTX):
        raise _Unfit(f"{path} is writable by everybody")


def _is_home(path: str) -> bool:
    return path.startswith("/home/") and path.count("/") == 2


def _homes(owner: int) -> Iterator[str]:
    """List the home directories of the daemon's user and of the directory's owner."""
    for uid in (os.geteuid(), owner):
        try:
            yield pwd.getpwuid(uid).pw_dir.rstrip("/")
        except KeyError:
            continue


def _canonical(directories: Sequence[str]) -> Iterator[tuple[str, Identity | None]]:
    for directory in directories:
        try:
            fd = os.open(directory, os.O_PATH)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            yield directory, None  # it cannot be seen (yet): its name is what can be compared
            continue
        try:
            yield paths.name_of(fd), paths.identity(fd)
        finally:
            os.close(fd)
