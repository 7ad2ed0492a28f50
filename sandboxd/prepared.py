"""What is a request once every string in it has become a descriptor or a checked value?

`sandboxd.admission` makes a `Prepared`, the gate decides on it, `sandboxd.planner` turns it into a
plan. It owns its descriptors: whoever holds it last calls `close`.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import Literal

from launcher.plan import Identity
from sandboxd.profile import Profile
from sandboxd.protocol import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedExecutable:
    """The pinned program: ``path`` as the profile names it, ``real_path`` without links.

    ``fd`` is ``O_PATH`` on the real file. For a script the program is its interpreter and
    ``script_path``, ``script_identity`` and ``interpreter_argument`` (the rest of the ``#!`` line,
    or None) are set. ``sha256`` is empty unless the profile pins one, and then it was compared.
    """

    fd: int
    path: str
    real_path: str
    identity: Identity
    sha256: str = ""
    script_path: str | None = None
    script_real_path: str | None = None
    script_identity: Identity | None = None
    interpreter_argument: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """The directory the client granted: ``fd`` is ``O_PATH``, ``path`` its canonical name."""

    fd: int
    path: str
    identity: Identity
    access: Literal["read", "write"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedTarget:
    """One path argument: the text given, and an ``O_PATH`` descriptor of what it named.

    For a path that may be created, ``fd`` is its parent directory.
    """

    argument: str
    text: str
    fd: int
    identity: Identity
    access: Literal["read", "write"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The limits in force for one run: the profile's, tightened by the request.

    ``output_total_bytes`` ends the run when a stream passes it (None: only what is kept is
    bounded); ``cpu_ms`` is summed over all processes.
    """

    wall_ms: int
    grace_ms: int
    cpu_ms: int
    memory_bytes: int
    pids: int
    files: int
    file_size_bytes: int
    output_bytes: int
    output_keep: Literal["head+tail", "head", "tail"]
    output_total_bytes: int | None
    concurrency: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A request that is right in itself. Whether it may run is not decided here.

    ``digest`` is the request digest: SHA-256, in hexadecimal, over the canonical JSON of
    executable, argv, sorted environment, workspace identity and access, profile digest, bounds.
    ``environment`` holds ``NAME=value`` without the variables the view itself sets.
    """

    profile: Profile
    request: Request
    argv: tuple[str, ...]
    environment: tuple[str, ...]
    executable: OpenedExecutable
    workspace: Workspace | None
    targets: tuple[OpenedTarget, ...]
    bounds: Bounds
    digest: str

    def close(self) -> None:
        """Close every descriptor held. Calling it twice is harmless only for an empty request."""
        fds = [self.executable.fd, *(target.fd for target in self.targets)]
        if self.workspace is not None:
            fds.append(self.workspace.fd)
        for fd in fds:
            with contextlib.suppress(OSError):
                os.close(fd)
