"""Does every protection hold on this host, through the very path that clients use?

Each layer is shown by something allowed and something refused, in real runs of shipped profiles.
Where a refusal could have another cause, the same thing is done here, outside, as control.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from sandboxd.client import AdminClient, Client
from sandboxd.doctor import Row, daemon, examine_host
from sandboxd.errors import SandboxdError, SetupFailed
from sandboxd.protocol import Run

_PROBE_PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "doctor_probe.py")
_ENDLESS = "while True: pass"
_GREEDY = "b = bytearray()\nwhile True: b += bytes(1 << 20)"
_FORKING = """
import os, time
try:
    while True:
        if os.fork() == 0: time.sleep(60)
except BlockingIOError: print("refused")
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the probe is let loose on: a workspace, a sibling of it, two listeners of the host."""

    workspace: str
    outside: str
    port: int
    abstract: str


def examine() -> list[Row]:
    """Return all findings."""
    rows = examine_host()
    try:
        with AdminClient() as admin:
            rows += daemon(admin.status())
    except SandboxdError as fault:
        fix = "mend what fails above, then run sandboxctl doctor again"
        return [*rows, Row(name="daemon", verdict="fail", found=fault.message, fix=fix)]
    with surroundings() as around, Client() as client:
        return rows + _containment(client, around) + _limits(client, around) + _policy(client)


@contextmanager
def surroundings() -> Iterator[Surroundings]:
    """Make all that, and remove it afterwards."""
    with ExitStack() as stack:
        top = tempfile.mkdtemp(prefix="sandboxd-doctor-")
        stack.callback(shutil.rmtree, top)
        workspace = os.path.join(top, "workspace")
        os.mkdir(workspace)
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        unix = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        unix.bind("")  # autobind: an abstract name of the kernel's choice, unix(7)
        unix.listen()
        yield Surroundings(
            workspace=workspace,
            outside=os.path.join(top, "outside"),
            port=tcp.getsockname()[1],
            abstract=unix.getsockname()[1:].decode(),
        )


def _containment(client: Client, around: Surroundings) -> list[Row]:
    with open(_PROBE_PATH, encoding="utf-8") as file:
        probe = file.read()
    given = {
        "outside": around.outside,
        "port": around.port,
        "abstract": around.abstract,
        "pid": os.getpid(),
        "status": ["Seccomp", "NoNewPrivs", "CapEff", "CapBnd", "CapPrm", "CapAmb"],
    }
    try:
        run = client.run(
            "python", code=probe, workspace=around.workspace, input=json.dumps(given).encode()
        )
    except SandboxdError as fault:
        return [_broken(fault)]
    try:
        found = json.loads(run.stdout.bytes())
    except ValueError:
        return [Row(name="run", verdict="fail", found=_told(run), fix=_advice(run))]
    layers = run.effective.layers if run.effective is not None else ()
    degraded = run.effective.degraded if run.effective is not None else ()
    rows = [Row(name="run", verdict="ok", found=f"layers in force: {', '.join(layers)}")]
    if degraded:
        rows.append(Row(name="degraded", verdict="note", found=", ".join(degraded)))
    return rows + [claim.judge(found, around) for claim in CLAIMS]


@dataclass(frozen=True, slots=True)
class Claim:
    """What the probe must have found.

    ``outside`` does or looks at the same thing on the host and returns what is wrong there, else
    nothing: without it some rows would prove nothing.
    """

    name: str
    key: str
    wanted: Callable[[str], bool]
    layer: str
    outside: Callable[[Surroundings], str] = lambda _: ""

    def judge(self, found: dict[str, str], around: Surroundings) -> Row:
        """Compare what was found, inside and outside, with what must be."""
        seen = f"inside: {found.get(self.key, 'nothing')}"
        problem = self.outside(around)
        if problem or not self.wanted(str(found.get(self.key, ""))):
            seen += f"; outside: {problem}" if problem else ""
            fix = f"{self.layer} does not protect here: stop the daemon and report this"
            return Row(name=self.name, verdict="fail", found=seen, fix=fix)
        return Row(name=self.name, verdict="ok", found=seen)


def _refused(seen: str) -> bool:
    return seen.startswith("E")


def _tried(seen: str) -> bool:
    """Take any answer: a private /tmp may accept what must not arrive on the host."""
    return seen != ""


def _zero(seen: str) -> bool:
    return seen != "" and not seen.strip("0")


def _is(wanted: str) -> Callable[[str], bool]:
    return lambda seen: seen == wanted


def _is_written(around: Surroundings) -> str:
    try:
        with open(os.path.join(around.workspace, "inside"), encoding="ascii") as file:
            return "" if file.read() == "written" else "the file holds something else"
    except OSError as error:
        return f"the file cannot be read: {error.strerror}"


def _is_absent(around: Surroundings) -> str:
    """See that nothing came about on the host, where it could have."""
    try:
        with open(around.outside, "x", encoding="ascii"):
            os.unlink(around.outside)
    except OSError as error:
        return f"a file there cannot be made: {error.strerror}"
    return ""


def _port_answers(around: Surroundings) -> str:
    return _answers(socket.AF_INET, ("127.0.0.1", around.port))


def _abstract_answers(around: Surroundings) -> str:
    return _answers(socket.AF_UNIX, "\0" + around.abstract)


def _answers(family: int, address: tuple[str, int] | str) -> str:
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        try:
            sock.connect(address)
        except OSError as error:
            return f"nobody answers: {error.strerror}"
    return ""


CLAIMS = (
    Claim("write in the workspace", "write inside", _is("ok"), "the view", _is_written),
    Claim("no write beside it", "write outside", _tried, "the view", _is_absent),
    Claim("no write to the system", "write to the system", _refused, "the view"),
    Claim("a socket of its own", "own socket", _is("ok"), "the filter"),
    Claim("no port of the host", "host port", _refused, "the network namespace", _port_answers),
    Claim(
        "no abstract socket of the host", "host socket", _refused, "Landlock and the namespace",
        _abstract_answers,
    ),
    Claim("no ptrace", "ptrace", _refused, "the filter"),
    Claim("no process of the host", "kill the client", _refused, "the pid namespace"),
    Claim("own processes only", "processes", lambda seen: seen in {"1", "2"}, "the view's /proc"),
    Claim("seccomp is on", "Seccomp", _is("2"), "the filter"),
    Claim("no_new_privs is set", "NoNewPrivs", _is("1"), "no_new_privs"),
    *(
        Claim(f"{name} is empty", name, _zero, "dropping capabilities")
        for name in ("CapEff", "CapPrm", "CapBnd", "CapAmb")
    ),
)  # fmt: skip


def _limits(client: Client, around: Surroundings) -> list[Row]:
    """Let commands go past their limits of time, memory and processes."""
    trials: tuple[tuple[str, str, dict[str, int], float, Callable[[Run], str]], ...] = (
        ("limit of time", _ENDLESS, {}, 0.5, _time_was_over),
        ("limit of memory", _GREEDY, {"memory": 64 << 20}, 30, _memory_refused),
        ("limit of processes", _FORKING, {"pids": 16}, 30, _fork_refused),
    )
    rows = []
    for name, code, limits, timeout, held in trials:
        try:
            run = client.run(
                "python", code=code, workspace=around.workspace, limits=limits, timeout=timeout
            )
        except SandboxdError as fault:
            rows.append(_broken(fault))
            continue
        if seen := held(run):
            rows.append(Row(name=name, verdict="ok", found=seen))
        else:
            fix = "see the row cgroup"
            rows.append(Row(name=name, verdict="fail", found=_told(run), fix=fix))
    return rows


def _time_was_over(run: Run) -> str:
    return f"ended after {run.wall_ms:.0f} ms" if run.status == "timed_out" else ""


def _memory_refused(run: Run) -> str:
    if run.limit == "memory":
        return "ended at its limit"
    return "allocation refused" if "MemoryError" in run.stderr.text() else ""


def _fork_refused(run: Run) -> str:
    return "fork refused" if run.stdout.text() == "refused\n" else ""


def _policy(client: Client) -> list[Row]:
    """Ask for what no profile allows."""
    trials: tuple[tuple[str, str, dict[str, object], str], ...] = (
        ("no unknown command", "no-such-command", {}, "NOT_IN_ALLOWLIST"),
        ("no unknown argument", "true", {"unknown": 1}, "ARGUMENT_INVALID"),
    )
    rows = []
    for name, command, arguments, reason in trials:
        try:
            verdict = client.check(command, arguments=arguments)
        except SandboxdError as fault:
            rows.append(_broken(fault))
            continue
        reasons = {denial.reason for denial in verdict.denials}
        found = f"{verdict.decision} {', '.join(sorted(reasons))}"
        if verdict.decision == "deny" and reason in reasons:
            rows.append(Row(name=name, verdict="ok", found=found))
        else:
            fix = "the policy does not protect: stop the daemon and report this"
            rows.append(Row(name=name, verdict="fail", found=found, fix=fix))
    return rows


def _broken(fault: SandboxdError) -> Row:
    where = f"{fault.layer}, {fault.step}" if isinstance(fault, SetupFailed) else "daemon.log"
    return Row(name="run", verdict="fail", found=fault.message, fix=f"see {where}")


def _told(run: Run) -> str:
    told = run.denials[0].message if run.denials else run.stderr.text()[-300:].strip()
    return f"{run.status}, exit status {run.exit_status}" + (f": {told}" if told else "")


def _advice(run: Run) -> str:
    return run.denials[0].advice if run.denials else "the shipped profile python must be usable"
