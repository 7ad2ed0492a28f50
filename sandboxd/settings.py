"""How is this daemon set up, where its owner says something, and what is the default?

One TOML file, strict: an unknown key or a value out of range is an error, so that a misspelt limit
never means "no limit". The file must be its owner's alone.
"""

from __future__ import annotations

import os
import stat
import tomllib
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from launcher.paths import name_of
from launcher.plan import Ceiling, Root
from sandboxd.endpoints import Endpoints, shipped_profiles
from sandboxd.errors import ProfileError

_MAX_FILE_BYTES = 1 << 20
_GIB = 1 << 30
_HOUR_MS = 3600 * 1000

Seconds = Annotated[float, Field(gt=0, le=86_400)]
Count = Annotated[int, Field(ge=1, le=100_000)]
AbsolutePath = Annotated[str, Field(pattern=r"^/[^\x00]*$", max_length=4096)]

_DENIED = (
    "/boot",
    "/dev",
    "/etc/gshadow",
    "/etc/gshadow-",
    "/etc/shadow",
    "/etc/shadow-",
    "/etc/ssh",
    "/etc/sudoers",
    "/etc/sudoers.d",
    "/proc",
    "/run",
    "/sys",
)
_DENIED_IN_HOME = (".gnupg", ".ssh")


class _Section(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class ConnectionSettings(_Section):
    """Bounds of what clients can hold; times in seconds."""

    total: Count = 256
    per_uid: Count = 128
    idle_s: Seconds = 600.0
    frame_s: Seconds = 10.0
    stall_s: Seconds = 60.0


class ProposalSettings(_Section):
    """How many proposals a uid may have waiting and open, and how many are remembered."""

    pending_per_uid: Count = 64
    open_per_uid: Count = 256
    kept_per_uid: Count = 1000


class RunSettings(_Section):
    """How many runs there may be at once and waiting, and how many are remembered."""

    max_running: Count = 16
    max_queued: Count = 256
    queued_per_uid: Count = 32
    kept: Count = 2000


class CeilingSettings(_Section):
    """What no profile may exceed, as in `launcher.plan.Ceiling`; ``denied`` adds to its own."""

    roots: tuple[AbsolutePath, ...] = Field(default=("/",), strict=False)
    read_only_roots: tuple[AbsolutePath, ...] = Field(default=(), strict=False)
    denied: tuple[AbsolutePath, ...] = Field(default=(), strict=False)
    devices: tuple[AbsolutePath, ...] = Field(default=(), strict=False)
    memory_bytes: int = Field(default=64 * _GIB, ge=1 << 20)
    pids: int = Field(default=4096, ge=1, le=1 << 22)
    life_ms: int = Field(default=24 * _HOUR_MS, ge=1000, le=30 * 24 * _HOUR_MS)
    tmpfs_bytes: int = Field(default=4 * _GIB, ge=1 << 16)
    sandboxes: int = Field(default=64, ge=1, le=100_000)


class Settings(_Section):
    """The whole file. ``idle_exit_s``: end when not needed for so long; 0 is never."""

    connections: ConnectionSettings = ConnectionSettings()
    proposals: ProposalSettings = ProposalSettings()
    runs: RunSettings = RunSettings()
    limits: CeilingSettings = CeilingSettings()
    idle_exit_s: float = Field(default=0.0, ge=0, le=86_400)
    grace_s: Seconds = 10.0

    @property
    def max_running(self) -> int:
        """How many runs there may be at once."""
        return self.runs.max_running

    def ceiling(self, endpoints: Endpoints) -> Ceiling:
        """Return what the launcher lets no plan exceed; the daemon's directories exist by now."""
        limits = self.limits
        physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        roots = [Root(path=path, writable=True) for path in limits.roots]
        roots += [Root(path=path, writable=False) for path in limits.read_only_roots]
        return Ceiling(
            roots=tuple(roots),
            denied=tuple(sorted({*_DENIED, *limits.denied, *own_paths(endpoints)})),
            devices=limits.devices,
            memory_bytes=min(limits.memory_bytes, physical),
            pids=limits.pids,
            life_ms=limits.life_ms,
            tmpfs_bytes=limits.tmpfs_bytes,
            sandboxes=max(limits.sandboxes, self.max_running),
        )


def own_paths(endpoints: Endpoints) -> tuple[str, ...]:
    """Return the canonical paths no sandbox may see: the daemon's own, and keys in its home.

    The shipped profiles are not among them: they may lie below /usr, which every view shows.
    """
    home = os.environ.get("HOME", "")
    paths = [endpoints.runtime_dir, endpoints.state_dir]
    paths += [path for path in endpoints.profile_dirs if path != shipped_profiles()]
    if home.startswith("/"):
        paths += [os.path.join(home, name) for name in _DENIED_IN_HOME]
    return tuple(sorted({_canonical(path) for path in paths}))


def load(path: str | None) -> Settings:
    """Read the settings from ``path``, or the first of the usual places that has a file.

    Raises:
        ProfileError: the file is not its owner's alone, or wrong; the text names the key.

    """
    for candidate in (path,) if path is not None else _usual_places():
        try:
            text = _read_own(candidate)
        except FileNotFoundError:
            if path is None:
                continue
            raise ProfileError(f"cannot find settings {candidate}") from None
        return _parse(candidate, text)
    return Settings()


def _usual_places() -> tuple[str, ...]:
    config = os.environ.get("XDG_CONFIG_HOME") or f"{os.environ.get('HOME', '')}/.config"
    own = (os.path.join(config, "sandboxd", "sandboxd.toml"),) if os.geteuid() else ()
    return (*own, "/etc/sandboxd/sandboxd.toml")


def _read_own(path: str) -> str:
    """Read a file that only root or this uid can have written."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ProfileError(f"cannot read settings {path}: {error.strerror}") from error
    with open(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            raise ProfileError(f"cannot use settings {path}: not a regular file with one name")
        if status.st_uid not in {0, os.geteuid()} or status.st_mode & 0o022:
            raise ProfileError(f"cannot use settings {path}: others than its owner may write it")
        data = file.read(_MAX_FILE_BYTES + 1)
    if len(data) > _MAX_FILE_BYTES:
        raise ProfileError(f"cannot use settings {path}: longer than {_MAX_FILE_BYTES} bytes")
    return data.decode(errors="replace")


def _parse(path: str, text: str) -> Settings:
    try:
        return Settings.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ProfileError(f"cannot read settings {path}: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ProfileError(f"cannot use settings {path}: {where}: {first['msg']}") from None


def _canonical(path: str) -> str:
    """Return the path under which the kernel knows ``path``, or itself if there is none yet."""
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return os.path.abspath(path)
    try:
        return name_of(fd)
    finally:
        os.close(fd)
