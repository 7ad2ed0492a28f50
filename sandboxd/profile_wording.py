"""How is what pydantic finds wrong said to the owner of a profile?

In the words of a profile: its keys, its types, and what would be right in the same table.
"""

from __future__ import annotations

import difflib
from typing import get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from sandboxd.profile import ProfileFile
from sandboxd.profile_arguments import Argument
from sandboxd.profile_sections import Conditional, Example, Passthrough
from sandboxd.profile_source import Place

Location = tuple[int | str, ...]


def place_of(details: ErrorDetails) -> Place:
    """Return the place in the file, without what a validator adds to it."""
    place = tuple(part for part in details["loc"] if part not in {"text", "conditional"})
    return (*place, "type") if details["type"].startswith("union_tag_") else place


def wording(details: ErrorDetails) -> str:
    """Say what is wrong, and what would be right."""
    match details["type"]:
        case "extra_forbidden":
            return _unknown(details["loc"])
        case "missing":
            return "cannot leave this key out"
        case "union_tag_not_found":
            types = _types(details["loc"])
            return f"cannot use an argument without type; the types are {types}"
        case "union_tag_invalid":
            tag = details["ctx"]["tag"]
            types = _types(details["loc"])
            return f"cannot use this argument; {tag[:40]!r} is no type; the types are {types}"
    message = details["msg"].removeprefix("Value error, ")
    if message.startswith(("cannot", "DANGEROUS_GRANT")):
        return message
    return f"cannot use this value; {message[:1].lower()}{message[1:]}"


def _unknown(loc: Location) -> str:
    keys = keys_of(_model(loc[:-1]))
    key = str(loc[-1])
    near = difflib.get_close_matches(key, keys, n=1)
    hint = f"{near[0]!r} is" if near else f"those of this table are {', '.join(keys)}"
    return f"cannot use key {key!r}; there is none, {hint}"


def keys_of(model: type[BaseModel]) -> list[str]:
    """List the keys of a table as people write them."""
    return [info.alias or name for name, info in model.model_fields.items()]


def _model(table: Location) -> type[BaseModel]:
    """Return what a table is read as: its last name, or a validator's tag, tells."""
    name = next((part for part in reversed(table) if isinstance(part, str)), None)
    return ProfileFile if name is None else _MODELS[name]


def _types(loc: Location) -> str:
    items = len(loc) > 2  # arguments.NAME.list.items
    return ", ".join(tag for tag in _ARGUMENTS if not items or tag not in {"boolean", "list"})


def _models(annotation: object) -> list[type[BaseModel]]:
    """List the models that an annotation is made of."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models(part)]


_ARGUMENTS: dict[str, type[BaseModel]] = {
    get_args(model.model_fields["type"].annotation)[0]: model for model in _models(Argument)
}
_MODELS: dict[str, type[BaseModel]] = _ARGUMENTS | {
    "conditional": Conditional,
    "passthrough": Passthrough,
    "example": Example,
    **{
        name: models[0]
        for name, info in ProfileFile.model_fields.items()
        if name not in {"arguments", "example"} and (models := _models(info.annotation))
    },
}
