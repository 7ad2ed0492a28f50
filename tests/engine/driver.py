"""How do tests drive the real engine? As the daemon does, with requests prepared by hand."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self, TypeVar

from launcher import paths
from launcher.plan import Ceiling, Root
from sandboxd import executables
from sandboxd.engine import Engine
from sandboxd.prepared import Bounds, OpenedExecutable, Prepared, Workspace
from sandboxd.profile import Profile
from sandboxd.profile_sections import ArgvSection, ExecutableSection, Passthrough
from sandboxd.protocol import Event, Request, Run

T = TypeVar("T")
PYTHON = "/usr/bin/python3"
CEILING = Ceiling(
    roots=(Root(path="/", writable=True),),
    denied=("/proc", "/sys", "/run"),
    devices=(),
    memory_bytes=1 << 34,
    pids=1024,
    life_ms=600_000,
    tmpfs_bytes=1 << 32,
    sandboxes=64,
)
BOUNDS = Bounds(
    wall_ms=30_000,
    grace_ms=1000,
    cpu_ms=20_000,
    memory_bytes=256 << 20,
    pids=32,
    files=256,
    file_size_bytes=64 << 20,
    output_bytes=64 << 10,
    output_keep="head+tail",
    output_total_bytes=None,
    concurrency=8,
)


def bounds(**changes: Any) -> Bounds:
    return replace(BOUNDS, **changes)


def prepare(
    argv: Sequence[str],
    *,
    workspace: str | None = None,
    access: Literal["read", "write"] = "write",
    environment: Sequence[str] = (),
    limits: Bounds = BOUNDS,
    **sections: Any,
) -> Prepared:
    """Prepare a request that runs ``argv[0]``, a program of the host."""
    pinned, fd = executables.open_pinned(argv[0])
    program = pinned.interpreter or pinned.file
    script = pinned.file if pinned.interpreter else None
    profile = Profile(
        name="test",
        executable=ExecutableSection(path=argv[0]),
        argv=ArgvSection(passthrough=Passthrough(allow=("x",))),
        source="test.toml",
        digest="0" * 64,
        **sections,
    )
    return Prepared(
        profile=profile,
        request=Request(command="test", reason="a test"),
        argv=(program.path, *((script.path,) if script else ()), *argv[1:]),
        environment=tuple(environment),
        executable=OpenedExecutable(
            fd=fd,
            path=program.path,
            real_path=program.real_path,
            identity=program.identity,
            script_path=script.path if script else None,
            script_real_path=script.real_path if script else None,
            script_identity=script.identity if script else None,
        ),
        workspace=_open_workspace(workspace, access) if workspace else None,
        targets=(),
        bounds=limits,
        digest="d" * 64,
    )


def _open_workspace(path: str, access: Literal["read", "write"]) -> Workspace:
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    return Workspace(fd=fd, path=paths.name_of(fd), identity=paths.identity(fd), access=access)


@dataclass(slots=True)
class Told:
    """Everything a run's client was told; ``act`` is called on each event."""

    events: list[Event] = field(default_factory=list)
    act: Callable[[Event], Awaitable[object] | None] | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, event: Event) -> None:
        self.events.append(event)
        self.changed.set()
        if self.act is not None and (waits := self.act(event)) is not None:
            await waits

    def output(self, stream: str = "stdout") -> bytes:
        return b"".join(e.bytes() for e in self.events if e.stream == stream)

    async def printed(self, wanted: bytes) -> None:
        """Wait until the command has printed ``wanted``."""
        while wanted not in self.output():
            self.changed.clear()
            await self.changed.wait()

    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]


class Bench:
    """An engine for one test, and its runs."""

    def __init__(self) -> None:
        self.engine = Engine(CEILING)
        self._count = 0

    async def __aenter__(self) -> Self:
        await self.engine.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.engine.stop()

    async def run(
        self,
        argv: Sequence[str],
        *,
        told: Told | None = None,
        stdin_fd: int | None = None,
        **request: Any,
    ) -> Run:
        return await self.start(prepare(argv, **request), told or Told(), stdin_fd=stdin_fd)[1]

    def start(
        self, prepared: Prepared, told: Told, *, stdin_fd: int | None = None
    ) -> tuple[str, asyncio.Task[Run]]:
        """Start a run of its own name; return the name and the task."""
        self._count += 1
        name = f"run_{self._count}"
        work = self.engine.run(
            prepared,
            run_id=name,
            proposal="prop_1",
            grant="grant_1",
            uid=os.getuid(),
            stdin_fd=stdin_fd,
            on_event=told,
        )
        return name, asyncio.ensure_future(work)

    async def python(self, program: str, *arguments: str, **request: Any) -> Run:
        return await self.run([PYTHON, "-I", "-S", "-c", program, *arguments], **request)

    async def shell(self, script: str, **request: Any) -> Run:
        return await self.run(["/bin/sh", "-c", script], **request)


def with_bench(test: Callable[[Bench], Coroutine[object, object, T]]) -> T:
    """Run ``test`` in an event loop with an engine that is stopped afterwards."""

    async def body() -> T:
        async with Bench() as bench:
            return await asyncio.wait_for(test(bench), 60)

    return asyncio.run(body())
