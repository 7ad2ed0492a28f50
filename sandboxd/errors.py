"""Which faults are there, and what may a caller do about each?

A *fault* is an exception: the request could not be judged or carried out. What a judged request
came to (denied, timed out, exit status 3) is a value, see `sandboxd.protocol.Run`.

    SandboxdError
    ├── UsageError      the request itself is wrong: mend it          exit status 64
    ├── ProfileError    a profile cannot be used: tell its owner      125
    ├── Unavailable     not now: try again later                      125
    ├── SetupFailed     a protection could not be put in force        125
    ├── Forbidden       not yours                                     125
    ├── NotFound        no such proposal, run or session              125
    ├── Conflict        it is in another state than you think         125
    └── AuditFailed     the record could not be kept, so nothing ran  125
"""

from __future__ import annotations

from typing import ClassVar


class SandboxdError(Exception):
    """Something is wrong that is not an outcome of a command. ``field`` names where, if known."""

    exit_status: ClassVar[int] = 125
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field


class UsageError(SandboxdError):
    """The request does not have the form that its method takes."""

    exit_status = 64


class ProfileError(SandboxdError):
    """A profile cannot be used. The text names file and line where they are known."""


class Unavailable(SandboxdError):
    """The daemon cannot do this now (busy, shutting down, not reachable)."""

    retryable = True


class SetupFailed(SandboxdError):
    """A step of building the sandbox failed, so the command never started."""

    def __init__(self, message: str, *, layer: str, step: str, errno: int) -> None:
        super().__init__(message)
        self.layer = layer
        self.step = step
        self.errno = errno


class Forbidden(SandboxdError):
    """The caller may not do this."""


class NotFound(SandboxdError):
    """There is no such thing, or it is not the caller's."""


class Conflict(SandboxdError):
    """The thing is in another state than the request takes for granted."""


class AuditFailed(SandboxdError):
    """The record of a decision could not be written, so nothing was done."""


FAULTS: dict[str, type[SandboxdError]] = {
    cls.__name__: cls
    for cls in (
        UsageError,
        ProfileError,
        Unavailable,
        SetupFailed,
        Forbidden,
        NotFound,
        Conflict,
        AuditFailed,
    )
}
