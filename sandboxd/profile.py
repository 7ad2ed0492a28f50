"""What may one command do?

`ProfileFile` is what one TOML file says; a `Profile` is what is in force: inherited parts merged,
the program pinned, everything checked (`sandboxd.profiles` makes it).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pydantic import Field

from sandboxd import units
from sandboxd.errors import UsageError
from sandboxd.executables import Pinned
from sandboxd.profile_arguments import Argument, Section
from sandboxd.profile_sections import (
    MEMORY_LEAST,
    OUTPUT_LEAST,
    WALL_LEAST,
    ApprovalSection,
    ArgvSection,
    EnvironmentSection,
    Example,
    ExecutableSection,
    LimitsSection,
    Name,
    NetworkSection,
    RequireSection,
    SeccompSection,
    ViewSection,
    WorkspaceSection,
)
from sandboxd.protocol import Tightening

if TYPE_CHECKING:
    from sandboxd.prepared import Bounds


class _Narrowed(NamedTuple):
    """A limit that a request may narrow, down to ``least``, and how people write it."""

    limit: str
    least: int
    show: Callable[[int], str]


_NARROWED = {  # by Tightening's field
    "wall_ms": _Narrowed("wall_ms", units.parse_duration(WALL_LEAST), units.show_duration),
    "memory": _Narrowed("memory_bytes", units.parse_size(MEMORY_LEAST), units.show_size),
    "pids": _Narrowed("pids", 1, str),
    "output": _Narrowed("output_bytes", units.parse_size(OUTPUT_LEAST), units.show_size),
}


class ProfileFile(Section):
    """One file as written. Without ``[executable]`` it can only be extended."""

    name: Name
    summary: str = Field(default="", max_length=500)
    extends: Name | None = None
    risk: Literal["low", "medium", "high"] = "medium"
    executable: ExecutableSection | None = None
    arguments: dict[str, Argument] = Field(default_factory=dict)
    argv: ArgvSection | None = None
    workspace: WorkspaceSection = WorkspaceSection()
    view: ViewSection = ViewSection()
    environment: EnvironmentSection = EnvironmentSection()
    network: NetworkSection = NetworkSection()
    limits: LimitsSection = LimitsSection()
    approval: ApprovalSection = ApprovalSection()
    seccomp: SeccompSection = SeccompSection()
    require: RequireSection = RequireSection()
    example: tuple[Example, ...] = ()


class Profile(ProfileFile):
    """A command of the allowlist, complete.

    ``digest`` is SHA-256, in hexadecimal, over the canonical JSON of what is in force; ``source``
    is the file. With an ``executable_problem`` the command cannot run: the program is missing
    (``pinned`` is None), or is not the one of the profile's sha256.
    """

    executable: ExecutableSection
    argv: ArgvSection
    source: str
    digest: str
    pinned: Pinned | None = None
    executable_problem: str | None = None

    def parameters(self) -> dict[str, Any]:
        """Return the JSON Schema of the arguments that an agent may send."""
        passthrough = self.argv.passthrough
        if passthrough is not None:
            items = {
                "type": "string",
                "pattern": "|".join(f"^(?:{p})$" for p in passthrough.allow),
            }
            args = {"type": "array", "items": items, "maxItems": passthrough.max_items}
            return _object({"args": args}, [])
        required = [
            name
            for name, argument in self.arguments.items()
            if argument.default is None and argument.required
        ]
        schemas = {name: argument.json_schema() for name, argument in self.arguments.items()}
        return _object(schemas, required)

    def excesses(self, tightening: Tightening) -> dict[str, str]:
        """Say, by field of ``tightening``, which values do not narrow this profile, and why."""
        problems = {}
        for name, (limit, least, show) in _NARROWED.items():
            value, most = getattr(tightening, name), getattr(self.limits, limit)
            if value is not None and not least <= value <= most:
                problems[name] = f"{show(value)} is not from {show(least)} to {show(most)}"
        return problems

    def bounds(self, tightening: Tightening) -> Bounds:
        """Return the limits of one run.

        Raises:
            UsageError: the request asks for more than the profile has, or for nothing at all.

        """
        from sandboxd.prepared import Bounds

        for name, problem in self.excesses(tightening).items():
            raise UsageError(f"cannot narrow limits.{name}; {problem}", field=f"limits.{name}")
        values = {field.name: getattr(self.limits, field.name) for field in fields(Bounds)}
        for name, narrowed in _NARROWED.items():
            value = getattr(tightening, name)
            if value is not None:
                values[narrowed.limit] = value
        return Bounds(**values)


def _object(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
