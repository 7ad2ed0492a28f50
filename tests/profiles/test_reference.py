"""profiles/README.md lists every key of the schema, its range and its default, and no other."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticUndefined

from sandboxd import profile_arguments, profile_sections, profiles, units
from sandboxd.endpoints import shipped_profiles
from sandboxd.profile import ProfileFile
from tests.profiles.writing import Write

TEXT = Path(shipped_profiles(), "README.md").read_text(encoding="utf-8")
COMMON = {"description", "required"}
TABLES: dict[str, tuple[type[BaseModel], set[str]]] = {  # heading: model, keys told elsewhere
    "The file": (ProfileFile, set()),
    "`[executable]`": (profile_sections.ExecutableSection, set()),
    "`[argv]`": (profile_sections.ArgvSection, set()),
    "`argv.template` tables": (profile_sections.Conditional, set()),
    "`argv.passthrough`": (profile_sections.Passthrough, set()),
    "`[workspace]`": (profile_sections.WorkspaceSection, set()),
    "`[view]`": (profile_sections.ViewSection, set()),
    "`[environment]`": (profile_sections.EnvironmentSection, set()),
    "`[network]`": (profile_sections.NetworkSection, set()),
    "`[limits]`": (profile_sections.LimitsSection, set()),
    "`[approval]`": (profile_sections.ApprovalSection, set()),
    "`[seccomp]`": (profile_sections.SeccompSection, set()),
    "`[require]`": (profile_sections.RequireSection, set()),
    "`[[example]]`": (profile_sections.Example, set()),
    '`type = "string"`': (profile_arguments.String, COMMON),
    '`type = "integer"`': (profile_arguments.Integer, COMMON),
    '`type = "number"`': (profile_arguments.Number, COMMON),
    '`type = "boolean"`': (profile_arguments.Boolean, COMMON),
    '`type = "path"`': (profile_arguments.Path, COMMON),
    '`type = "list"`': (profile_arguments.List, COMMON),
}
EVERY = "Every argument"
Rows = dict[str, list[str]]


def rows(heading: str) -> Rows:
    """Return the cells behind each key of the table under a heading."""
    _, found, rest = TEXT.partition(f"\n### {heading}\n")
    assert found, heading
    lines = re.split(r"^##", rest, flags=re.MULTILINE)[0].splitlines()
    cells = [[each.strip() for each in line.split("|")[1:-1]] for line in lines if line[:1] == "|"]
    assert cells[0] == ["key", "type", "range", "default", ""]
    return {each[0].strip("`"): each[1:] for each in cells[2:]}


def default(model: type[BaseModel], key: str, kind: str) -> str:
    """Write the default of a key as the reference does."""
    info = next(i for name, i in model.model_fields.items() if (i.alias or name) == key)
    value = info.get_default(call_default_factory=True, validated_data={})
    if value is PydanticUndefined:
        return "required"
    if value is None:
        return "none"
    if isinstance(value, BaseModel) or value == {}:
        return "`{}`"
    if kind == "size":
        value = units.show_size(value)
    if kind == "duration":
        value = units.show_duration(value)
    if isinstance(value, tuple):
        return "`[" + ", ".join(f'"{each}"' for each in value) + "]`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f'`"{value}"`' if isinstance(value, str) else f"`{value}`"


def test_every_table_of_the_schema_has_its_heading_and_no_other_has_one() -> None:
    headings = set(re.findall(r"^### (.*)$", TEXT, re.MULTILINE))
    assert headings == {*TABLES, EVERY}
    models = {
        each
        for module in (profile_arguments, profile_sections)
        for each in vars(module).values()
        if isinstance(each, type) and issubclass(each, profile_arguments.Section)
    }
    public = {each for each in models if not each.__name__.startswith("_")}
    assert {model for model, _ in TABLES.values()} == (public | {ProfileFile}) - {
        profile_arguments.Section
    }


@pytest.mark.parametrize("heading", TABLES)
def test_every_key_is_listed_with_its_default_and_no_other_is(heading: str) -> None:
    model, elsewhere = TABLES[heading]
    listed = rows(heading)
    keys = [info.alias or name for name, info in model.model_fields.items()]
    assert sorted(listed) == sorted(set(keys) - elsewhere)
    for key, (kind, _, told, sentence) in listed.items():
        assert told == default(model, key, kind), key
        assert sentence.endswith("."), key
    assert set(rows(EVERY)) == COMMON


def words(heading: str) -> Iterator[tuple[str, str, set[str]]]:
    """List the keys that take one of some words, and the words of the reference."""
    for key, (kind, told, _, _) in rows(heading).items():
        if kind in {"text", "list of texts"} and '"' in told:
            yield key, kind, set(re.findall(r'"([^"]*)"', told))


@pytest.mark.parametrize("heading", TABLES)
def test_the_words_that_a_key_takes_are_those_of_the_schema(heading: str) -> None:
    model, _ = TABLES[heading]
    for key, _, told in words(heading):
        annotation = next(i for n, i in model.model_fields.items() if (i.alias or n) == key)
        choices = get_args(annotation.annotation)
        if choices[-1] is Ellipsis:
            choices = get_args(choices[0])
        assert told == set(choices), key


RANGES = [
    (heading, key, *re.fullmatch(r"(\S+) to (\S+)", cells[1]).groups(), cells[0])  # type: ignore[union-attr]  # matched by the condition
    for heading in TABLES
    for key, cells in rows(heading).items()
    if re.fullmatch(r"(\S+) to (\S+)", cells[1])
]


@pytest.mark.parametrize(("heading", "key", "least", "most", "kind"), RANGES)
def test_a_range_is_that_of_the_schema(
    heading: str, key: str, least: str, most: str, kind: str
) -> None:
    model, _ = TABLES[heading]

    def accepts(value: int) -> bool:
        show = {"size": units.show_size, "duration": units.show_duration}.get(kind)
        try:
            model.model_validate({**needed(model), key: show(value) if show else value})
        except ValidationError as error:
            wrong = {each["loc"][0] for each in error.errors()}
        else:
            return True
        assert wrong == {key}
        return False

    parse = {"size": units.parse_size, "duration": units.parse_duration}.get(kind, int)
    assert accepts(parse(least))
    assert accepts(parse(most))
    assert not accepts(parse(least) - 1)
    assert not accepts(parse(most) + 1)


def needed(model: type[BaseModel]) -> dict[str, object]:
    values: dict[str, object] = {
        "allow": ("x",),
        "items": {"type": "string"},
        "type": get_args(model.model_fields["type"].annotation)[0]
        if "type" in model.model_fields
        else "",
    }
    return {name: values[name] for name, i in model.model_fields.items() if i.is_required()}


def test_ranges_are_read_at_all() -> None:
    assert len(RANGES) > 15
    assert sum(1 for heading in TABLES for _ in words(heading)) > 15


def test_the_sample_is_a_profile(write: Write, directory: Path) -> None:
    (sample,) = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
    write(sample)
    profile = profiles.load([str(directory)]).get(tomllib.loads(sample)["name"])
    assert profile is not None
    assert len(profile.example) == 2
