"""Which types can an argument of a command have?

The models of ``[arguments]``, as people write them. `sandboxd.arguments` checks values against
them; `json_schema` tells an agent what it may send.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from sandboxd.patterns import check_pattern

MAX_TEXT = 1 << 17
MAX_INTEGER = 1 << 53  # what every JSON reader keeps exactly


class Section(BaseModel):
    """A table of a profile: nothing is converted, nothing unknown is accepted, nothing changes."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class _Argument(Section):
    """What every type has. Without ``default`` an argument must be given unless told otherwise."""

    description: str = Field(default="", max_length=1000)
    required: bool = True

    @model_validator(mode="after")
    def _optional_means_absent(self) -> Self:
        if not self.required and getattr(self, "default", None) is not None:
            raise ValueError("cannot have required = false and a default; the default is enough")
        return self

    @property
    def may_be_absent(self) -> bool:
        """True if the argument can have no value at all."""
        return not self.required

    def _described(self, schema: dict[str, Any]) -> dict[str, Any]:
        if self.description:
            schema["description"] = self.description
        default = getattr(self, "default", None)
        if default is not None:
            schema["default"] = list(default) if isinstance(default, tuple) else default
        return schema


class String(_Argument):
    """Text. Line feeds and tabs need ``multiline``, other control characters ``control``."""

    type: Literal["string"]
    default: str | None = None
    min_length: int = Field(default=0, ge=0, le=MAX_TEXT)
    max_length: int = Field(default=4096, ge=1, le=MAX_TEXT)
    pattern: Annotated[str, AfterValidator(check_pattern)] | None = None
    choices: tuple[str, ...] | None = Field(default=None, min_length=1)
    multiline: bool = False
    control: bool = False

    def json_schema(self) -> dict[str, Any]:
        """Describe the values that are accepted."""
        schema: dict[str, Any] = {"type": "string", "maxLength": self.max_length}
        if self.min_length:
            schema["minLength"] = self.min_length
        if self.pattern is not None:
            schema["pattern"] = f"^(?:{self.pattern})$"
        if self.choices is not None:
            schema = {"type": "string", "enum": list(self.choices)}
        return self._described(schema)


class Integer(_Argument):
    """A whole number."""

    type: Literal["integer"]
    default: int | None = None
    min: int = Field(default=-MAX_INTEGER, ge=-MAX_INTEGER, le=MAX_INTEGER)
    max: int = Field(default=MAX_INTEGER, ge=-MAX_INTEGER, le=MAX_INTEGER)

    def json_schema(self) -> dict[str, Any]:
        """Describe the values that are accepted."""
        return self._described({"type": "integer", "minimum": self.min, "maximum": self.max})


class Number(_Argument):
    """A number, with or without a fraction."""

    type: Literal["number"]
    default: float | None = None
    min: float = -float(MAX_INTEGER)
    max: float = float(MAX_INTEGER)

    def json_schema(self) -> dict[str, Any]:
        """Describe the values that are accepted."""
        return self._described({"type": "number", "minimum": self.min, "maximum": self.max})


class Boolean(_Argument):
    """A switch: it decides over parts of the template and is never text itself."""

    type: Literal["boolean"]
    default: bool | None = None

    def json_schema(self) -> dict[str, Any]:
        """Describe the values that are accepted."""
        return self._described({"type": "boolean"})


class Path(_Argument):
    """A path relative to the workspace; one that need not exist needs its directory."""

    type: Literal["path"]
    default: str | None = None
    access: Literal["read", "write"] = "read"
    kind: Literal["file", "directory", "any"] = "any"
    must_exist: bool = True

    def json_schema(self) -> dict[str, Any]:
        """Describe the values that are accepted."""
        schema = {"type": "string", "minLength": 1, "maxLength": 4095}
        what = {"any": "path", "file": "file", "directory": "directory"}[self.kind]
        described = self._described(dict(schema))
        described.setdefault("description", f"A {what} relative to the workspace, without '..'")
        return described


Item = Annotated[String | Integer | Number | Path, Field(discriminator="type")]


class List(_Argument):
    """Several values of one type."""

    type: Literal["list"]
    items: Item
    default: tuple[str | int | float, ...] | None = None
    min_items: int = Field(default=0, ge=0, le=4096)
    max_items: int = Field(default=64, ge=1, le=4096)

    @model_validator(mode="after")
    def _items_are_plain(self) -> Self:
        if self.items.default is not None or not self.items.required:
            raise ValueError("cannot have default or required inside items; say it of the list")
        return self

    def json_schema(self) -> dict[str, Any]:
        """Describe the values that are accepted."""
        schema = {"type": "array", "items": self.items.json_schema(), "maxItems": self.max_items}
        if self.min_items:
            schema["minItems"] = self.min_items
        return self._described(schema)


Argument = Annotated[
    String | Integer | Number | Boolean | Path | List, Field(discriminator="type")
]
