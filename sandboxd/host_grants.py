"""Which paths of the host may a profile grant at all?

Some grants are the host itself in another form: the root directory, the kernel's own file systems,
the socket of a container runtime. A profile that names one is wrong (DANGEROUS_GRANT), whoever
wrote it. Paths are judged as text and, at load, by what stands there.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterable

from launcher.paths import is_beneath, open_path

_NEVER = (
    "/proc",
    "/sys",
    "/dev",
    "/run",
    "/var/run",
    "/var/lib/docker",
    "/var/lib/containerd",
    "/var/lib/containers",
    "/var/lib/kubelet",
)
_READ_ONLY = ("/bin", "/boot", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/sbin", "/usr")
_TOO_BROAD_TO_WRITE = (
    *("/home", "/opt", "/root", "/srv", "/var", "/var/lib"),
    *("/tmp", "/var/tmp"),  # noqa: S108  # names that are refused
)
_SOCKETS = ("docker.sock", "podman.sock", "containerd.sock", "crio.sock", "agent.sock", "bus")
_DEVICES_NEVER = re.compile(
    r"(mem|kmem|port|kmsg|console|ptmx|pts|shm|mqueue|fd|uinput|mapper|disk|block|input|snapshot)"
    r"(/.*)?|(vcs|std|rtc|watchdog|cpu|hidraw|vfio).*|tty[0-9]*|(s|h|v|xv)d[a-z].*"
    r"|(nvme|mmcblk|dm-|md|loop|nbd|zd|zram|sr|sg|fd|ram|bsg/)[0-9].*"
)


def check_read(path: str) -> str:
    """Return ``path`` if a profile may show it.

    Raises:
        ValueError: it is no plain absolute path, or a dangerous grant.

    """
    _check_plain(path)
    name = path.rpartition("/")[2]
    if path == "/" or name in _SOCKETS or any(is_beneath(path, each) for each in _NEVER):
        raise ValueError(f"DANGEROUS_GRANT: cannot grant {path}; it reaches the host itself")
    return path


def check_write(path: str) -> str:
    """Return ``path`` if a profile may let a command write there."""
    check_read(path)
    if path in _TOO_BROAD_TO_WRITE or any(is_beneath(path, each) for each in _READ_ONLY):
        raise ValueError(
            f"DANGEROUS_GRANT: cannot grant writing to {path}; name a directory of its own"
        )
    return path


def check_device(path: str) -> str:
    """Return ``path`` if a profile may show this device."""
    _check_plain(path)
    name = path.removeprefix("/dev/")
    if name == path or _DEVICES_NEVER.fullmatch(name):
        raise ValueError(f"DANGEROUS_GRANT: cannot grant device {path}")
    return path


def _check_plain(path: str) -> None:
    parts = path.split("/")
    plain = path == "/" or (parts[0] == "" and len(parts) > 1 and all(parts[1:]))
    if not plain or {".", ".."} & set(parts) or not path.isprintable() or len(path) > 4095:
        raise ValueError(
            f"cannot use {path[:80]!r}; an absolute path without '.', '..', '//' or '/' at the "
            "end is needed"
        )


def problem_on_host(path: str, own: Iterable[str]) -> str | None:
    """Say what is wrong with granting what stands at ``path`` now; ``own`` are the daemon's.

    A path that does not exist is no problem here: it is one when a run needs it.
    """
    for directory in own:
        if is_beneath(path, directory) or is_beneath(directory, path):
            return f"DANGEROUS_GRANT: cannot grant {path}; {directory} is the daemon's own"
    root_fd = os.open("/", os.O_PATH | os.O_DIRECTORY)
    try:
        fd = open_path(root_fd, path)
    except OSError as error:
        link = error.errno == errno.ELOOP
        return f"cannot grant {path}; name what the symbolic link means" if link else None
    finally:
        os.close(root_fd)
    try:
        socket = stat.S_ISSOCK(os.fstat(fd).st_mode)
    finally:
        os.close(fd)
    return f"DANGEROUS_GRANT: cannot grant {path}; it is a socket of the host" if socket else None
