"""A request is prepared completely or denied, and nothing stays open but what is prepared."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import os
import resource
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandboxd.admission import prepare
from sandboxd.errors import UsageError
from sandboxd.prepared import Prepared
from sandboxd.profile import Profile
from sandboxd.profiles import ProfileSet
from sandboxd.protocol import Denial, Request, Tightening
from tests.profiles.writing import Load, refused

TABLES = """
[arguments]
word = { type = "string", default = "w" }
file = { type = "path", kind = "file" }
[argv]
template = ["-e", "{word}", "--", "{file}"]
[workspace]
access = "read"
[environment]
set = { LANG = "C.UTF-8" }
pass = ["TZ"]
[limits]
wall = "10s"
memory = "64MiB"
pids = 10
output = "1KiB"
"""
Outcome = Prepared | tuple[Denial, ...]
Ask = Callable[..., Outcome]


@pytest.fixture
def program(trusted: Path) -> Path:
    path = trusted / "prog"
    shutil.copy("/usr/bin/true", path)
    path.chmod(0o755)
    return path


@pytest.fixture
def profile(load: Load, program: Path) -> Profile:
    return load(TABLES, path=str(program))


@pytest.fixture
def ask(
    profile: Profile, loaded: Callable[[], ProfileSet], workspace: Path, workspace_fd: int
) -> Iterator[Ask]:
    (workspace / "f").write_text("x")
    assert profile.name == "tool"
    made: list[Prepared] = []
    loaded_set = loaded()

    def ask(
        *, fd: int | None = workspace_fd, denied: tuple[str, ...] = (), **parts: object
    ) -> Outcome:
        base = Request(command="tool", arguments={"file": "f"})
        request = dataclasses.replace(base, **parts)  # type: ignore[arg-type]  # of tests' own
        result = prepare(loaded_set, request, workspace_fd=fd, denied_workspaces=denied)
        if isinstance(result, Prepared):
            made.append(result)
        return result

    yield ask
    for prepared in made:
        prepared.close()


def test_a_right_request_is_complete(
    ask: Ask, profile: Profile, program: Path, workspace: Path
) -> None:
    prepared = ask(environment={"TZ": "UTC"}, limits=Tightening(wall_ms=5, pids=2))
    assert isinstance(prepared, Prepared)
    assert prepared.argv == (str(program), "-e", "w", "--", "f")
    assert prepared.environment == ("LANG=C.UTF-8", "TZ=UTC")
    assert prepared.executable.path == prepared.executable.real_path == str(program)
    assert os.fstat(prepared.executable.fd).st_ino == program.stat().st_ino
    assert prepared.workspace is not None
    assert prepared.workspace.path == str(workspace)
    (target,) = prepared.targets
    assert os.fstat(target.fd).st_ino == (workspace / "f").stat().st_ino
    assert (prepared.bounds.wall_ms, prepared.bounds.pids) == (5, 2)
    assert prepared.bounds.memory_bytes == profile.limits.memory_bytes
    assert len(prepared.digest) == 64


def test_the_name_is_looked_up_before_anything_else(ask: Ask) -> None:
    for name in (
        "tool ",
        "TOOL",
        "/usr/bin/tool",
        "tool\0",
        "to\u200bol",
        "\ud800",
        "",
        "x" * 999,
    ):
        denials = ask(command=name, arguments={"nobody": 1}, environment={"LD_PRELOAD": "x"})
        assert [reason for _, reason in refused(denials)] == ["NOT_IN_ALLOWLIST"]


DENIED = [
    ({"arguments": {}}, "file", "ARGUMENT_INVALID"),
    ({"arguments": {"file": "../f"}}, "file", "PATH_NOT_GRANTED"),
    ({"arguments": {"file": "nope"}}, "file", "ARGUMENT_INVALID"),
    ({"arguments": {"file": "f", "word": "x" * 4097}}, "word", "ARGUMENT_INVALID"),
    ({"environment": {"LD_PRELOAD": "x"}}, "environment.LD_PRELOAD", "ARGUMENT_INVALID"),
    ({"environment": {"HOME": "/x"}}, "environment.HOME", "ARGUMENT_INVALID"),
    ({"limits": Tightening(wall_ms=10_001)}, "limits.wall_ms", "ARGUMENT_INVALID"),
    ({"limits": Tightening(wall_ms=0)}, "limits.wall_ms", "ARGUMENT_INVALID"),
    ({"limits": Tightening(memory=-1)}, "limits.memory", "ARGUMENT_INVALID"),
    ({"limits": Tightening(memory=(16 << 20) - 1)}, "limits.memory", "ARGUMENT_INVALID"),
    ({"limits": Tightening(pids=1 << 63)}, "limits.pids", "ARGUMENT_INVALID"),
    ({"limits": Tightening(output=1025)}, "limits.output", "ARGUMENT_INVALID"),
    ({"fd": None}, "workspace", "ARGUMENT_INVALID"),
]


@pytest.mark.parametrize(("parts", "target", "reason"), DENIED)
def test_a_wrong_request_is_denied_and_leaves_nothing_open(
    ask: Ask, parts: dict[str, object], target: str, reason: str
) -> None:
    before = os.listdir("/proc/self/fd")
    assert refused(ask(**parts)) == [(target, reason)]
    assert os.listdir("/proc/self/fd") == before


def test_a_limit_that_is_too_high_names_the_most(ask: Ask) -> None:
    denials = ask(limits=Tightening(wall_ms=10_001, memory=1 << 40))
    assert isinstance(denials, tuple)
    assert [denial.target for denial in denials] == ["limits.wall_ms", "limits.memory"]
    assert denials[0].message.endswith("; 10001ms is not from 1ms to 10s")
    assert denials[1].message.endswith("; 1TiB is not from 16MiB to 64MiB")


def test_the_daemons_directories_are_denied(ask: Ask, workspace: Path) -> None:
    assert refused(ask(denied=(str(workspace / "f"),))) == [("workspace", "PATH_NOT_GRANTED")]


def _fill() -> list[int]:
    """Take every descriptor that the limit leaves."""
    taken: list[int] = []
    while True:
        try:
            taken.append(os.dup(0))
        except OSError:
            return taken


def test_the_daemons_own_shortage_is_no_denial(ask: Ask) -> None:
    """With too few descriptors left there is an error, and none of them is lost."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 20, limits[1]))
    taken = _fill()
    try:
        spare, result = 0, None
        while result is None:
            try:
                result = ask()
            except OSError as error:
                assert error.errno == errno.EMFILE  # noqa: PT017  # it succeeds in the end
                again = _fill()
                assert len(again) == spare
                taken += again
                spare += 1
                for _ in range(spare):
                    os.close(taken.pop())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for fd in taken:
            os.close(fd)
    assert isinstance(result, Prepared)
    assert spare > 3


def test_the_callers_descriptor_stays_the_callers(ask: Ask, workspace_fd: int) -> None:
    prepared = ask()
    assert isinstance(prepared, Prepared)
    assert prepared.workspace is not None
    assert prepared.workspace.fd != workspace_fd
    os.fstat(workspace_fd)


CHANGES: list[tuple[str, Callable[[Path], object], str]] = [
    ("written into", lambda path: path.write_bytes(b"\x7fELF"), "EXECUTABLE_CHANGED"),
    ("touched", os.utime, "EXECUTABLE_CHANGED"),
    (
        "exchanged",
        lambda path: Path(shutil.copy(path, f"{path}2")).rename(path),
        "EXECUTABLE_CHANGED",
    ),
    ("removed", Path.unlink, "EXECUTABLE_UNUSABLE"),
    ("made writable", lambda path: path.chmod(0o777), "EXECUTABLE_UNUSABLE"),
    ("made a plain file", lambda path: path.chmod(0o644), "EXECUTABLE_UNUSABLE"),
    ("its directory made writable", lambda path: path.parent.chmod(0o777), "EXECUTABLE_UNUSABLE"),
]


@pytest.mark.parametrize(("what", "change", "reason"), CHANGES)
def test_a_program_that_is_not_as_pinned_is_denied(
    ask: Ask, program: Path, what: str, change: Callable[[Path], object], reason: str
) -> None:
    assert isinstance(ask(), Prepared), "the control"
    change(program)
    assert refused(ask()) == [(str(program), reason)], what


def test_a_program_missing_at_load_stays_denied_until_reload(
    load: Load, loaded: Callable[[], ProfileSet], trusted: Path
) -> None:
    load("[argv]\ntemplate = []\n", path=f"{trusted}/later")
    before = loaded()
    shutil.copy("/usr/bin/true", trusted / "later")
    request = Request(command="tool")
    denials = prepare(before, request, workspace_fd=None, denied_workspaces=())
    assert refused(denials) == [(f"{trusted}/later", "EXECUTABLE_UNUSABLE")]
    assert isinstance(denials, tuple)
    assert denials[0].advice.startswith("install it, then reload")
    after = prepare(loaded(), request, workspace_fd=None, denied_workspaces=())
    assert isinstance(after, Prepared)
    after.close()


def test_a_pinned_sha256_is_compared_each_time(
    load: Load, loaded: Callable[[], ProfileSet], program: Path
) -> None:
    digest = hashlib.sha256(program.read_bytes()).hexdigest()
    request = Request(command="tool")
    for pinned, path in ((digest, program), ("0" * 64, program)):
        profile = load("[argv]\ntemplate = []\n", path=f'{path}"\nsha256 = "{pinned}"\n#')
        result = prepare(loaded(), request, workspace_fd=None, denied_workspaces=())
        if pinned == digest:
            assert profile.executable_problem is None
            assert isinstance(result, Prepared)
            assert result.executable.sha256 == digest
            result.close()
        else:
            assert profile.executable_problem == (
                f"cannot run {program}; the program is not the one pinned by the profile's "
                "sha256; `sandboxctl profile pin tool` pins what is there now"
            )
            assert refused(result) == [(str(program), "EXECUTABLE_CHANGED")]
            assert isinstance(result, tuple)
            assert "not the one pinned" in result[0].message
            assert "`sandboxctl profile pin tool`" in result[0].advice


def test_a_program_that_is_not_the_pinned_one_any_more_needs_a_new_pin(
    load: Load, loaded: Callable[[], ProfileSet], program: Path
) -> None:
    digest = hashlib.sha256(program.read_bytes()).hexdigest()
    load("[argv]\ntemplate = []\n", path=f'{program}"\nsha256 = "{digest}"\n#')
    before = loaded()
    request = Request(command="tool")
    for change, advice in (
        (lambda: os.utime(program), "reload the profiles"),
        (lambda: program.write_bytes(b"\x7fELF"), "`sandboxctl profile pin tool`, then reload"),
    ):
        change()
        result = prepare(before, request, workspace_fd=None, denied_workspaces=())
        assert refused(result) == [(str(program), "EXECUTABLE_CHANGED")]
        assert isinstance(result, tuple)
        assert advice in result[0].advice


OPTIONAL = """
[arguments]
file = { type = "path", required = false }
files = { type = "list", items = { type = "path" }, default = [] }
[argv]
template = [{ when = "file", then = ["--file={file}"] }, "--", "{files...}"]
[workspace]
access = "read"
required = false
"""


def test_without_a_workspace_an_optional_one_is_missed_by_paths_only(
    load: Load, loaded: Callable[[], ProfileSet], workspace: Path, workspace_fd: int
) -> None:
    load(OPTIONAL)
    (workspace / "f").write_text("x")
    for fd in (None, workspace_fd):
        prepared = prepare(
            loaded(), Request(command="tool"), workspace_fd=fd, denied_workspaces=()
        )
        assert isinstance(prepared, Prepared)
        assert (prepared.workspace is None) == (fd is None)
        assert prepared.targets == ()
        prepared.close()
    for arguments, word in (({"file": "f"}, "file 'f'"), ({"files": ["f"]}, "files[0] 'f'")):
        request = Request(command="tool", arguments=arguments)
        denials = prepare(loaded(), request, workspace_fd=None, denied_workspaces=())
        assert refused(denials) == [("workspace", "ARGUMENT_INVALID")]
        assert isinstance(denials, tuple)
        assert word in denials[0].message
        prepared = prepare(loaded(), request, workspace_fd=workspace_fd, denied_workspaces=())
        assert isinstance(prepared, Prepared)
        prepared.close()


def test_paths_of_a_command_line_need_the_workspace_too(
    load: Load, loaded: Callable[[], ProfileSet]
) -> None:
    load(
        '[argv]\npassthrough = { allow = [".*"], paths = true }\n'
        '[workspace]\naccess = "read"\nrequired = false\n'
    )
    for args, denied in ((["-l", "f"], True), (["-l"], False)):
        request = Request(command="tool", arguments={"args": args})
        result = prepare(loaded(), request, workspace_fd=None, denied_workspaces=())
        if denied:
            assert refused(result) == [("workspace", "ARGUMENT_INVALID")]
        else:
            assert isinstance(result, Prepared)
            result.close()


def test_a_script_runs_by_its_pinned_interpreter(
    load: Load, loaded: Callable[[], ProfileSet], trusted: Path
) -> None:
    script = trusted / "script"
    script.write_text("#!/bin/sh -e\ntrue\n")
    script.chmod(0o755)
    load('[argv]\ntemplate = ["x"]\n', path=str(script))
    prepared = prepare(loaded(), Request(command="tool"), workspace_fd=None, denied_workspaces=())
    assert isinstance(prepared, Prepared)
    with_links_followed = prepared.executable.real_path
    assert prepared.argv == ("/bin/sh", "-e", str(script), "x")
    assert prepared.executable.path == "/bin/sh"
    assert os.stat("/bin/sh").st_ino == prepared.executable.identity.ino
    assert not os.path.islink(with_links_followed)
    assert prepared.executable.script_path == str(script)
    assert prepared.executable.script_identity is not None
    assert prepared.executable.script_identity.ino == script.stat().st_ino
    assert prepared.executable.interpreter_argument == "-e"
    prepared.close()


def test_arguments_and_environment_too_large_for_execve_are_denied(
    load: Load, loaded: Callable[[], ProfileSet]
) -> None:
    load(
        '[arguments]\nx = { type = "list", items = { type = "string" } }\n'
        '[argv]\ntemplate = ["--", "{x...}"]\n'
    )
    request = Request(command="tool", arguments={"x": ["x" * 4000] * 40})
    result = prepare(loaded(), request, workspace_fd=None, denied_workspaces=())
    assert refused(result) == [("arguments", "ARGUMENT_INVALID")]


def test_the_digest_is_of_everything_that_decides_what_runs(ask: Ask) -> None:
    def digest(**parts: object) -> str:
        prepared = ask(**parts)
        assert isinstance(prepared, Prepared)
        return prepared.digest

    base = digest()
    assert digest() == base
    assert digest(reason="another", idempotency_key="k", stdin=3) == base
    assert digest(arguments={"file": "f", "word": "w"}) == base
    changed = [
        digest(arguments={"file": "f", "word": "v"}),
        digest(environment={"TZ": "UTC"}),
        digest(limits=Tightening(wall_ms=9_999)),
        digest(limits=Tightening(output=1)),
    ]
    assert len({base, *changed}) == 1 + len(changed)


def test_the_digest_knows_the_workspace_by_identity(ask: Ask, workspace: Path) -> None:
    first = ask()
    workspace.rename(workspace.parent / "moved")
    moved = ask()
    workspace.mkdir()
    (workspace / "f").write_text("x")
    fd = os.open(workspace, os.O_PATH)
    other = ask(fd=fd)
    os.close(fd)
    assert isinstance(first, Prepared)
    assert isinstance(moved, Prepared)
    assert isinstance(other, Prepared)
    assert first.digest == moved.digest != other.digest


VALUES = st.none() | st.integers(-2, 20_000) | st.integers(1 << 23, 1 << 27) | st.integers()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.builds(Tightening, wall_ms=VALUES, memory=VALUES, pids=VALUES, output=VALUES))
def test_what_is_in_force_never_exceeds_the_profile(profile: Profile, wanted: Tightening) -> None:
    limits = profile.limits
    most = (limits.wall_ms, limits.memory_bytes, limits.pids, limits.output_bytes)
    asked = (wanted.wall_ms, wanted.memory, wanted.pids, wanted.output)
    least = (1, 16 << 20, 1, 1)
    if any(a is not None and not n <= a <= m for n, a, m in zip(least, asked, most, strict=True)):
        with pytest.raises(UsageError, match=r"cannot narrow limits\."):
            profile.bounds(wanted)
        return
    bounds = profile.bounds(wanted)
    effective = (bounds.wall_ms, bounds.memory_bytes, bounds.pids, bounds.output_bytes)
    for value, limit, wish in zip(effective, most, asked, strict=True):
        assert 0 < value <= limit
        assert value == (limit if wish is None else wish)
    assert bounds.cpu_ms == limits.cpu_ms


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    st.sampled_from(["tool", "tool"]) | st.text(),
    st.dictionaries(st.sampled_from(["word", "file"]) | st.text(), JSON, max_size=3),
    st.dictionaries(st.sampled_from(["TZ"]) | st.text(), st.text(), max_size=2),
)
def test_nothing_a_client_sends_raises(
    ask: Ask, command: str, arguments: dict[str, object], environment: dict[str, str]
) -> None:
    result = ask(command=command, arguments=arguments, environment=environment)
    if not isinstance(result, Prepared):
        refused(result)


def test_a_program_that_its_own_run_could_change_is_denied(
    load: Load, loaded: Callable[[], ProfileSet], request: pytest.FixtureRequest
) -> None:
    # A place whose way nobody else can write to, and that may be a workspace.
    home = "/srv" if os.geteuid() == 0 else os.path.expanduser("~")
    tree = Path(tempfile.mkdtemp(prefix="sandboxd-test-", dir=home))
    request.addfinalizer(lambda: shutil.rmtree(tree))  # no fixture: one test
    shutil.copy("/usr/bin/true", tree / "prog")
    (tree / "f").write_text("x")
    load(TABLES.replace('access = "read"', 'access = "write"'), path=str(tree / "prog"))
    fd = os.open(tree, os.O_PATH)
    call = Request(command="tool", arguments={"file": "f"})
    result = prepare(loaded(), call, workspace_fd=fd, denied_workspaces=())
    os.close(fd)
    assert isinstance(result, tuple), "a writable tree with its program in it was granted"
    assert [denial.reason for denial in result] == ["EXECUTABLE_UNUSABLE"], result
    assert "granted for writing" in result[0].message
