"""How long does a contained /bin/true take beside posix_spawn and bwrap, on this machine, now?

All ways are run in turn, round by round, so that a busy moment hits all of them. What counts are
ratios of medians of one run; the absolute times say little on a shared machine.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from sandboxd.client import Client

BWRAP = [
    *("--unshare-all", "--cap-drop", "ALL", "--new-session", "--die-with-parent", "--clearenv"),
    *("--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib"),
    *("--symlink", "usr/lib64", "/lib64", "--ro-bind", "/etc", "/etc"),
    *("--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"),  # noqa: S108  # inside
]
TRUE = "/bin/true"


def spawn() -> None:
    """Start it with nothing around it, and wait."""
    pid = os.posix_spawn(TRUE, [TRUE], {})
    os.waitpid(pid, 0)


def bwrap() -> None:
    """Start it under bubblewrap with comparable isolation, from this same Python."""
    subprocess.run(["bwrap", *BWRAP, "--", TRUE], check=True)


def through_daemon(client: Client) -> Callable[[], None]:
    """Return a call through the client, the socket, the daemon and the launcher."""

    def run() -> None:
        done = client.run("true")
        if not done.ok:
            sys.exit(f"the contained run failed: {done}")
        SETUP.append(done.setup_ms)
        WALL.append(done.wall_ms)

    return run


SETUP: list[float] = []
WALL: list[float] = []


def measure(ways: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Return the times of each way, in ms, after one round that does not count."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            if number:
                times[name].append((time.perf_counter() - start) * 1000)
    return times


def report(times: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Return median, 95th percentile and launches per second of each way, and ratios."""
    medians = {name: statistics.median(values) for name, values in times.items()}
    rows = {}
    for name, values in times.items():
        rows[name] = {
            "p50_ms": round(medians[name], 3),
            "p95_ms": round(statistics.quantiles(values, n=20)[18], 3),
            "per_second": round(1000 / statistics.mean(values), 1),
        }
        for peer in ("posix_spawn", "bwrap"):
            if peer in medians:
                rows[name][f"of_{peer}"] = round(medians[name] / medians[peer], 3)
    return rows


def main() -> None:
    """Run the benchmark with a daemon of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    place = tempfile.mkdtemp(prefix="sandboxd-bench-")
    os.environ["SANDBOXD_RUNTIME_DIR"] = os.path.join(place, "run")
    os.environ["SANDBOXD_STATE_DIR"] = os.path.join(place, "state")
    try:
        with Client() as client:
            ways: dict[str, Callable[[], None]] = {"posix_spawn": spawn}
            if shutil.which("bwrap"):
                ways["bwrap"] = bwrap
            ways["sandboxd"] = through_daemon(client)
            rows = report(measure(ways, options.rounds))
            rows["sandboxd"]["setup_p50_ms"] = round(statistics.median(SETUP), 3)
            rows["sandboxd"]["command_p50_ms"] = round(statistics.median(WALL), 3)
    finally:
        stop_daemon(place)
        shutil.rmtree(place, ignore_errors=True)
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    for name, row in rows.items():
        print(f"{name:12}", "  ".join(f"{key} {value:>8}" for key, value in row.items()))


def stop_daemon(place: str) -> None:
    """End the daemon that was started for this run, by the pid its lock names."""
    import signal

    try:
        with open(os.path.join(place, "run", "daemon.lock"), encoding="ascii") as file:
            pid = int(file.read())
        pidfd = os.pidfd_open(pid)
    except (OSError, ValueError):
        return
    signal.pidfd_send_signal(pidfd, signal.SIGTERM)
    import select

    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    poll.poll(10_000)
    os.close(pidfd)


if __name__ == "__main__":
    main()
