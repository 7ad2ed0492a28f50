"""What is a profile that extends another, and does it only narrow?

A key that a file writes replaces the same key of the profile it extends; what it does not write it
inherits. The result may not go beyond the extended profile anywhere: what that one leaves out has
its default, and the default is the bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from launcher.paths import is_beneath
from sandboxd.profile import ProfileFile
from sandboxd.profile_checks import Fault
from sandboxd.profile_sections import ApprovalSection

_WHOLE = ("executable", "arguments", "argv")  # each comes from one file, unmerged
_OWN = ("name", "extends", "example")
_RISK = ("high", "medium", "low")  # each tuple goes from the narrow to the wide
_ACCESS = ("none", "read", "write")
_NETWORK = ("none", "loopback")
_MODE = ("deny", "ask", "allow_safe", "allow")
_BASE = ("strict", "default")
_LIMITS = ("wall", "grace", "cpu", "memory", "file_size", "output", "output_total")
_COUNTS = ("pids", "files", "concurrency")


def merge(child: Mapping[str, Any], parent: Mapping[str, Any]) -> dict[str, Any]:
    """Lay the keys of one file over those of the file that it extends."""
    merged = {key: value for key, value in parent.items() if key not in _OWN}
    for key, value in child.items():
        below = merged.get(key)
        if isinstance(value, dict) and isinstance(below, dict) and key not in _WHOLE:
            merged[key] = {**below, **value}
            if key == "environment" and isinstance(value.get("set"), dict):
                merged[key]["set"] = {**below.get("set", {}), **value["set"]}
        else:
            merged[key] = value
    return merged


def widenings(child: ProfileFile, parent: ProfileFile) -> Iterator[Fault]:
    """List where ``child``, merged, is wider than the profile it extends."""
    yield from _order(("risk",), child.risk, parent.risk, _RISK)
    access = (child.workspace.access, parent.workspace.access)
    yield from _order(("workspace", "access"), *access, _ACCESS)
    yield from _order(("network", "mode"), child.network.mode, parent.network.mode, _NETWORK)
    yield from _order(("seccomp", "base"), child.seccomp.base, parent.seccomp.base, _BASE)
    yield from _limits(child, parent)
    yield from _approval(child.approval, parent.approval)
    yield from _view(child, parent)
    for place, mine, theirs in (
        (("environment", "pass"), child.environment.pass_, parent.environment.pass_),
        (("seccomp", "relax"), child.seccomp.relax, parent.seccomp.relax),
        (("view", "devices"), child.view.devices, parent.view.devices),
    ):
        more = sorted(set(mine) - set(theirs))
        if more:
            yield Fault(place, f"cannot add {', '.join(more)}; {parent.name} does not have it")
    missing = sorted(set(parent.require.layers) - set(child.require.layers))
    if missing:
        text = f"cannot leave out {', '.join(missing)}; {parent.name} requires it"
        yield Fault(("require", "layers"), text)


def _order(
    place: tuple[str, str] | tuple[str], mine: str, theirs: str, order: tuple[str, ...]
) -> Iterator[Fault]:
    if order.index(mine) > order.index(theirs):
        yield Fault(place, f'cannot widen to "{mine}"; the extended profile says "{theirs}"')


def _limits(child: ProfileFile, parent: ProfileFile) -> Iterator[Fault]:
    mine, theirs = _plain(child.limits), _plain(parent.limits)
    for name in (*_LIMITS, *_COUNTS):
        most = theirs[name]
        if most is not None and (mine[name] is None or mine[name] > most):
            text = f"cannot raise {name}; the extended profile's value is the most"
            yield Fault(("limits", name), text)
    if child.view.tmp_size_bytes > parent.view.tmp_size_bytes:
        text = "cannot raise tmp_size; the extended profile's value is the most"
        yield Fault(("view", "tmp_size"), text)


def _plain(section: Any) -> dict[str, Any]:  # noqa: ANN401  # a pydantic model's own dump
    plain: dict[str, Any] = section.model_dump(by_alias=True)
    return plain


def _approval(child: ApprovalSection, parent: ApprovalSection) -> Iterator[Fault]:
    yield from _order(("approval", "mode"), child.mode, parent.mode, _MODE)
    if child.expires_ms > parent.expires_ms:
        text = "cannot raise expires; the extended profile's value is the most"
        yield Fault(("approval", "expires"), text)


def _view(child: ProfileFile, parent: ProfileFile) -> Iterator[Fault]:
    readable = (*parent.view.read, *parent.view.write)
    for key, paths, within in (
        ("read", child.view.read, readable),
        ("write", child.view.write, parent.view.write),
    ):
        for path in paths:
            if not any(is_beneath(path, each) for each in within):
                text = f"cannot add {path}; {parent.name} does not grant it"
                yield Fault(("view", key), text)
