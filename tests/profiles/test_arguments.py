"""What an agent sends is what the profile says, exactly, or it is refused by name."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.arguments import check_arguments, path_problem
from sandboxd.profile import Profile
from tests.profiles.writing import Load, refused

EVERY_TYPE = """
[arguments]
text = { type = "string", max_length = 8, default = "" }
lines = { type = "string", multiline = true, default = "" }
raw = { type = "string", control = true, default = "" }
word = { type = "string", pattern = "[a-z]+|[0-9]+", min_length = 2, default = "ab" }
choice = { type = "string", choices = ["one", "-two"], default = "one" }
count = { type = "integer", min = -3, max = 7, default = 1 }
ratio = { type = "number", min = 0.0, max = 1.5, default = 0.5 }
flag = { type = "boolean", default = false }
path = { type = "path", default = "." }
[arguments.names]
type = "list"
items = { type = "string" }
min_items = 1
max_items = 3
default = ["a"]
[argv]
template = ["--", "{text}", "{lines}", "{raw}", "{word}", "{choice}", "{count}", "{ratio}",
  { when = "flag", then = ["f"] }, "{path}", "{names...}"]
[workspace]
access = "read"
"""


@pytest.fixture
def profile(load: Load) -> Profile:
    return load(EVERY_TYPE)


TAKEN: list[tuple[str, object]] = [
    ("text", "12345678"),
    ("text", "\N{MINUS SIGN}rf ; $(x) 'a' \u202e"),
    ("text", ""),
    ("lines", "a\n\tb"),
    ("raw", "\x1b[2K\r\n"),
    ("word", "abc"),
    ("word", "12"),
    ("choice", "-two"),
    ("count", -3),
    ("count", 7),
    ("ratio", 1.5),
    ("ratio", 0),
    ("flag", True),
    ("path", "a/b"),
    ("path", "\N{MINUS SIGN}dash"),
    ("path", "a b\u2028"),
    ("path", "x" * 255),
    ("names", ["a", "b", "c"]),
]


@pytest.mark.parametrize(("name", "value"), TAKEN)
def test_a_right_value_is_taken_unchanged(profile: Profile, name: str, value: object) -> None:
    if isinstance(value, str) and len(value) > 8 and name == "text":
        value = value[:8]
    values = check_arguments(profile, {name: value})
    assert isinstance(values, dict)
    expected = tuple(value) if isinstance(value, list) else value
    assert values[name] == expected
    assert type(values[name]) is type(expected)


INVALID, PATH = "ARGUMENT_INVALID", "PATH_NOT_GRANTED"
REFUSED: list[tuple[str, object, str, str]] = [
    ("text", "123456789", INVALID, "at most 8"),
    ("text", "a\0b", INVALID, "NUL"),
    ("text", "a\nb", INVALID, "U+000A"),
    ("text", "\x7f", INVALID, "U+007F"),
    ("text", "\x85", INVALID, "U+0085"),
    ("text", "\ud800", INVALID, "surrogate"),
    ("text", 1, INVALID, "a string is needed, not a number"),
    ("text", None, INVALID, "not null"),
    ("text", True, INVALID, "not a boolean"),
    ("text", ["a"], INVALID, "not a list"),
    ("text", {"a": 1}, INVALID, "not an object"),
    ("lines", "a\rb", INVALID, "U+000D"),
    ("lines", "a\0b", INVALID, "NUL"),
    ("raw", "\0", INVALID, "NUL"),
    ("raw", "\udfff", INVALID, "surrogate"),
    ("word", "abc1", INVALID, "does not match"),
    ("word", "ab\n", INVALID, "U+000A"),
    ("word", "a", INVALID, "at least 2"),
    ("choice", "two", INVALID, "not one of"),
    ("choice", "one ", INVALID, "not one of"),
    ("count", 8, INVALID, "from -3 to 7"),
    ("count", -4, INVALID, "from -3 to 7"),
    ("count", 1.0, INVALID, "a whole number is needed"),
    ("count", True, INVALID, "not a boolean"),
    ("count", "1", INVALID, "not a string"),
    ("count", 1 << 80, INVALID, "from -3"),
    ("ratio", 1.6, INVALID, "from 0.0"),
    ("ratio", float("nan"), INVALID, "from 0.0"),
    ("ratio", float("inf"), INVALID, "from 0.0"),
    ("ratio", False, INVALID, "not a boolean"),
    ("flag", 1, INVALID, "a boolean is needed"),
    ("flag", "true", INVALID, "a boolean is needed"),
    ("flag", None, INVALID, "a boolean is needed"),
    ("path", "", INVALID, "empty path"),
    ("path", "/", PATH, "absolute"),
    ("path", "/etc/passwd", PATH, "absolute"),
    ("path", "//x", PATH, "absolute"),
    ("path", "..", PATH, "'..'"),
    ("path", "a/../../b", PATH, "'..'"),
    ("path", "x/..", PATH, "'..'"),
    ("path", "./x", INVALID, "'.' component"),
    ("path", "a/./b", INVALID, "'.' component"),
    ("path", "a/.", INVALID, "'.' component"),
    ("path", "./", INVALID, "ends with"),
    ("path", "x/", INVALID, "ends with"),
    ("path", "a//b", INVALID, "empty component"),
    ("path", "x" * 256, INVALID, "256 bytes"),
    ("path", "é" * 128, INVALID, "256 bytes"),
    ("path", "a/" * 2047 + "ab", INVALID, "4096 characters"),
    ("path", "é/" * 1365 + "é", INVALID, "4097 bytes"),
    ("path", "safe.txt\0.sh", INVALID, "NUL"),
    ("path", "a\nb", INVALID, "U+000A"),
    ("path", "\x1b[2J", INVALID, "U+001B"),
    ("path", "\ud800", INVALID, "surrogate"),
    ("path", 3, INVALID, "a string is needed"),
    ("names", "a", INVALID, "a list is needed"),
    ("names", [], INVALID, "0 items"),
    ("names", ["a"] * 4, INVALID, "4 items"),
    ("nobody", 1, INVALID, "no such argument"),
    ("text ", "x", INVALID, "no such argument"),
    ("TEXT", "x", INVALID, "no such argument"),
    ("\ud800\x1b", "x", INVALID, "no such argument"),
]


@pytest.mark.parametrize(("name", "value", "reason", "why"), REFUSED)
def test_a_wrong_value_is_refused_and_says_why(
    profile: Profile, name: str, value: object, reason: str, why: str
) -> None:
    result = check_arguments(profile, {name: value})
    assert [code for _, code in refused(result)] == [reason]
    assert isinstance(result, tuple)
    assert why in result[0].message


def test_an_item_is_named_by_its_index(profile: Profile) -> None:
    result = check_arguments(profile, {"names": ["a", 2, "\0"]})
    assert refused(result) == [("names[1]", INVALID), ("names[2]", INVALID)]


def test_every_problem_is_told_but_not_endlessly_many(profile: Profile) -> None:
    result = check_arguments(profile, {f"n{i}": i for i in range(1000)})
    assert len(refused(result)) == 32


def test_a_denial_has_the_same_key_for_the_same_refusal_only(profile: Profile) -> None:
    keys = {
        denial.key
        for given in ({"text": 1}, {"text": 2}, {"count": "x"}, {"path": ".."}, {"path": "a//b"})
        for denial in check_arguments(profile, given)
        if not isinstance(denial, str)
    }
    assert len(keys) == 4


def test_a_missing_argument_is_refused_and_an_optional_one_absent(load: Load) -> None:
    profile = load("""
[arguments]
must = { type = "string" }
may = { type = "integer", required = false }
many = { type = "list", items = { type = "string" }, required = false }
[argv]
template = ["--", "{must}", { when = "may", then = ["{may}"] }, "{many...}"]
""")
    assert refused(check_arguments(profile, {})) == [("must", INVALID)]
    assert check_arguments(profile, {"must": "x"}) == {"must": "x", "may": None, "many": ()}
    assert profile.parameters()["required"] == ["must"]


def test_the_schema_for_agents_says_what_is_checked(profile: Profile) -> None:
    schema = json.loads(json.dumps(profile.parameters()))
    assert schema["additionalProperties"] is False
    assert schema["required"] == []
    properties = schema["properties"]
    assert properties["word"] == {
        "type": "string",
        "maxLength": 4096,
        "minLength": 2,
        "pattern": "^(?:[a-z]+|[0-9]+)$",
        "default": "ab",
    }
    assert properties["choice"]["enum"] == ["one", "-two"]
    assert properties["count"] == {"type": "integer", "minimum": -3, "maximum": 7, "default": 1}
    assert properties["names"]["items"]["type"] == "string"
    assert properties["names"]["default"] == ["a"]


@pytest.mark.parametrize(
    "pattern", ["(a+)+b", "(a|a)*b", "(a*)*b", "([a-z]+)*x", "(.*a){12}b", "(a|aa)+b"]
)
def test_no_text_makes_a_pattern_slow(load: Load, pattern: str) -> None:
    """The text is one that a backtracking engine does not finish in this universe's time."""
    profile = load(f"""
[arguments]
text = {{ type = "string", pattern = '{pattern}' }}
[argv]
template = ["--", "{{text}}"]
""")
    assert refused(check_arguments(profile, {"text": "a" * 4095 + "!"})) == [("text", INVALID)]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
NAMES = ["text", "lines", "raw", "word", "choice", "count", "ratio", "flag", "path", "names"]


def test_whatever_is_sent_ends_in_values_or_denials(load: Load) -> None:
    profile = load(EVERY_TYPE)

    @given(st.dictionaries(st.sampled_from(NAMES) | st.text(), JSON, max_size=6))
    def check(sent: dict[str, object]) -> None:
        result = check_arguments(profile, sent)
        if isinstance(result, dict):
            assert list(result) == NAMES
            assert set(sent) <= set(NAMES)
        else:
            refused(result)

    check()


@given(st.text(st.characters(codec="utf-8")) | st.text("./ab\0\n-", max_size=12))
def test_a_path_that_passes_as_text_names_something_below(path: str) -> None:
    if path_problem(path) is None:
        parts = path.split("/")
        assert path == "." or not {"", ".", ".."} & set(parts)
        assert len(path.encode()) <= 4095
