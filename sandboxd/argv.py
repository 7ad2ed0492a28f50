"""How do checked arguments become the argv of a program, with no text becoming an option?

A template's element is literal text with ``{name}`` for a value and ``{name...}`` for every item
of a list (the element is then repeated); ``{{`` and ``}}`` are braces. A value may begin with "-"
only where that cannot make it an option: behind a literal "--", directly behind an option of its
own ("-e", "{pattern}"), or attached to literal text ("--glob={g}"). Where a template puts "./"
before a path, the path "." stays ".".
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sandboxd.patterns import fullmatch
from sandboxd.profile_arguments import Argument, List, String
from sandboxd.profile_sections import ArgvSection, Conditional, Element, Passthrough
from sandboxd.protocol import Denial
from sandboxd.refusals import refuse, shown

Scalar = str | int | float | bool
Value = Scalar | tuple[Scalar, ...] | None
PASSTHROUGH = "args"  # the one argument of a command whose command line is passed through
ARGUMENT_MAX = (128 << 10) - 1  # bytes; execve(2), MAX_ARG_STRLEN without its NUL
ARGV_MAX = 128 << 10  # bytes of argv and environment together, each with its NUL
_TOKEN = re.compile(r"\{\{|\}\}|\{([a-z][a-z0-9_]*)(\.\.\.)?\}|[{}]")


@dataclass(frozen=True, slots=True)
class Slot:
    """A place for the value of an argument; ``spread`` for each item of a list."""

    name: str
    spread: bool


@dataclass(frozen=True, slots=True)
class Site:
    """One element of a template where it stands.

    ``guarded``: a value here cannot become an option, whatever it begins with. ``under`` is the
    condition it depends on.
    """

    parts: tuple[str | Slot, ...]
    guarded: bool
    under: Conditional | None

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The places for values in this element."""
        return tuple(part for part in self.parts if isinstance(part, Slot))


@functools.lru_cache(maxsize=4096)
def parse_element(text: str) -> tuple[str | Slot, ...]:
    """Split an element of a template into literal texts and slots.

    Raises:
        ValueError: a brace stands alone, or a name is none.

    """
    parts: list[str | Slot] = []
    literal, end = "", 0
    for token in _TOKEN.finditer(text):
        literal += text[end : token.start()]
        end = token.end()
        if token[0] in {"{{", "}}"}:
            literal += token[0][0]
        elif token[1] is None:
            raise ValueError(f"cannot read {text!r}; write {{name}}, {{name...}}, {{{{ or }}}}")
        else:
            parts += [literal] if literal else []
            parts.append(Slot(token[1], spread=token[2] is not None))
            literal = ""
    literal += text[end:]
    return tuple([*parts, literal] if literal or not parts else parts)


def sites(template: tuple[Element, ...]) -> Iterator[Site]:
    """List the elements in order, each with what guards it.

    Behind a condition nothing is known of the element before, and a "--" that may be absent guards
    only what is absent together with it.
    """
    behind_dashes, before = False, ""
    for element in template:
        if isinstance(element, str):
            yield _site(element, before, behind_dashes=behind_dashes, under=None)
            behind_dashes, before = behind_dashes or element == "--", element
            continue
        inner_dashes, inner_before = behind_dashes, ""
        for text in element.then:
            yield _site(text, inner_before, behind_dashes=inner_dashes, under=element)
            inner_dashes, inner_before = inner_dashes or text == "--", text
        before = ""


def _site(text: str, before: str, *, behind_dashes: bool, under: Conditional | None) -> Site:
    parts = parse_element(text)
    spread = any(isinstance(part, Slot) and part.spread for part in parts)
    own_option = before.startswith("-") and before.strip("-") != "" and not _has_slot(before)
    attached = isinstance(parts[0], str)
    return Site(parts, behind_dashes or attached or (own_option and not spread), under)


def _has_slot(text: str) -> bool:
    return any(isinstance(part, Slot) for part in parse_element(text))


def build(
    section: ArgvSection,
    arguments: Mapping[str, Argument],
    values: Mapping[str, Value],
    profile: str,
) -> tuple[str, ...] | Denial:
    """Make argv from checked ``values``; the program's own name is not part of it."""
    if section.passthrough is not None:
        passed = values[PASSTHROUGH]
        texts = tuple(map(str, passed)) if isinstance(passed, tuple) else ()
        return _pass_through(section.passthrough, texts, profile)
    return _fill(section.template or (), arguments, values, profile)


def _fill(
    template: tuple[Element, ...],
    arguments: Mapping[str, Argument],
    values: Mapping[str, Value],
    profile: str,
) -> tuple[str, ...] | Denial:
    argv: list[str] = []
    for site in sites(template):
        if site.under is not None and not holds(site.under, values):
            continue
        for index, element in enumerate(_elements(site, values)):
            if element.startswith("-") and not site.guarded and not _chosen(site, arguments):
                name = site.slots[0].name
                target = f"{name}[{index}]" if site.slots[0].spread else name
                return _option_refused(target, element, profile)
            argv.append(element)
    return tuple(argv)


def holds(condition: Conditional, values: Mapping[str, Value]) -> bool:
    """Tell whether a condition of the template is met by the values."""
    value = values.get(condition.when)
    if condition.is_ is not None:
        return value in condition.is_
    return value is not None and value is not False and value != ()


def _elements(site: Site, values: Mapping[str, Value]) -> Iterator[str]:
    spread = next((slot.name for slot in site.slots if slot.spread), None)
    if spread is None:
        yield _filled(site, values)
        return
    items = values[spread]
    for item in items if isinstance(items, tuple) else ():
        yield _filled(site, {**values, spread: item})


def _filled(site: Site, values: Mapping[str, Value]) -> str:
    """Write one element. "./" before the workspace itself adds nothing, so it is left out."""
    element = "".join(_text(part, values) for part in site.parts)
    return "." if site.slots and element == "./." else element


def _text(part: str | Slot, values: Mapping[str, Value]) -> str:
    return part if isinstance(part, str) else str(values[part.name])


def _chosen(site: Site, arguments: Mapping[str, Argument]) -> bool:
    """Tell whether the profile's owner wrote down every value that can stand here."""
    argument = arguments[site.slots[0].name] if site.slots else None
    if isinstance(argument, List):
        return isinstance(argument.items, String) and argument.items.choices is not None
    return isinstance(argument, String) and argument.choices is not None


def _option_refused(target: str, element: str, profile: str) -> Denial:
    return refuse(
        "argument",
        target,
        "ARGUMENT_INVALID",
        f"cannot take {target}; {shown(element)} begins with '-' and would be read as an option",
        profile=profile,
        rule=f"{profile}: argv.template",
        advice="for a file, there is none of such a name here; else write the value differently",
    )


def _pass_through(
    rule: Passthrough, given: tuple[str, ...], profile: str
) -> tuple[str, ...] | Denial:
    """Check a command line of the client's own, element by element."""
    for index, element in enumerate(given):
        if not any(fullmatch(pattern, element) for pattern in rule.allow):
            target = f"{PASSTHROUGH}[{index}]"
            return refuse(
                "argument",
                target,
                "ARGUMENT_INVALID",
                f"cannot take {target}; {shown(element)} matches no pattern of the profile",
                profile=profile,
                rule=f"{profile}: argv.passthrough.allow",
                advice="the command's parameters list the patterns",
            )
    return given


def size_problem(argv: tuple[str, ...], environment: tuple[str, ...]) -> str | None:
    """Say whether execve(2) could not take this, before anybody approves it."""
    sizes = [len(text.encode()) + 1 for text in (*argv, *environment)]
    if max(sizes) > ARGUMENT_MAX + 1:
        return f"one argument has {max(sizes) - 1} bytes; at most {ARGUMENT_MAX} may be"
    if sum(sizes) > ARGV_MAX:
        return f"arguments and environment have {sum(sizes)} bytes; at most {ARGV_MAX} may be"
    return None
