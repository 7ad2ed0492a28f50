"""Is the program that would run still the one that was pinned?

At load every link on the way is followed by hand, each directory and the file are judged, and the
facts of the file are pinned. Before every run the same walk is done again, and any difference is a
refusal. What runs is the descriptor of that walk, never the name.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from dataclasses import dataclass, field

from launcher.plan import Identity
from sandboxd.refusals import NO_RESOURCES

_MAX_LINKS = 40  # path_resolution(7)
_SHEBANG_BYTES = 256  # execve(2), "Interpreter scripts"


class Unusable(Exception):
    """The file must not be run, however it got here. The text says why."""


class Missing(Unusable):
    """There is no such file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """What told one regular file from all others when it was looked at."""

    path: str
    real_path: str
    dev: int
    ino: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @property
    def identity(self) -> Identity:
        """The facts that the launcher compares."""
        return Identity(dev=self.dev, ino=self.ino, kind=stat.S_IFREG)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned:
    """A program: the file itself and, of a script, its interpreter and what ``#!`` adds."""

    file: Pin
    interpreter: Pin | None = None
    interpreter_argument: str | None = None


@dataclass(slots=True)
class _Walk:
    """Where a resolution stands: descriptors and names from the root down, and what is left."""

    fds: list[int]
    names: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    links: int = 0


def open_pinned(path: str) -> tuple[Pinned, int]:
    """Resolve and judge ``path``; return its facts and an ``O_PATH`` descriptor.

    The descriptor is of the file that execve(2) must be given: of a script, its interpreter.

    Raises:
        Missing: there is no such file.
        Unusable: it may not be run.

    """
    file, fd = _open_one(path)
    line = _closing_on_error(fd, path)
    if line is None:
        return Pinned(file=file), fd
    os.close(fd)
    try:
        interpreter, interpreter_fd = _open_one(line[0])
    except Missing:
        raise Missing(f"cannot run {path}; its interpreter {line[0]} is missing") from None
    if _closing_on_error(interpreter_fd, line[0]) is not None:
        os.close(interpreter_fd)
        raise Unusable(f"cannot run {path}; its interpreter {line[0]} is a script itself")
    pinned = Pinned(file=file, interpreter=interpreter, interpreter_argument=line[1])
    return pinned, interpreter_fd


def _closing_on_error(fd: int, path: str) -> tuple[str, str | None] | None:
    try:
        return _shebang(fd, path)
    except BaseException:
        os.close(fd)
        raise


def content_problem(pin: Pin, sha256: str | None) -> str | None:
    """Say that the file is not the one with this ``sha256``, if so; None asks for none.

    Raises:
        Unusable: it cannot be read, or is another file now.

    """
    if sha256 is None or sha256_of(pin) == sha256:
        return None
    return f"cannot run {pin.path}; the program is not the one pinned by the profile's sha256"


def sha256_of(pin: Pin) -> str:
    """Hash the content of the pinned file, in hexadecimal.

    Raises:
        Unusable: it cannot be read, or is another file now.

    """
    found, fd = _open_one(pin.path)
    try:
        if found != pin:
            raise Unusable(f"cannot read {pin.path}; it changes while it is looked at")
        return _hash(fd, pin.path)
    finally:
        os.close(fd)


def _hash(fd: int, path: str) -> str:
    try:
        with open(f"/proc/self/fd/{fd}", "rb") as readable:
            return hashlib.file_digest(readable, "sha256").hexdigest()
    except OSError as error:
        if error.errno in NO_RESOURCES:
            raise
        raise Unusable(f"cannot read {path}: {os.strerror(error.errno or 0)}") from None


def _open_one(path: str) -> tuple[Pin, int]:
    """Walk to ``path`` and return its facts and an ``O_PATH`` descriptor."""
    if not path.startswith("/") or "\0" in path or len(path) > 4095:
        raise Unusable(f"cannot run {path[:80]!r}; an absolute path is needed")
    walk = _Walk(fds=[os.open("/", os.O_PATH | os.O_DIRECTORY)], left=_components(path))
    try:
        fd = _walk_to_end(walk, path)
    except OSError as error:
        if error.errno in NO_RESOURCES:
            raise
        if error.errno in {errno.ENOENT, errno.ENOTDIR}:
            raise Missing(f"cannot run {path}; there is no such file") from None
        raise Unusable(f"cannot run {path}: {os.strerror(error.errno or 0)}") from None
    finally:
        for each in walk.fds:
            os.close(each)
    try:
        return _pin(fd, path, "/" + "/".join(walk.names)), fd
    except BaseException:
        os.close(fd)
        raise


def _components(path: str) -> list[str]:
    return [part for part in reversed(path.split("/")) if part and part != "."]


def _walk_to_end(walk: _Walk, path: str) -> int:
    """Take one component after the other; every directory passed through is judged."""
    _judge(os.fstat(walk.fds[0]), "/", path)
    while walk.left:
        name = walk.left.pop()
        if name == "..":
            if walk.names:
                os.close(walk.fds.pop())
                walk.names.pop()
            continue
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=walk.fds[-1])
        mode = os.fstat(fd).st_mode
        if stat.S_ISLNK(mode):
            _follow(walk, fd, path)
        elif stat.S_ISDIR(mode):
            walk.fds.append(fd)
            walk.names.append(name)
            _judge(os.fstat(fd), "/" + "/".join(walk.names), path)
        elif walk.left:
            os.close(fd)
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        else:
            walk.names.append(name)
            return fd
    raise Unusable(f"cannot run {path}; it is a directory")


def _follow(walk: _Walk, link_fd: int, path: str) -> None:
    """Put what a symbolic link points to before what is left of the walk."""
    try:
        target = os.readlink("", dir_fd=link_fd)
    finally:
        os.close(link_fd)
    walk.links += 1
    if walk.links > _MAX_LINKS:
        raise Unusable(f"cannot run {path}; more than {_MAX_LINKS} symbolic links are on the way")
    if target.startswith("/"):
        while walk.names:
            os.close(walk.fds.pop())
            walk.names.pop()
    walk.left.extend(_components(target))


def _judge(status: os.stat_result, where: str, path: str) -> None:
    """Refuse what somebody other than root and the daemon's own user could exchange."""
    if status.st_uid not in {0, os.geteuid()}:
        raise Unusable(f"cannot run {path}; {where} belongs to uid {status.st_uid}")
    if status.st_mode & 0o022:
        raise Unusable(
            f"cannot run {path}; {where} is writable by others "
            f"(mode {stat.S_IMODE(status.st_mode):04o})"
        )


def _pin(fd: int, path: str, real_path: str) -> Pin:
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise Unusable(f"cannot run {path}; it is no regular file")
    _judge(status, real_path, path)
    if not status.st_mode & 0o111:
        raise Unusable(f"cannot run {path}; nobody may execute it")
    if status.st_mode & (stat.S_ISUID | stat.S_ISGID):
        raise Unusable(f"cannot run {path}; it is set-user-ID or set-group-ID")
    return Pin(
        path=path,
        real_path=real_path,
        dev=status.st_dev,
        ino=status.st_ino,
        size=status.st_size,
        mtime_ns=status.st_mtime_ns,
        ctime_ns=status.st_ctime_ns,
    )


def _shebang(fd: int, path: str) -> tuple[str, str | None] | None:
    """Return interpreter and argument of a script's first line, None for any other file.

    execve(2): one argument at most, everything behind the interpreter with blanks trimmed. A file
    that may be executed but not read cannot be a script that runs.
    """
    try:
        with open(f"/proc/self/fd/{fd}", "rb", buffering=0) as readable:
            head = readable.read(_SHEBANG_BYTES)
    except PermissionError:
        return None
    except OSError as error:
        if error.errno in NO_RESOURCES:
            raise
        raise Unusable(f"cannot read {path}: {os.strerror(error.errno or 0)}") from None
    if not head.startswith(b"#!"):
        return None
    line, newline, _ = head[2:].partition(b"\n")
    words = line.strip(b" \t").split(None, 1)
    if not newline or not words or b"\0" in line:
        raise Unusable(f"cannot run {path}; its #! line is empty or longer than 255 bytes")
    try:
        texts = [word.decode() for word in words]
    except UnicodeDecodeError:
        raise Unusable(f"cannot run {path}; its #! line is not UTF-8") from None
    return texts[0], texts[1] if len(texts) > 1 else None
