"""The daemon with an engine that starts commands directly: its front half without any sandbox.

Everything else is the real thing: sockets, policy, store, signals, and the processes themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import sys

from launcher.plan import Ceiling, Hello
from sandboxd.daemon import main
from sandboxd.errors import SetupFailed
from sandboxd.execution import Tell
from sandboxd.prepared import Prepared
from sandboxd.protocol import Event, Run, Stream


class DirectEngine:
    """Runs ``argv`` in the workspace, as it is. A command named ``broken`` fails to be set up."""

    launcher_restarts = 0

    def __init__(self, _: Ceiling) -> None:
        self.hello = Hello(
            pid=os.getpid(),
            cgroup="none",
            cgroup_reason="direct",
            landlock_abi=0,
            groups_retained=(),
            as_root=False,
        )
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self._cancelled: set[str] = set()

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        for run_id in self._running:
            self.signal(run_id, signal.SIGKILL)

    def signal(self, run_id: str, signum: int) -> bool:
        if run_id not in self._running:
            return False
        # Not send_signal(): it may reap the process, for which asyncio's own thread waits.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._running[run_id].pid, signum)
        return True

    def cancel(self, run_id: str) -> bool:
        self._cancelled.add(run_id)
        return self.signal(run_id, signal.SIGKILL)

    async def run(
        self,
        prepared: Prepared,
        *,
        run_id: str,
        proposal: str,
        grant: str,
        uid: int,
        stdin_fd: int | None,
        on_event: Tell,
    ) -> Run:
        try:
            if prepared.profile.name == "broken":
                raise SetupFailed("cannot set up", layer="test", step="none", errno=1)
            workspace = prepared.workspace
            process = await asyncio.create_subprocess_exec(
                *prepared.argv,
                executable=prepared.executable.real_path,
                cwd="/" if workspace is None else f"/proc/self/fd/{workspace.fd}",
                env=dict(pair.split("=", 1) for pair in prepared.environment),
                stdin=asyncio.subprocess.DEVNULL if stdin_fd is None else stdin_fd,
                stdout=asyncio.subprocess.PIPE,
                pass_fds=() if workspace is None else (workspace.fd,),
            )
        finally:
            prepared.close()
        self._running[run_id] = process
        await on_event(Event(kind="started", run=run_id, pid=process.pid))
        output = bytearray()
        assert process.stdout is not None
        while data := await process.stdout.read(1 << 15):
            output += data[: max(0, prepared.bounds.output_bytes - len(output))]
            event = Event(kind="output", run=run_id, stream="stdout", data=data.decode())
            await on_event(event)
        returncode = await process.wait()
        del self._running[run_id]
        await on_event(Event(kind="ended", run=run_id))
        record = Run(
            id=run_id,
            command=prepared.profile.name,
            status="cancelled" if run_id in self._cancelled else "exited",
            proposal=proposal,
            grant=grant,
            uid=uid,
            digest=prepared.digest,
            argv=prepared.argv,
            stdout=Stream.of(
                bytes(output), head_bytes=len(output), total_bytes=len(output), sha256=""
            ),
        )
        if returncode < 0:
            status = record.status if record.status == "cancelled" else "signaled"
            return dataclasses.replace(record, status=status, signal=-returncode)
        return dataclasses.replace(record, exit_code=returncode)


if __name__ == "__main__":
    sys.exit(main(make_engine=DirectEngine))
