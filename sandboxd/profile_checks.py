"""Is a profile right in itself, beyond the types of its keys?

Pure checks over the whole of one profile; each fault has its place and says what would be right.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from sandboxd import environment
from sandboxd.arguments import text_problem, value_problems
from sandboxd.argv import Site, parse_element, sites
from sandboxd.profile import ProfileFile
from sandboxd.profile_arguments import (
    MAX_TEXT,
    Argument,
    Boolean,
    Integer,
    List,
    Number,
    Path,
    String,
)
from sandboxd.profile_sections import Conditional, Element
from sandboxd.profile_source import Place

_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}", re.ASCII)


class Fault(NamedTuple):
    """What is wrong at one place of a profile, and what would be right."""

    place: Place
    text: str


def faults(profile: ProfileFile) -> Iterator[Fault]:
    """List what is wrong. Without an executable, only what stands on its own is judged."""
    for name, argument in profile.arguments.items():
        yield from _argument(name, argument, profile.workspace.access)
    for place, text in environment.problems(profile.environment).items():
        yield Fault(place, text)
    if profile.executable is None:
        if profile.example:
            yield Fault(("example",), "cannot try examples without [executable]")
        return
    if profile.argv is None:
        yield Fault(("name",), "cannot run it without [argv]; write template = [] for none")
    elif (profile.argv.template is None) == (profile.argv.passthrough is None):
        yield Fault(("argv",), "cannot use [argv]; it needs one of template and passthrough")
    elif profile.argv.template is not None:
        yield from _template(profile.argv.template, profile.arguments)
    else:
        yield from _passthrough(profile)
    for index, example in enumerate(profile.example):
        if (example.argv is None) == (example.rejected is None):
            need = "cannot try this example; it needs one of argv and rejected"
            yield Fault(("example", index), need)


def _argument(name: str, argument: Argument, access: str) -> Iterator[Fault]:
    place: Place = ("arguments", name)
    if not _NAME.fullmatch(name):
        yield Fault(place, f"cannot call an argument {name!r}; use a-z, 0-9 and _")
    single = argument.items if isinstance(argument, List) else argument
    if isinstance(single, Path):
        if access == "none":
            yield Fault(place, "cannot take a path without [workspace] access")
        elif single.access == "write" and access != "write":
            yield Fault(place, 'cannot take a path to write without [workspace] access = "write"')
    if isinstance(single, Integer | Number) and single.min > single.max:
        yield Fault(place, f"cannot have min {single.min} above max {single.max}")
    if isinstance(single, String):
        yield from _string(place, single)
    if isinstance(argument, List) and argument.min_items > argument.max_items:
        yield Fault(place, "cannot have min_items above max_items")
    if argument.default is not None:
        for target, problem in value_problems(name, argument, argument.default):
            yield Fault((*place, "default"), f"cannot use the default {target}; {problem.text}")


def _string(place: Place, string: String) -> Iterator[Fault]:
    if string.min_length > string.max_length:
        yield Fault(place, "cannot have min_length above max_length")
    for choice in string.choices or ():
        problem = text_problem(choice, MAX_TEXT)
        if problem is not None:
            yield Fault((*place, "choices"), f"cannot offer {choice!r}; {problem.text}")


def _passthrough(profile: ProfileFile) -> Iterator[Fault]:
    if profile.arguments:
        yield Fault(("arguments",), "cannot declare arguments beside argv.passthrough")
    rule = profile.argv.passthrough if profile.argv else None
    if rule is not None and rule.paths and profile.workspace.access == "none":
        need = "cannot take paths without [workspace] access"
        yield Fault(("argv", "passthrough", "paths"), need)


def _template(template: tuple[Element, ...], arguments: dict[str, Argument]) -> Iterator[Fault]:
    unreadable = list(_unreadable(template))
    if unreadable:
        yield from unreadable
        return
    used: set[str] = set()
    for index, element in enumerate(template):
        if isinstance(element, Conditional):
            used.add(element.when)
            place: Place = ("argv", "template", index, "when")
            yield from (Fault(place, text) for text in _condition(element, arguments))
    for where, site in zip(_places(template), sites(template), strict=True):
        used |= {slot.name for slot in site.slots}
        yield from (Fault(where, text) for text in _site(site, arguments))
    for name in arguments:
        if name not in used:
            yield Fault(("arguments", name), f"cannot ignore argument {name}; no template uses it")


def _unreadable(template: tuple[Element, ...]) -> Iterator[Fault]:
    for place, text in zip(_places(template), _texts(template), strict=True):
        problem = text_problem(text, MAX_TEXT, "\n\t")
        if problem is not None:
            yield Fault(place, f"cannot use {text!r}; {problem.text}")
        try:
            parse_element(text)
        except ValueError as error:
            yield Fault(place, str(error))


def _places(template: tuple[Element, ...]) -> Iterator[Place]:
    """List the places of all elements, in the order of `sites`."""
    for index, element in enumerate(template):
        if isinstance(element, str):
            yield ("argv", "template", index)
        else:
            yield from (("argv", "template", index, "then", i) for i in range(len(element.then)))


def _texts(template: tuple[Element, ...]) -> Iterator[str]:
    for element in template:
        yield from (element,) if isinstance(element, str) else element.then


def _condition(condition: Conditional, arguments: dict[str, Argument]) -> Iterator[str]:
    argument = arguments.get(condition.when)
    if argument is None:
        yield f"cannot depend on {condition.when!r}; there is no such argument"
    elif condition.is_ is not None:
        choices = argument.choices if isinstance(argument, String) else None
        if choices is None or not set(condition.is_) <= set(choices):
            yield f"cannot compare {condition.when}; 'is' takes members of its choices"
    elif not isinstance(argument, Boolean | List) and argument.required:
        yield f"cannot depend on {condition.when}; it always has a value (required = false?)"


def _site(site: Site, arguments: dict[str, Argument]) -> Iterator[str]:
    first = site.parts[0]
    if sum(slot.spread for slot in site.slots) > 1:
        yield "cannot repeat one element for two lists"
    for slot in site.slots:
        argument = arguments.get(slot.name)
        if argument is None:
            yield f"cannot fill {{{slot.name}}}; there is no such argument"
        elif isinstance(argument, Boolean):
            yield f"cannot write {slot.name} into argv; a boolean is for 'when'"
        elif isinstance(argument, List) != slot.spread:
            wanted = f"{{{slot.name}...}}" if isinstance(argument, List) else f"{{{slot.name}}}"
            yield f"cannot fill {slot.name} here; write {wanted}"
        elif _may_lack(slot.name, argument, site):
            yield f"cannot fill {slot.name}, which may be absent, outside its own 'when'"
        if isinstance(first, str) and len(site.parts) > 1 and not first.strip("-"):
            single = argument.items if isinstance(argument, List) else argument
            chosen = isinstance(single, String) and single.choices is not None
            if not chosen and not (isinstance(single, Integer) and single.min >= 0):
                yield f"cannot put {slot.name} behind dashes alone; any option could be written"


def _may_lack(name: str, argument: Argument, site: Site) -> bool:
    """Tell whether this place may be reached while the argument has no value."""
    if argument.required or isinstance(argument, List):
        return False
    return site.under is None or site.under.when != name
