"""What does the record of a run say that was started?

Pure: what was asked, what launcher and init reported, and what was captured become one `Run`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from launcher.plan import CgroupUsage, Created, Exited, Gone, Hello, Ready
from sandboxd.errors import SetupFailed
from sandboxd.outcome import Cause, Ending, Outcome, outcome_of
from sandboxd.planner import cpu_seconds
from sandboxd.prepared import Prepared
from sandboxd.protocol import Effective, Executable, Run, Stream, Usage

LAYERS = (
    *("user_ns", "mount_ns", "pid_ns", "network_ns", "ipc_ns", "uts_ns", "cgroup_ns"),
    *("capabilities", "no_new_privs", "landlock", "seccomp"),
)
_LIMITS = {
    "v1": ("cgroup-v1-memory", "cgroup-v1-pids", "rlimits", "watchdog"),
    "v2": ("cgroup-v2", "rlimits", "watchdog"),
    "none": ("rlimits", "watchdog"),
}
_LAYER_OF_STEP = {
    "create the cgroup": "cgroup",
    "join the cgroup": "cgroup",
    "map and take ids": "user_ns",
    "clone3": "namespaces",
    "forbid nested namespaces": "namespaces",
    "bring up lo": "network_ns",
    "set the host name": "uts_ns",
    "make the Landlock ruleset": "landlock",
    "restrict with Landlock": "landlock",
    "drop capabilities": "capabilities",
    "give up privileges": "capabilities",
    "set no_new_privs": "no_new_privs",
    "load the system-call filter": "seccomp",
    "set rlimits": "rlimits",
    "open the executable": "executable",
    "execveat": "executable",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What the daemon knows of a run beside the request. ``stdin_fd`` stays the daemon's."""

    run_id: str
    proposal: str
    grant: str
    uid: int
    stdin_fd: int | None


@dataclass(slots=True, kw_only=True)
class Facts:
    """What became known of a run so far; times are the event loop's, in seconds."""

    order: Order
    hello: Hello
    created_at: int
    launched_at: float = 0
    started_at: float | None = None
    ended_at: float = 0
    lowered: tuple[str, ...] = ()
    created: Created | None = None
    ready: Ready | None = None
    exited: Exited | None = None
    gone: Gone | None = None
    cause: Cause | None = None

    @property
    def cgroup_usage(self) -> CgroupUsage | None:
        """The last word on the cgroup's counters."""
        last = self.gone or self.exited
        return last.usage if last is not None else None


def setup_failed(step: str, errno: int, detail: str, *, layer: str | None = None) -> SetupFailed:
    """Describe a step of the set-up that failed."""
    return SetupFailed(
        f"cannot {step}: {detail}",
        layer=layer or _LAYER_OF_STEP.get(step, "view"),
        step=step,
        errno=errno,
    )


def run_of(prepared: Prepared, facts: Facts, streams: Sequence[Stream]) -> Run:
    """Make the record; ``streams`` are standard output and error, or none."""
    request, order, workspace = prepared.request, facts.order, prepared.workspace
    stdout, stderr = streams or (Stream(), Stream())
    outcome = outcome_of(_ending(prepared, facts))
    began = facts.launched_at
    started = facts.started_at if facts.started_at is not None else facts.ended_at
    return Run(
        id=order.run_id,
        command=prepared.profile.name,
        status=outcome.status,
        proposal=order.proposal,
        grant=order.grant,
        digest=prepared.digest,
        exit_code=outcome.exit_code,
        signal=outcome.signal,
        limit=outcome.limit,
        stdout=stdout,
        stderr=stderr,
        created_at=facts.created_at,
        setup_ms=round((started - began) * 1000, 3),
        wall_ms=round((facts.ended_at - started) * 1000, 3),
        usage=_usage(facts, outcome),
        effective=_effective(prepared, facts),
        executable=Executable(
            path=prepared.executable.path,
            dev=prepared.executable.identity.dev,
            ino=prepared.executable.identity.ino,
            sha256=prepared.executable.sha256,
        ),
        argv=prepared.argv,
        workspace=workspace.path if workspace is not None else "",
        reason=request.reason,
        uid=order.uid,
    )


def _ending(prepared: Prepared, facts: Facts) -> Ending:
    exited, gone = facts.exited, facts.gone
    return Ending(
        started=facts.started_at is not None,
        returncode=exited.returncode if exited is not None else None,
        init_returncode=gone.returncode if gone is not None else None,
        cause=facts.cause,
        overdue=gone is not None and gone.overdue,
        usage=facts.cgroup_usage,
        cpu_us=exited.user_us + exited.system_us if exited is not None else -1,
        cpu_limit_s=cpu_seconds(prepared.bounds),
    )


def _usage(facts: Facts, outcome: Outcome) -> Usage:
    exited, counted = facts.exited, facts.cgroup_usage
    return Usage(
        user_ms=exited.user_us / 1000 if exited is not None else -1,
        system_ms=exited.system_us / 1000 if exited is not None else -1,
        max_rss_bytes=exited.max_rss_bytes if exited is not None else -1,
        memory_peak_bytes=counted.memory_peak_bytes if counted is not None else -1,
        survivors=exited.survivors if exited is not None else 0,
        limits_hit=outcome.limits_hit,
    )


def _effective(prepared: Prepared, facts: Facts) -> Effective:
    hello, profile = facts.hello, prepared.profile
    degraded = []
    if hello.groups_retained:
        degraded.append(f"groups_retained:{','.join(map(str, hello.groups_retained))}")
    if hello.cgroup == "none":
        degraded.append(f"limits:no-cgroup ({hello.cgroup_reason})")
    degraded += [f"limits:{name} lowered by the daemon's own" for name in facts.lowered]
    return Effective(
        profile=profile.name,
        profile_digest=profile.digest,
        layers=LAYERS if facts.started_at is not None else (),
        limits=_LIMITS[hello.cgroup],
        degraded=tuple(degraded),
        landlock_abi=hello.landlock_abi,
        network=profile.network.mode,
        seccomp=profile.seccomp.base,
        host_uid=facts.created.host_uid if facts.created is not None else -1,
    )
