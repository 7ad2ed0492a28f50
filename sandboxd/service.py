"""What does the daemon consist of, in which order does it come up, and how does it end?

The launcher comes first, before any profile is read or anybody can connect: it is born into a
process that holds nothing yet. Sockets come last, so whoever can connect is served.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import secrets
import signal
import socket
import time
from collections.abc import Callable
from typing import Protocol

from asyncvarlink import VarlinkInterfaceRegistry
from asyncvarlink.serviceinterface import VarlinkServiceInterface

from launcher.plan import Hello
from sandboxd import __version__, sockets
from sandboxd.admin import Admin
from sandboxd.agent import Agent
from sandboxd.allowlist import Allowlist
from sandboxd.clock import now_ms
from sandboxd.connection import Deadlines
from sandboxd.endpoints import Endpoints
from sandboxd.errors import ProfileError
from sandboxd.execution import Engine
from sandboxd.log import log
from sandboxd.proposals import Proposals
from sandboxd.protocol import DaemonStatus
from sandboxd.runs import Runs
from sandboxd.server import ConnectionLimits, Server
from sandboxd.settings import Settings, own_paths
from sandboxd.store import Store
from sandboxd.turnstile import Turnstile
from sandboxd.varlink import FaultInterface, Interface

_DRAIN_S = 2.0


class StartedEngine(Engine, Protocol):
    """An engine with its own lifetime."""

    launcher_restarts: int

    @property
    def hello(self) -> Hello:
        """What the launcher said of itself. Raises Unavailable while there is none."""

    async def start(self) -> None:
        """Start the launcher."""

    async def stop(self) -> None:
        """End the launcher, and with it every sandbox."""


class Service:
    """One daemon. The lock is held and the directories are ours when this is made."""

    def __init__(self, endpoints: Endpoints, settings: Settings, engine: StartedEngine) -> None:
        self._endpoints = endpoints
        self._settings = settings
        self._engine = engine
        self._started_at = now_ms()
        self._ending: asyncio.Event

    async def serve(self, ready: Callable[[], None]) -> None:
        """Come up, call ``ready``, serve until told to end, and clean up."""
        self._ending = asyncio.Event()
        async with contextlib.AsyncExitStack() as stack:
            asyncio.get_running_loop().set_exception_handler(_log_internal_error)
            await self._engine.start()
            stack.push_async_callback(self._engine.stop)
            settings, endpoints = self._settings, self._endpoints
            self._allowlist = Allowlist(endpoints.profile_dirs, own_paths(endpoints))
            store = self._open_store()
            stack.callback(store.close)
            self._proposals = Proposals(
                store,
                self._allowlist,
                pending_per_uid=settings.proposals.pending_per_uid,
                open_per_uid=settings.proposals.open_per_uid,
            )
            turnstile = Turnstile(
                places=settings.runs.max_running,
                queued_per_uid=settings.runs.queued_per_uid,
                queued=settings.runs.max_queued,
            )
            self._runs = Runs(self._engine, store, self._proposals, turnstile)
            self._server = self._make_server()
            stack.push_async_callback(self._server.close)
            self._listen(stack)
            self._handle_signals()
            ready()
            log("serving", pid=os.getpid(), profiles=len(self._allowlist))
            await self._until_ending()
            log("ending", running=len(self._runs))
            await self._wind_down()
        log("ended")

    def _open_store(self) -> Store:
        store = Store(
            self._endpoints.state_dir,
            boot=secrets.token_hex(8),
            kept_proposals=self._settings.proposals.kept_per_uid,
            kept_runs=self._settings.runs.kept,
        )
        lost, expired = store.begin_life()
        if lost or expired:
            log("settled", lost=lost, expired=expired)
        return store

    def _make_server(self) -> Server:
        """Bound connections also by the descriptors there are: a run needs some of them."""
        connections = self._settings.connections
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        total = max(4, min(connections.total, soft // 4))
        return Server(
            ConnectionLimits(total=total, per_uid=min(connections.per_uid, total)),
            Deadlines(
                idle_s=connections.idle_s,
                frame_s=connections.frame_s,
                stall_s=connections.stall_s,
            ),
        )

    def _listen(self, stack: contextlib.AsyncExitStack) -> None:
        passed = sockets.activated()
        interfaces = {
            "agent": (self._endpoints.agent_socket, Agent(self._proposals, self._runs)),
            "admin": (
                self._endpoints.admin_socket,
                Admin(self._proposals, self._runs, self._status),
            ),
        }
        for name, (path, interface) in interfaces.items():
            listener = passed.get(name) or self._bind(path, stack)
            self._server.add(listener, _registry(interface))

    @staticmethod
    def _bind(path: str, stack: contextlib.AsyncExitStack) -> socket.socket:
        listener = sockets.listen(path)
        stack.callback(sockets.remove, path)
        return listener

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, self._ending.set)
        loop.add_signal_handler(signal.SIGHUP, self._reload)

    def _reload(self) -> None:
        with contextlib.suppress(ProfileError):  # it is in the log, and nothing has changed
            self._allowlist.reload()

    async def _until_ending(self) -> None:
        idle_exit_s = self._settings.idle_exit_s or None
        while idle_exit_s is None or (left_s := self._idle_left_s(idle_exit_s)) > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s if idle_exit_s else None):
                    await self._ending.wait()
                    return
        log("idle")

    def _idle_left_s(self, idle_exit_s: float) -> float:
        """How long to wait before looking again whether anybody needs this daemon."""
        if self._server.idle_since is None or self._proposals.open_count or len(self._runs):
            return idle_exit_s
        return self._server.idle_since + idle_exit_s - time.monotonic()

    async def _wind_down(self) -> None:
        """Let nobody in, end what runs, and let everybody hear of it, within the grace."""
        self._server.stop_accepting()
        try:
            async with asyncio.timeout(self._settings.grace_s):
                await self._runs.stop()
        except TimeoutError:
            log("grace_is_over", running=len(self._runs))
        self._proposals.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_S):
                await self._server.quiet.wait()

    def _status(self) -> DaemonStatus:
        hello = self._engine.hello
        return DaemonStatus(
            version=__version__,
            pid=os.getpid(),
            uid=os.geteuid(),
            mode="root" if os.geteuid() == 0 else "user",
            started_at=self._started_at,
            running=len(self._runs),
            launcher_pid=hello.pid,
            launcher_restarts=self._engine.launcher_restarts,
            cgroup=hello.cgroup,
            cgroup_reason=hello.cgroup_reason,
            landlock_abi=hello.landlock_abi,
            groups_retained=hello.groups_retained,
            profiles=len(self._allowlist),
            state_dir=self._endpoints.state_dir,
            profile_dirs=self._endpoints.profile_dirs,
        )


def _log_internal_error(_loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    log("internal_error", error=repr(context.get("exception")), where=context["message"])


def _registry(interface: Interface) -> VarlinkInterfaceRegistry:
    registry = VarlinkInterfaceRegistry()
    registry.register_interface(interface)
    registry.register_interface(FaultInterface())
    registry.register_interface(
        VarlinkServiceInterface("sandboxd", "sandboxd", __version__, "", registry)
    )
    return registry
