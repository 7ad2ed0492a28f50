"""On which line of a TOML file does a key stand?

tomllib gives values without positions. This scanner reads a text that tomllib has accepted, so it
need not judge it: it only follows keys through tables, dotted keys, arrays and inline tables.
"""

from __future__ import annotations

import re
import tomllib

Place = tuple[str | int, ...]

_STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}(?!")|\'\'\'.*?\'{3,5}(?!\')|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'',
    re.DOTALL,
)
_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_SCALAR = re.compile(r"[^,\]}#\n]+")


def line_of(text: str, place: Place) -> int:
    """Return the line, from 1, of the deepest part of ``place`` that is written in ``text``.

    Parts that are not written (a tag that a validator adds) are passed over.
    """
    lines = _Scanner(text).scan()
    found: Place = ()
    for part in place:
        if (*found, part) in lines:
            found = (*found, part)
    return lines.get(found, 1)


class _Scanner:
    """One pass over a text; ``lines`` maps every key and item to its line."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.lines: dict[Place, int] = {}
        self.arrays: dict[Place, int] = {}

    def scan(self) -> dict[Place, int]:
        table: Place = ()
        while self._skip(_BLANK) < len(self.text):
            if self.text.startswith("[", self.at):
                table = self._header()
            else:
                self._pair(table)
        return self.lines

    def _skip(self, pattern: re.Pattern[str]) -> int:
        match = pattern.match(self.text, self.at)
        self.at = match.end() if match else self.at
        return self.at

    def _note(self, place: Place) -> None:
        line = self.text.count("\n", 0, self.at) + 1
        for length in range(1, len(place) + 1):
            self.lines.setdefault(place[:length], line)

    def _header(self) -> Place:
        array = self.text.startswith("[[", self.at)
        self.at += 2 if array else 1
        key = self._key()
        place: Place = ()
        for part in key[:-1]:
            place = self._inside((*place, part))
        place = (*place, key[-1])
        if array:
            self.arrays[place] = self.arrays.get(place, -1) + 1
            place = (*place, self.arrays[place])
        self._note(place)
        self.at += 2 if array else 1
        return place

    def _inside(self, place: Place) -> Place:
        """Complete a header's way: below an array of tables it means the last element."""
        return (*place, self.arrays[place]) if place in self.arrays else place

    def _key(self) -> list[str]:
        parts = []
        while True:
            self._skip(_SPACE)
            start = self.at
            if self._skip(_STRING) > start:
                parts.append(str(tomllib.loads(f"k = {self.text[start : self.at]}")["k"]))
            else:
                parts.append(self.text[start : self._skip(_BARE_KEY)])
            self._skip(_SPACE)
            if not self.text.startswith(".", self.at):
                return parts
            self.at += 1

    def _pair(self, table: Place) -> None:
        start = self.at
        place = (*table, *self._key())
        end, self.at = self.at, start
        self._note(place)
        self.at = end + 1  # the equals sign
        self._skip(_SPACE)
        self._value(place)

    def _value(self, place: Place) -> None:
        opening = self.text[self.at : self.at + 1]
        if opening == "[":
            self._items(place)
        elif opening == "{":
            self._inline(place)
        elif opening in {'"', "'"}:
            self._skip(_STRING)
        else:
            self._skip(_SCALAR)

    def _items(self, place: Place) -> None:
        self.at += 1
        index = 0
        while not self.text.startswith("]", self._skip(_BLANK)):
            self._note((*place, index))
            self._value((*place, index))
            index += 1
            self._comma()
        self.at += 1

    def _inline(self, place: Place) -> None:
        self.at += 1
        while not self.text.startswith("}", self._skip(_BLANK)):
            self._pair(place)
            self._comma()
        self.at += 1

    def _comma(self) -> None:
        if self.text.startswith(",", self._skip(_BLANK)):
            self.at += 1
