"""How does the daemon hold one sandbox: ask for it, speak with its init, and end it?

The daemon's end of one sandbox from `Launch` to `Gone`. What it is for is `sandboxd.run`'s affair.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress

from launcher import channel
from launcher.plan import (
    Created,
    Destroy,
    Exited,
    Failed,
    Forward,
    Gone,
    Hello,
    Launch,
    Ready,
    Refused,
    Start,
    Started,
)
from sandboxd.link import Link
from sandboxd.planner import Planned

FromLauncher = Created | Refused | Failed | Gone
FromInit = Ready | Started | Failed | Exited


class Sandbox:
    """One sandbox, as long as it may exist. ``on_end`` is called when init's channel has ended."""

    def __init__(
        self,
        name: str,
        launcher: Link[FromLauncher | Hello],
        on_message: Callable[[FromInit], None],
        on_end: Callable[[Exception | None], None],
    ) -> None:
        self._name = name
        self._launcher = launcher
        self._on_message = on_message
        self._on_end = on_end
        self._init: Link[FromInit] | None = None
        self._pidfd = -1
        self._released = False
        self.exists = False  # from the request on, until the launcher says that it is gone

    def launch(self, planned: Planned, stdio: Sequence[int]) -> None:
        """Ask for it and queue its command at once, without waiting in between."""
        ours, inits = channel.pair()
        with inits:
            self._init = Link(ours, _receive, self._on_init, self._on_end)
            launch = Launch(plan=planned.plan)
            self._launcher.send(launch, [inits.fileno(), *planned.fds])
        self._init.send(Start(command=planned.command), stdio)
        self.exists = True

    def created(self, fds: list[int]) -> None:
        """Take the pidfd that comes with `Created`."""
        if self._released or len(fds) != 1:
            channel.close_all(fds)
        else:
            self._pidfd = fds[0]

    def forward(self, command: str, signum: int, *, everyone: bool = False) -> None:
        """Have init send a signal."""
        if self._init is not None:
            self._init.send(Forward(command=command, signal=signum, everyone=everyone))

    def read(self) -> None:
        """Take in now all that init has said."""
        if self._init is not None:
            self._init.read()

    def hang_up(self) -> None:
        """Close init's channel: it ends, and everything inside with it."""
        if self._init is not None:
            self._init.close()

    def destroy(self) -> None:
        """End it now: SIGKILL to init by pidfd, and by the launcher's hand too."""
        if not self.exists:
            return
        if self._pidfd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        self._launcher.send(Destroy(sandbox=self._name))

    def release(self) -> None:
        """Close what is held of it. Calling it again is harmless."""
        self._released = True
        self.hang_up()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1

    def _on_init(self, message: FromInit, fds: list[int]) -> None:
        channel.close_all(fds)  # init has none to give
        self._on_message(message)


def _receive(end: socket.socket) -> tuple[FromInit, list[int]] | None:
    return channel.receive(end, Ready, Started, Failed, Exited)
