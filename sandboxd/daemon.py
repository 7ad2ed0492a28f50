"""How is the daemon started, and with what status does it end?

0: it served and was told to end. 1: it could not start, standard error says why. 3: another one
runs already, so there is nothing to do.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Callable

from launcher.plan import Ceiling
from sandboxd import settings as settings_file
from sandboxd import sockets, startup
from sandboxd.endpoints import Endpoints, default_endpoints
from sandboxd.errors import Conflict, SandboxdError
from sandboxd.log import log
from sandboxd.service import Service, StartedEngine
from sandboxd.settings import Settings

_FAILED = 1
_RUNS_ALREADY = 3


def main(
    arguments: list[str] | None = None,
    make_engine: Callable[[Ceiling], StartedEngine] | None = None,
) -> int:
    """Run the daemon; returns its exit status."""
    options = _parse(arguments)
    writer: int | None = None
    try:
        endpoints = _endpoints(options)
        sockets.own_directory(endpoints.state_dir)
        if not options.foreground:
            writer = startup.detach(endpoints.state_dir)
        startup.clean_process(passed_descriptors=sockets.activated_count(), keep=writer)
        settings = _settings(options)
        locks = _lock(endpoints)
        engine = (make_engine or _engine)(settings.ceiling(endpoints))
        asyncio.run(_serve(Service(endpoints, settings, engine), writer))
    except SandboxdError as error:
        status = _RUNS_ALREADY if isinstance(error, Conflict) else _FAILED
        log("cannot_start", problem=error.message)
        startup.report(writer, status)
        return status
    del locks  # held until here
    return 0


def _engine(ceiling: Ceiling) -> StartedEngine:
    from sandboxd.engine import Engine

    return Engine(ceiling)


async def _serve(service: Service, writer: int | None) -> None:
    def ready() -> None:
        startup.report(writer, 0)
        startup.notify("READY=1")

    await service.serve(ready)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="sandboxd", description="Run the sandbox daemon.")
    parser.add_argument(
        "--foreground", action="store_true", help="stay, and log to standard error"
    )
    parser.add_argument("--runtime-dir", metavar="DIR", help="where the sockets are")
    parser.add_argument("--state-dir", metavar="DIR", help="where proposals and runs are kept")
    parser.add_argument(
        "--profiles", metavar="DIR", action="append", help="read profiles here (repeatable)"
    )
    parser.add_argument("--config", metavar="FILE", help="read these settings")
    parser.add_argument(
        "--idle-exit", metavar="SECONDS", type=float, help="end when not needed for so long"
    )
    return parser.parse_args(arguments)


def _endpoints(options: argparse.Namespace) -> Endpoints:
    found = default_endpoints()
    directories = options.profiles or found.profile_dirs
    return Endpoints(
        runtime_dir=os.path.abspath(options.runtime_dir or found.runtime_dir),
        state_dir=os.path.abspath(options.state_dir or found.state_dir),
        profile_dirs=tuple(map(os.path.abspath, directories)),
    )


def _settings(options: argparse.Namespace) -> Settings:
    loaded = settings_file.load(options.config)
    if options.idle_exit is not None:
        loaded = loaded.model_copy(update={"idle_exit_s": options.idle_exit})
    return loaded


def _lock(endpoints: Endpoints) -> tuple[int, ...]:
    """Lock both directories: a second daemon must share neither sockets nor state."""
    sockets.own_directory(endpoints.runtime_dir)
    state_lock = os.path.join(endpoints.state_dir, "state.lock")
    return sockets.lock(endpoints.lock_path), sockets.lock(state_lock)


if __name__ == "__main__":
    sys.exit(main())
