"""How does a person start the daemon by hand, ask whether it protects, and tell its version?"""

from __future__ import annotations

import argparse
import os

import sandboxd
from sandboxd import autostart, doctor_report
from sandboxd.cli.terminal import complain, put_json, put_line, put_table
from sandboxd.doctor import Row
from sandboxd.endpoints import default_endpoints
from sandboxd.errors import Unavailable

_FAILED = 1


def doctor(options: argparse.Namespace) -> int:
    """Prove each protection; the status is 1 if one is missing."""
    rows = doctor_report.examine()
    failed = [row for row in rows if row.verdict == "fail"]
    if options.json:
        put_json({"ok": not failed, "rows": rows})
        return _FAILED if failed else 0
    put_table([(row.verdict, row.name, row.found) for row in rows])
    for row in rows:
        if row.fix:
            put_line(f"{row.name}: {row.fix}")
    put_line(_conclusion(rows))
    return _FAILED if failed else 0


def _conclusion(rows: list[Row]) -> str:
    failed = sum(row.verdict == "fail" for row in rows)
    if failed:
        return f"{failed} of {len(rows)} fail"
    degraded = [row.found for row in rows if row.name == "degraded"]
    return "; degraded: ".join(["every protection is proven", *degraded])


def serve(options: argparse.Namespace) -> int:
    """Become the daemon, in the foreground; say first what will keep it from starting."""
    elsewhere = any(word.startswith("--r") for word in options.options)  # argparse abbreviates
    pid = None if elsewhere else autostart.holder(default_endpoints())
    if pid is not None:
        complain(f"cannot serve here: a daemon runs already, pid {pid}; `sandboxctl stop` ends it")
    argv = autostart.daemon_argv("--foreground", *options.options)
    try:
        os.execv(argv[0], argv)  # noqa: S606  # no shell is what is wanted
    except OSError as error:
        raise Unavailable(f"cannot execute {argv[0]}: {error.strerror}") from None


def stop(options: argparse.Namespace) -> int:
    """End the running daemon, if there is one."""
    pid = autostart.stop_running(default_endpoints())
    if options.json:
        put_json({"stopped": pid})
    else:
        put_line("no daemon runs" if pid is None else f"the daemon, pid {pid}, has ended")
    return 0


def version(options: argparse.Namespace) -> int:
    """Tell the version of this program."""
    if options.json:
        put_json({"version": sandboxd.__version__})
    else:
        put_line(f"sandboxctl {sandboxd.__version__}")
    return 0
