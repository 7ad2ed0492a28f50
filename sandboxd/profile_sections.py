"""What do the tables of a profile say, besides ``[arguments]``?

The models of one TOML file's sections, as people write them: pydantic, strict, nothing unknown. A
key that a later version will have is refused by name, never accepted and ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple, NoReturn

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag

from sandboxd import units
from sandboxd.host_grants import check_device, check_read, check_write
from sandboxd.patterns import check_pattern
from sandboxd.profile_arguments import Section
from sandboxd.protocol import ReasonCode

MEMORY_LEAST = "16MiB"  # init, which is charged to the same cgroup, needs some of it
WALL_LEAST = "1ms"
OUTPUT_LEAST = "1B"
_DIGITS = re.compile(r"[0-9]{1,12}", re.ASCII)
_NAME = r"^[a-z0-9][a-z0-9._-]{0,63}$"


def _unsupported(value: object) -> NoReturn:
    del value
    raise ValueError("cannot use this key; it is not supported by this version")


def _not_yet(*words: str) -> BeforeValidator:
    def check(value: object) -> object:
        if value in words:
            raise ValueError(f'cannot use "{value}"; it is not supported by this version')
        return value

    return BeforeValidator(check)


def _only(key: str, only: object) -> BeforeValidator:
    """Accept the value that is in force, so that a file may say it, and no other."""
    shown = f'"{only}"' if isinstance(only, str) else str(only)

    def check(value: object) -> object:
        if type(value) is not type(only) or value != only:
            raise ValueError(
                f"cannot use another {key} than {shown}; others are not supported by this version"
            )
        return value

    return BeforeValidator(check)


class _Kind(NamedTuple):
    """A kind of quantity: how it is read and shown, and what a bare number may have meant."""

    name: str
    parse: Callable[[str], int]
    show: Callable[[int], str]
    guess: Callable[[int, int, int], str | None]
    example: str


_SIZE = _Kind("size", units.parse_size, units.show_size, units.guess_size, "64MiB")
_DURATION = _Kind(
    "duration", units.parse_duration, units.show_duration, units.guess_duration, "30s"
)


def _quantity(kind: _Kind, least: str, most: str) -> BeforeValidator:
    lowest, highest = kind.parse(least), kind.parse(most)

    def read(value: object) -> int:
        bare = _bare(value)
        if bare is not None or not isinstance(value, str):
            guess = None if bare is None else kind.guess(bare, lowest, highest)
            raise ValueError(
                f'cannot read {kind.name} {value!r}; write it like "{guess or kind.example}"'
            )
        number = kind.parse(value)
        if not lowest <= number <= highest:
            raise ValueError(f"cannot use {kind.show(number)}; from {least} to {most} may be")
        return number

    return BeforeValidator(read)


def _bare(value: object) -> int | None:
    """Return what is a whole number and nothing else, with or without quotes."""
    if isinstance(value, str) and _DIGITS.fullmatch(value):
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _size(least: str, most: str) -> BeforeValidator:
    return _quantity(_SIZE, least, most)


def _duration(least: str, most: str) -> BeforeValidator:
    return _quantity(_DURATION, least, most)


Name = Annotated[str, Field(pattern=_NAME)]
Unsupported = Annotated[None, BeforeValidator(_unsupported)]
ReadGrant = Annotated[str, AfterValidator(check_read)]
WriteGrant = Annotated[str, AfterValidator(check_write)]
DeviceGrant = Annotated[str, AfterValidator(check_device)]
Pattern = Annotated[str, AfterValidator(check_pattern)]


class ExecutableSection(Section):
    """Which program runs. ``interpreter`` must be said of one whose arguments are a program."""

    path: str = Field(min_length=2, max_length=4095)
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    interpreter: bool = False


class Conditional(Section):
    """``then`` stands in argv when ``when`` holds.

    A boolean holds when true, any other argument when it has a value (a list: at least one item);
    with ``is`` it holds when the value is one of those.
    """

    when: str
    then: tuple[str, ...] = Field(min_length=1)
    is_: tuple[str, ...] | None = Field(default=None, alias="is", min_length=1)


def _element(value: object) -> str:
    return "text" if isinstance(value, str) else "conditional"


Element = Annotated[
    Annotated[str, Tag("text")] | Annotated[Conditional, Tag("conditional")],
    Discriminator(_element),
]


class Passthrough(Section):
    """A command line of the client's own, sent as the argument ``args``.

    Each element matches one pattern of ``allow`` as a whole. With ``paths`` those that do not
    start with "-" are paths relative to the workspace.
    """

    allow: tuple[Pattern, ...] = Field(min_length=1)
    max_items: int = Field(default=64, ge=1, le=4096)
    paths: bool = False


class ArgvSection(Section):
    """How arguments become argv: by ``template``, or as they are by ``passthrough``."""

    template: tuple[Element, ...] | None = None
    passthrough: Passthrough | None = None


class WorkspaceSection(Section):
    """What the command may do in the directory that the client grants.

    With ``required = false`` it also runs without one, as long as no argument is a path.
    """

    access: Annotated[Literal["none", "read", "write"], _not_yet("overlay")] = "none"
    required: bool = True
    protect: Unsupported = Field(default=None, exclude=True)


class ViewSection(Section):
    """What of the host is seen beyond the base view."""

    read: tuple[ReadGrant, ...] = ()
    write: tuple[WriteGrant, ...] = ()
    devices: tuple[DeviceGrant, ...] = ()
    tmp_size_bytes: Annotated[int, _size("64KiB", "16GiB")] = Field(
        default=64 << 20, alias="tmp_size"
    )


class EnvironmentSection(Section):
    """Variables the profile sets, and names of those that a client may set."""

    set: dict[str, str] = Field(default_factory=dict)
    pass_: tuple[str, ...] = Field(default=(), alias="pass")
    secrets: Unsupported = Field(default=None, exclude=True)


class NetworkSection(Section):
    """Which network there is: none at all, or a loopback of the sandbox's own."""

    mode: Annotated[Literal["none", "loopback"], _not_yet("allowlist")] = "none"
    allow: Unsupported = Field(default=None, exclude=True)


class LimitsSection(Section):
    """Bounds of one run, and how many runs there may be at once.

    ``output`` bounds what is kept of each stream; ``output_total`` ends the run when a stream
    passes it. ``grace`` is the time between the first signal and SIGKILL.
    """

    wall_ms: Annotated[int, _duration(WALL_LEAST, "24h")] = Field(default=30_000, alias="wall")
    grace_ms: Annotated[int, _duration("0ms", "1m")] = Field(default=2000, alias="grace")
    cpu_ms: Annotated[int, _duration("1ms", "24h")] = Field(default=20_000, alias="cpu")
    memory_bytes: Annotated[int, _size(MEMORY_LEAST, "1TiB")] = Field(
        default=512 << 20, alias="memory"
    )
    pids: int = Field(default=64, ge=1, le=32768)
    files: int = Field(default=256, ge=8, le=1 << 20)
    file_size_bytes: Annotated[int, _size("0B", "1TiB")] = Field(
        default=256 << 20, alias="file_size"
    )
    output_bytes: Annotated[int, _size(OUTPUT_LEAST, "16MiB")] = Field(
        default=64 << 10, alias="output"
    )
    output_keep: Literal["head+tail", "head", "tail"] = "head+tail"
    output_total_bytes: Annotated[int, _size("1B", "1TiB")] | None = Field(
        default=None, alias="output_total"
    )
    concurrency: int = Field(default=8, ge=1, le=1024)


class ApprovalSection(Section):
    """Who must agree before a run. Where nothing is said, a human is asked each time.

    What an approver allows is one run of exactly the request that was shown. ``approver``,
    ``scope``, ``uses`` and ``refusal_lasts`` can be written, but only as they are by default: this
    version has no wider grants, and it does not remember refusals.
    """

    mode: Literal["deny", "ask", "allow_safe", "allow"] = "ask"
    approver: Annotated[Literal["human"], _only("approver", "human")] = "human"
    scope: Annotated[Literal["exact"], _only("scope", "exact")] = "exact"
    expires_ms: Annotated[int, _duration("1s", "24h")] = Field(default=900_000, alias="expires")
    uses: Annotated[Literal[1], _only("uses", 1)] = 1
    refusal_lasts: Annotated[Literal["5m"], _only("refusal_lasts", "5m")] = "5m"


class SeccompSection(Section):
    """Which filter of system calls holds; each relaxation has a name and a cost."""

    base: Literal["default", "strict"] = "default"
    relax: tuple[Literal["debug", "numa"], ...] = ()


class RequireSection(Section):
    """Layers without which the command does not run."""

    layers: tuple[Literal["landlock", "seccomp", "cgroup"], ...] = ("landlock", "seccomp")


class Example(Section):
    """A request and what must become of it: ``argv`` behind the program's name, or ``rejected``.

    Decided at load without a workspace: paths are judged as texts.
    """

    arguments: dict[str, Any] = Field(default_factory=dict)
    argv: tuple[str, ...] | None = None
    rejected: ReasonCode | None = None
