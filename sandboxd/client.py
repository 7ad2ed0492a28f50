"""How does a Python program have commands run, without starting a process itself?

    with Client() as client:
        run = client.run("rg", pattern="main", paths=["src"], workspace=".", timeout=10)
        print(run.stdout.text())

What became of a request is a value (`Run`); only what keeps it from being judged or carried out is
an exception (`sandboxd.errors`). A client may be shared by threads. Leaving a call by an exception
such as KeyboardInterrupt closes its connection, and the daemon cancels the run. If no daemon runs,
one is started for this user, unless ``SANDBOXD_NO_AUTOSTART`` is set.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from sandboxd import calls
from sandboxd.lines import Lines, where
from sandboxd.messages import ReloadReply, Selection
from sandboxd.outgoing import Outgoing, feed_of, request_for, seconds_of
from sandboxd.protocol import CommandInfo, DaemonStatus, Event, Proposal, Run, Verdict


class Client:
    """Talks to the daemon as an agent. ``socket_path`` names another daemon than the default."""

    def __init__(self, socket_path: str | None = None) -> None:
        self._lines = Lines(*where(socket_path, "agent"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections, for good: a later call is a `UsageError`."""
        self._lines.close()

    def run(  # noqa: PLR0913  # reads like subprocess.run
        self,
        command: str,
        /,
        *,
        arguments: Mapping[str, object] | None = None,
        workspace: str | os.PathLike[str] | int | None = None,
        timeout: float | str | None = None,
        limits: Mapping[str, int | str] | None = None,
        input: str | bytes | int | None = None,  # noqa: A002  # the name that subprocess.run has
        env: Mapping[str, str] | None = None,
        reason: str = "",
        idempotency_key: str | None = None,
        check: bool = False,
        on_event: Callable[[Event], None] | None = None,
        **named: object,
    ) -> Run:
        """Have ``command`` judged and, if it is allowed, run; return what became of it.

        Further keyword arguments are the command's arguments; ``arguments`` takes those whose
        names clash. ``workspace`` is a directory, as path or descriptor. ``timeout`` (seconds, or
        "500ms") and ``limits`` (memory and output: bytes, or "64MiB"; pids) only tighten the
        profile. ``input`` is given to the command: bytes, a text as UTF-8, or a descriptor copied
        to its end. ``on_event`` is called as things happen; output events hold what the command
        prints.

        Raises:
            SandboxdError: the request could not be judged or carried out.
            RunFailed: ``check`` is true and it did not end with exit status 0.

        """
        request = request_for(
            command,
            {**(arguments or {}), **named},
            timeout=timeout,
            limits=limits,
            env=env,
            reason=reason,
            idempotency_key=idempotency_key,
        )
        with Outgoing.open(request, workspace=workspace, source=input) as out:
            done = self._lines.call(calls.run(out, more=on_event is not None), on_event)
        return done.check() if check else done

    def propose(  # noqa: PLR0913  # as run
        self,
        command: str,
        /,
        *,
        arguments: Mapping[str, object] | None = None,
        workspace: str | os.PathLike[str] | int | None = None,
        timeout: float | str | None = None,
        limits: Mapping[str, int | str] | None = None,
        env: Mapping[str, str] | None = None,
        reason: str = "",
        idempotency_key: str | None = None,
        **named: object,
    ) -> Proposal:
        """Have a request judged and kept, to be executed later. Arguments as for `run`."""
        request = request_for(
            command,
            {**(arguments or {}), **named},
            timeout=timeout,
            limits=limits,
            env=env,
            reason=reason,
            idempotency_key=idempotency_key,
        )
        with Outgoing.open(request, workspace=workspace) as out:
            return self._lines.call(calls.propose(out))

    def check(  # noqa: PLR0913  # as run
        self,
        command: str,
        /,
        *,
        arguments: Mapping[str, object] | None = None,
        workspace: str | os.PathLike[str] | int | None = None,
        timeout: float | str | None = None,
        limits: Mapping[str, int | str] | None = None,
        env: Mapping[str, str] | None = None,
        **named: object,
    ) -> Verdict:
        """Tell what would become of a request, and by which rule. Arguments as for `run`."""
        request = request_for(
            command, {**(arguments or {}), **named}, timeout=timeout, limits=limits, env=env
        )
        with Outgoing.open(request, workspace=workspace) as out:
            return self._lines.call(calls.check(out))

    def execute(
        self,
        proposal: str,
        /,
        *,
        input: str | bytes | int | None = None,  # noqa: A002  # as run
        check: bool = False,
        on_event: Callable[[Event], None] | None = None,
    ) -> Run:
        """Carry out a proposal that is ready, once."""
        with feed_of(input) as feed:
            call = calls.execute(proposal, feed, more=on_event is not None)
            done = self._lines.call(call, on_event)
        return done.check() if check else done

    def wait(self, proposal: str, /, *, timeout: float | str | None = None) -> Proposal:
        """Wait until a proposal is no longer pending, or for ``timeout`` (as for `run`)."""
        seconds = None if timeout is None else seconds_of(timeout)
        return self._lines.call(calls.wait_proposal(proposal, seconds))

    def cancel(self, proposal: str, /) -> Proposal:
        """Take a proposal back."""
        return self._lines.call(calls.cancel_proposal(proposal))

    def get_proposal(self, proposal: str, /) -> Proposal:
        """Return a proposal as it stands."""
        return self._lines.call(calls.get_proposal(proposal))

    def get_run(self, run: str, /) -> Run:
        """Return the record of a run."""
        return self._lines.call(calls.get_run(run))

    def signal(self, run: str, number: int, /) -> None:
        """Send a signal to a running command; possible from ``on_event`` and signal handlers."""
        self._lines.call(calls.signal(run, number))

    def commands(self) -> tuple[CommandInfo, ...]:
        """List the commands of the allowlist, each with the JSON Schema of its arguments."""
        return self._lines.call(calls.commands())


class AdminClient:
    """Talks to the daemon as approver and administrator, on ``admin.sock``."""

    def __init__(self, socket_path: str | None = None) -> None:
        self._lines = Lines(*where(socket_path, "admin"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections, for good: a later call is a `UsageError`."""
        self._lines.close()

    def pending(self) -> tuple[Proposal, ...]:
        """List the proposals that wait for an approver."""
        return self._lines.call(calls.pending())

    def approve(self, proposal: str, /) -> Proposal:
        """Allow a pending proposal."""
        return self._lines.call(calls.approve(proposal))

    def reject(self, proposal: str, /, message: str = "") -> Proposal:
        """Refuse a pending proposal; the agent is told ``message``."""
        return self._lines.call(calls.reject(proposal, message))

    def profiles(self) -> tuple[CommandInfo, ...]:
        """List the allowlist, with what cannot be used and why."""
        return self._lines.call(calls.profiles())

    def reload(self) -> ReloadReply:
        """Have the profiles read again."""
        return self._lines.call(calls.reload())

    def runs(self, *, limit: int = 50, active: bool = False) -> tuple[Run, ...]:
        """List runs, the latest first, without output; if ``active`` those not yet ended."""
        return self._lines.call(calls.runs(Selection(limit=limit, active=active)))

    def kill(self, run: str, /) -> None:
        """End a run now, whoever asked for it."""
        self._lines.call(calls.kill(run))

    def status(self) -> DaemonStatus:
        """Tell how the daemon is."""
        return self._lines.call(calls.status())
