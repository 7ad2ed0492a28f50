"""What do all runs under one launcher share?"""

from __future__ import annotations

import asyncio
import os
import resource
from dataclasses import dataclass

from launcher.plan import POOL_INSIDE_GID, POOL_INSIDE_UID, Ceiling, Hello
from sandboxd.baseview import BaseView
from sandboxd.link import Link
from sandboxd.planner import Setting
from sandboxd.sandbox import FromLauncher
from sandboxd.watchdog import Watchdog

_LAUNCHES_AT_ONCE = 4  # the launcher takes one after the other; what waits costs descriptors


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """One launcher, and what the engine has besides.

    ``gate`` bounds the launches under way, ``buffer`` is what all output is read into.
    """

    launcher: Link[FromLauncher | Hello]
    hello: Hello
    setting: Setting
    base: BaseView
    watchdog: Watchdog
    gate: asyncio.Semaphore
    buffer: bytearray


def new_gate() -> asyncio.Semaphore:
    """Return the gate of one launcher."""
    return asyncio.Semaphore(_LAUNCHES_AT_ONCE)


def setting_of(hello: Hello, ceiling: Ceiling) -> Setting:
    """Return what plans depend on under this launcher."""
    names = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    hard = {n: resource.getrlimit(getattr(resource, n))[1] for n in names}
    return Setting(
        uid=POOL_INSIDE_UID if hello.as_root else os.geteuid(),
        gid=POOL_INSIDE_GID if hello.as_root else os.getegid(),
        has_cgroup=hello.cgroup != "none",
        life_ms_most=ceiling.life_ms,
        hard_limits={name.removeprefix("RLIMIT_"): most for name, most in hard.items()},
    )
