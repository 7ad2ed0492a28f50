"""Is a plan within what this launcher may ever do?

The daemon checked all this already. It is checked again because the daemon might have been
captured (the ceiling bounds a captured daemon, I2). Pure: values in, a reason or nothing out.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Collection

from launcher.paths import is_beneath
from launcher.plan import Bind, Ceiling, Limits, Plan

_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}")
# What the launcher itself puts into every view; a plan may mount nothing over or under it.
_OWN_TARGETS = ("/proc", "/dev/pts", "/sys")
_MAX_ENTRIES = 512


class AboveCeiling(Exception):
    """A plan asks for more than the ceiling allows."""


def check_plan(
    plan: Plan, ceiling: Ceiling, *, existing: Collection[str], descriptors: int
) -> None:
    """Check everything but the host paths of binds. The first descriptor is init's channel.

    Raises:
        AboveCeiling: with the reason.

    """
    if not _NAME.fullmatch(plan.sandbox) or not _NAME.fullmatch(plan.host_name):
        raise AboveCeiling("a name has characters it may not have")
    if plan.sandbox in existing:
        raise AboveCeiling("a sandbox of this name exists")
    if len(existing) >= ceiling.sandboxes:
        raise AboveCeiling(f"{len(existing)} sandboxes exist, {ceiling.sandboxes} may")
    if any(not 0 < bind.descriptor < descriptors for bind in plan.binds) or not descriptors:
        raise AboveCeiling("a descriptor of the plan is missing")
    entries = len(plan.binds) + len(plan.tmpfs) + len(plan.files) + len(plan.symlinks)
    if entries > _MAX_ENTRIES:
        raise AboveCeiling(f"{entries} entries in the view, {_MAX_ENTRIES} may be")
    if not set(plan.relax) <= set(ceiling.relaxations):
        raise AboveCeiling(f"relaxation {plan.relax} is not one of {ceiling.relaxations}")
    _check_limits(plan.limits, ceiling)
    size = sum(each.size_bytes for each in plan.tmpfs)
    # Zero would mean "no bound" to tmpfs(5).
    unbounded = any(each.size_bytes <= 0 or each.inodes <= 0 for each in plan.tmpfs)
    if size > ceiling.tmpfs_bytes or unbounded:
        raise AboveCeiling(f"tmpfs of {size} bytes, {ceiling.tmpfs_bytes} may be")
    _check_targets(plan)


def _check_limits(limits: Limits, ceiling: Ceiling) -> None:
    for name, value, most in (
        ("memory", limits.memory_bytes, ceiling.memory_bytes),
        ("pids", limits.pids, ceiling.pids),
        ("life", limits.life_ms, ceiling.life_ms),
    ):
        if not 0 < value <= most:
            raise AboveCeiling(f"{name} limit {value}, at most {most} may be")


def _check_targets(plan: Plan) -> None:
    targets = [bind.target for bind in plan.binds] + [tmpfs.target for tmpfs in plan.tmpfs]
    targets += [file.target for file in plan.files] + [link.target for link in plan.symlinks]
    for target in targets:
        parts = target.split("/")
        if parts[0] or len(target) > 4095 or "\0" in target or not all(parts[1:]):
            raise AboveCeiling(f"target {target!r} is not a plain absolute path")
        if "." in parts or ".." in parts:
            raise AboveCeiling(f"target {target!r} is not a plain absolute path")
        if any(is_beneath(target, own) or is_beneath(own, target) for own in _OWN_TARGETS):
            raise AboveCeiling(f"target {target} belongs to the launcher")
    if len(set(targets)) != len(targets):
        raise AboveCeiling("a target stands twice")


def check_bind(bind: Bind, path: str, ceiling: Ceiling) -> None:
    """Check the canonical host ``path`` of a bind.

    Raises:
        AboveCeiling: with the reason.

    """
    if stat.S_ISCHR(bind.identity.kind):
        if path not in ceiling.devices:
            raise AboveCeiling(f"device {path} is not among {ceiling.devices}")
        return
    if bind.identity.kind not in {stat.S_IFDIR, stat.S_IFREG}:
        raise AboveCeiling(f"{path} is neither a directory nor a file")
    for denied in ceiling.denied:
        if is_beneath(path, denied) or is_beneath(denied, path):
            raise AboveCeiling(f"{path} is in or above {denied}")
    for root in ceiling.roots:
        if is_beneath(path, root.path) and (root.writable or not bind.writable):
            return
    raise AboveCeiling(f"{path} is below no root{' that is writable' if bind.writable else ''}")
