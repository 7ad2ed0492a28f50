"""What plan and what command does a prepared request become?

Pure: values in, values out. Nothing is decided here that the request digest does not cover, except
what is the same for every request: the frame of the view, its environment, and the rlimits that
follow from the bounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from launcher.plan import Bind, Command, Limits, Plan, Rlimit, Symlink, Tmpfs
from sandboxd import etcfiles
from sandboxd.baseview import Shown
from sandboxd.prepared import Bounds, Prepared

COMMAND = "command"  # its name in init's channel; a run has one
HOST_NAME = "sandbox"
SETUP_MS = 30_000  # from the sandbox's birth to the start of its command
_MARGIN_MS = 10_000  # the launcher's own deadline comes this much after the daemon's
_SHM_BYTES = 64 << 20
_HOME_BYTES = 64 << 20
_STACK_BYTES = 8 << 20
_MEMLOCK_BYTES = 64 << 10
_MSGQUEUE_BYTES = 819_200  # the kernel's own default, mq_overview(7)
_SIGPENDING = 1024
_GIB = 1 << 30
_INFINITY = -1  # resource.RLIM_INFINITY
_INODES = (1024, 1 << 18)  # at least, at most
_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": etcfiles.HOME,
    "TMPDIR": "/tmp",  # noqa: S108  # the sandbox's own
    "USER": etcfiles.USER,
    "LOGNAME": etcfiles.USER,
    "SHELL": "/bin/sh",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "XDG_CACHE_HOME": f"{etcfiles.HOME}/.cache",
    "XDG_CONFIG_HOME": f"{etcfiles.HOME}/.config",
    "XDG_DATA_HOME": f"{etcfiles.HOME}/.local/share",
    "XDG_STATE_HOME": f"{etcfiles.HOME}/.local/state",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What plans depend on besides the request.

    ``hard_limits`` are this process's own hard getrlimit(2) values, by name: nobody can have more.
    """

    uid: int
    gid: int
    has_cgroup: bool
    life_ms_most: int
    hard_limits: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan, the descriptors of its binds in order, and the one command to start."""

    plan: Plan
    fds: tuple[int, ...]
    command: Command
    lowered: tuple[str, ...]


def tmpfs_of(prepared: Prepared, shown: Sequence[Shown]) -> tuple[Tmpfs, ...]:
    """Return the empty writable places of a view, except where something granted stands."""
    taken = {each.target for each in shown}
    places = (
        _tmpfs("/tmp", prepared.profile.view.tmp_size_bytes, 0o1777),  # noqa: S108  # inside
        _tmpfs("/dev/shm", _SHM_BYTES, 0o1777),  # noqa: S108  # inside
        _tmpfs(etcfiles.HOME, _HOME_BYTES, 0o700),
    )
    return tuple(place for place in places if place.target not in taken)


def _tmpfs(target: str, size_bytes: int, mode: int) -> Tmpfs:
    inodes = min(max(size_bytes >> 12, _INODES[0]), _INODES[1])
    return Tmpfs(target=target, size_bytes=size_bytes, inodes=inodes, mode=mode)


def make_plan(  # noqa: PLR0913  # all by keyword
    prepared: Prepared,
    setting: Setting,
    *,
    sandbox: str,
    machine_id: str,
    shown: Sequence[Shown],
    links: Sequence[Symlink],
    tmpfs: Sequence[Tmpfs],
) -> Planned:
    """Describe the sandbox and the command. Of two things at one target the later one is shown."""
    visible = tuple({each.target: each for each in shown}.values())
    profile, bounds = prepared.profile, prepared.bounds
    plan = Plan(
        sandbox=sandbox,
        binds=tuple(_bind(number, each) for number, each in enumerate(visible, start=1)),
        tmpfs=tuple(tmpfs),
        files=etcfiles.files(
            uid=setting.uid, gid=setting.gid, host_name=HOST_NAME, machine_id=machine_id
        ),
        symlinks=(*links, *etcfiles.links()),
        limits=Limits(
            memory_bytes=bounds.memory_bytes,
            pids=bounds.pids,
            life_ms=min(
                SETUP_MS + bounds.wall_ms + bounds.grace_ms + _MARGIN_MS, setting.life_ms_most
            ),
        ),
        network=profile.network.mode,
        seccomp=profile.seccomp.base,
        relax=profile.seccomp.relax,
        host_name=HOST_NAME,
        cgroup_required="cgroup" in profile.require.layers,
    )
    rlimits, lowered = rlimits_of(bounds, setting)
    return Planned(
        plan=plan,
        fds=tuple(each.fd for each in visible),
        command=_command(prepared, rlimits),
        lowered=lowered,
    )


def _bind(descriptor: int, shown: Shown) -> Bind:
    return Bind(
        descriptor=descriptor,
        identity=shown.identity,
        target=shown.target,
        writable=shown.writable,
        owned=shown.owned,
    )


def _command(prepared: Prepared, rlimits: tuple[Rlimit, ...]) -> Command:
    executable, workspace = prepared.executable, prepared.workspace
    return Command(
        command=COMMAND,
        executable=executable.real_path,
        identity=executable.identity,
        argv=prepared.argv,
        environment=environment_of(prepared.environment),
        cwd=workspace.path if workspace is not None else "/",
        rlimits=rlimits,
        script=executable.script_real_path,
        script_identity=executable.script_identity,
    )


def environment_of(given: Sequence[str]) -> tuple[str, ...]:
    """Merge the view's variables with those of the request, which were checked at admission."""
    variables = dict(_ENVIRONMENT)
    for variable in given:
        name, _, value = variable.partition("=")
        variables[name] = value
    return tuple(f"{name}={value}" for name, value in sorted(variables.items()))


def rlimits_of(bounds: Bounds, setting: Setting) -> tuple[tuple[Rlimit, ...], tuple[str, ...]]:
    """Return getrlimit(2) pairs, and the names of those that the daemon's own limits lower."""
    cpu_s = cpu_seconds(bounds)
    # Init counts too: it has the same uid. The kernel asks this limit first; the cgroup's, which
    # counts the refusals, must be the one that is met.
    nproc = bounds.pids + (2 if setting.has_cgroup else 1)
    wanted = {
        "CORE": (1, 1),  # 0 would still feed a piped core_pattern(5) handler of the host. P11
        "CPU": (cpu_s, cpu_s + 1),  # SIGXCPU, then SIGKILL
        "FSIZE": (bounds.file_size_bytes, bounds.file_size_bytes),
        "MEMLOCK": (_MEMLOCK_BYTES, _MEMLOCK_BYTES),
        "MSGQUEUE": (_MSGQUEUE_BYTES, _MSGQUEUE_BYTES),
        "NICE": (0, 0),
        "NOFILE": (bounds.files, bounds.files),
        "NPROC": (nproc, nproc),
        "RTPRIO": (0, 0),
        "SIGPENDING": (_SIGPENDING, _SIGPENDING),
        "STACK": (_STACK_BYTES, _STACK_BYTES),
    }
    if not setting.has_cgroup:
        # Never RLIMIT_AS: language runtimes reserve far more than they use. R01
        memory = bounds.memory_bytes
        wanted["DATA"] = (max(2 * memory, memory + _GIB),) * 2
    rlimits, lowered = [], []
    for name, (soft, hard) in wanted.items():
        most = setting.hard_limits.get(name, _INFINITY)
        if most != _INFINITY and most < hard:
            lowered.append(name)
            soft, hard = min(soft, most), most  # noqa: PLW2901  # narrowed, then used once
        rlimits.append(Rlimit(resource=name, soft=soft, hard=hard))
    return tuple(rlimits), tuple(lowered)


def cpu_seconds(bounds: Bounds) -> int:
    """Return the soft RLIMIT_CPU, which is in whole seconds: never below the bound."""
    return -(-bounds.cpu_ms // 1000)
