"""Which parts of the host does every sandbox see?

The system's programs and libraries and the few files of /etc that they read; nothing of users,
nothing of /var or /run, no configuration that holds secrets. Each part is opened once and kept;
a part that was exchanged since (a package upgrade) is opened again.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from launcher import paths
from launcher.plan import Identity, Root, Symlink
from sandboxd.errors import SetupFailed

# Links into /usr on most systems, directories of their own on others (hier(7)).
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC = (
    *("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives"),
    *("ssl/certs", "ssl/openssl.cnf", "ca-certificates", "pki", "crypto-policies"),
    *("localtime", "timezone", "mime.types", "services", "protocols", "fonts"),
)
_ETC_PATTERN = re.compile(r"java-[0-9]+-[a-z0-9]+")  # a JVM does not start without its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """Something of the host that a view shows at ``target``; ``fd`` is ``O_PATH``."""

    fd: int
    identity: Identity
    target: str
    writable: bool = False
    owned: bool = False


@dataclass(slots=True, kw_only=True)
class _Part:
    """``host_path`` is canonical; ``target`` may be the name of a link to it."""

    host_path: str
    shown: Shown


class BaseView:
    """The parts, opened. ``close`` when no view will be built any more."""

    def __init__(self) -> None:
        self._root_fd = os.open("/", os.O_PATH | os.O_DIRECTORY)
        self._parts: list[_Part] = []
        self.links: tuple[Symlink, ...] = ()
        for path in _SYSTEM:
            self._add_system(path)
        for name in (*_ETC, *sorted(filter(_ETC_PATTERN.fullmatch, os.listdir("/etc")))):
            self._add(f"/etc/{name}")

    @property
    def root_fd(self) -> int:
        """``O_PATH`` on the host's root directory."""
        return self._root_fd

    def close(self) -> None:
        """Close all descriptors."""
        for part in self._parts:
            os.close(part.shown.fd)
        self._parts.clear()
        os.close(self._root_fd)

    def roots(self) -> tuple[Root, ...]:
        """Return what a launcher's ceiling must allow for this view, all of it read-only."""
        return tuple(Root(path=part.host_path, writable=False) for part in self._parts)

    def shown(self) -> tuple[Shown, ...]:
        """Return the parts as they are now; the descriptors stay this object's.

        Raises:
            SetupFailed: a part that was there has gone.

        """
        for part in self._parts:
            self._refresh(part)
        return tuple(part.shown for part in self._parts)

    def _add_system(self, path: str) -> None:
        """Keep a link into /usr a link; show anything else as what it is."""
        try:
            to = os.readlink(path)
        except FileNotFoundError:
            return
        except OSError:  # EINVAL: no link
            self._add(path)
            return
        if os.path.normpath(os.path.join("/", to)).startswith("/usr/"):
            self.links += (Symlink(target=path, to=to),)
        else:
            self._add(path)

    def _add(self, target: str) -> None:
        """Show what stands at ``target``, wherever links of the system's own lead."""
        try:
            fd = os.open(target, os.O_PATH)
        except FileNotFoundError:
            return
        shown = Shown(fd=fd, identity=paths.identity(fd), target=target)
        self._parts.append(_Part(host_path=paths.name_of(fd), shown=shown))

    def _refresh(self, part: _Part) -> None:
        old = part.shown
        try:
            status = os.stat(part.host_path, follow_symlinks=False)
            if (status.st_dev, status.st_ino) == (old.identity.dev, old.identity.ino):
                return
            fd = paths.open_path(self._root_fd, part.host_path)
        except OSError as error:
            raise SetupFailed(
                f"cannot show {part.host_path}: {error.strerror}",
                layer="view",
                step="open the base view",
                errno=error.errno or 0,
            ) from None
        part.shown = Shown(fd=fd, identity=paths.identity(fd), target=old.target)
        os.close(old.fd)
