"""Every key of a TOML file is found on its line."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.profile_source import Place, line_of

TEXT = '''# a comment with [brackets] and = signs
name = "x" # and "quotes"

"quoted key" = 1
a.b . "c d" = { e = [1, { f = """x
""" }], 'g.h' = 2 }

[table]  # trailing
text = """
[not.a.table]
key = 1
\\""" still """
other = \'\'\'
# none
\'\'\'\'
list = [ # [
  "a]", # ]
  'b"',
  [3, 4],
  { k = "v" },
]
date = 1979-05-27 07:32:00
[ table . "sub" ]
x = 1
[[array]]
first = 1
[array.below]
y = 2
[[array]]
second = 1
[[array.nested]]
z = 3
[[array.nested]]
z = 4
'''
LINES: list[tuple[Place, int]] = [
    (("name",), 2),
    (("quoted key",), 4),
    (("a", "b", "c d"), 5),
    (("a", "b", "c d", "e", 0), 5),
    (("a", "b", "c d", "e", 1, "f"), 5),
    (("a", "b", "c d", "g.h"), 6),
    (("table",), 8),
    (("table", "text"), 9),
    (("table", "other"), 13),
    (("table", "list"), 16),
    (("table", "list", 0), 17),
    (("table", "list", 1), 18),
    (("table", "list", 2, 1), 19),
    (("table", "list", 3, "k"), 20),
    (("table", "date"), 22),
    (("table", "sub"), 23),
    (("table", "sub", "x"), 24),
    (("array", 0), 25),
    (("array", 0, "first"), 26),
    (("array", 0, "below", "y"), 28),
    (("array", 1, "second"), 30),
    (("array", 1, "nested", 0, "z"), 32),
    (("array", 1, "nested", 1, "z"), 34),
    (("table", "no such key"), 8),
    (("table", "a tag", "list", 1), 18),
    (("nothing",), 1),
]


@pytest.mark.parametrize(("place", "line"), LINES)
def test_a_key_stands_on_its_line(place: Place, line: int) -> None:
    assert line_of(TEXT, place) == line


KEYS = st.text(st.characters(codec="utf-8"), max_size=5)
VALUES = st.recursive(
    st.booleans() | st.integers(-9, 9) | st.text(st.characters(codec="utf-8"), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


def quoted(text: str) -> str:
    special = {'"', "\\"}
    return (
        '"'
        + "".join(
            f"\\U{ord(c):08X}" if ord(c) < 0x20 or c == "\x7f" or c in special else c for c in text
        )
        + '"'
    )


def written(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[ # ]\n" + "".join(f"{written(each)} # ,\n, " for each in value) + "]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{quoted(k)} = {written(v)}" for k, v in value.items()) + " }"
    return quoted(value) if isinstance(value, str) else str(value)


def places(value: object, place: Place) -> Iterator[Place]:
    items: list[tuple[str | int, object]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    for key, item in items:
        yield (*place, key)
        yield from places(item, (*place, key))


@given(st.dictionaries(KEYS, VALUES, max_size=3), st.dictionaries(KEYS, VALUES, max_size=3))
def test_every_place_of_any_text_is_found(
    top: dict[str, object], table: dict[str, object]
) -> None:
    lines = [f"{quoted(key)} = {written(value)}" for key, value in top.items()]
    lines += ["[t.t]" if "t" not in top else "[u.t]"]
    lines += [f"{quoted(key)} = {written(value)}" for key, value in table.items()]
    text = "\n".join(lines) + "\n[[last]]"
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return  # "last", "u" or "t" was among the keys
    end = text.count("\n") + 1
    assert line_of(text, ("last", 0)) == end
    previous = 0
    for place in places(document, ()):
        line = line_of(text, place)
        assert previous <= line <= end
        assert line == line_of(text, (*place[:-1], "a tag", place[-1], "not there"))
        previous = line
