"""Is a protection that the kernel took but that does nothing an error? Does each stand alone?"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from launcher import landlock, lockdown, privileges, seccomp, syscalls, trees, view
from launcher.lockdown import Attempt
from launcher.plan import File
from tests.launcher.driver import HERE, PYTHON, a_launcher

pytestmark = pytest.mark.kernel


def _landlock_does_nothing() -> None:
    real = syscalls.syscall

    def pretend(name: str, *words: syscalls.Word) -> int:
        return 0 if name == "landlock_restrict_self" else real(name, *words)

    landlock.syscalls.syscall = pretend  # type: ignore[attr-defined]  # the module itself


def _filter_does_nothing() -> None:
    seccomp.load = lambda program: None  # noqa: ARG005  # as the real one is called


def _capset_does_nothing() -> None:
    privileges.syscalls.capset = lambda *_: None  # type: ignore[attr-defined]  # as above


def _mounts_are_not_restricted() -> None:
    trees.attributes = lambda *, writable, device: 0 * (writable + device)


HOLLOW = [
    (_landlock_does_nothing, "restrict with Landlock"),
    (_filter_does_nothing, "load the system-call filter"),
    (_capset_does_nothing, "drop capabilities"),
    (_mounts_are_not_restricted, "check the mounts"),
]


@pytest.mark.parametrize(("sabotage", "step"), HOLLOW)
def test_a_hollow_protection_runs_nothing(
    workspace: str, sabotage: Callable[[], None], step: str
) -> None:
    with a_launcher(sabotage=sabotage) as launcher:
        result = launcher.run(["/usr/bin/touch", f"{workspace}/ran"], workspace)
    assert result.failed is not None, result
    assert result.failed.step == step
    assert os.listdir(workspace) == []


def _inside_with(sabotage: Callable[[], None], attempt: str) -> list[object]:
    with open(os.path.join(HERE, "inside.py"), encoding="utf-8") as file:
        files = (File(target="/inside.py", content=file.read()),)
    with a_launcher(sabotage=sabotage) as launcher:
        return launcher.run([PYTHON, "-I", "/inside.py", attempt], files=files).lines()


def _leave_a_directory_open(_: Attempt) -> None:
    os.set_inheritable(os.open("/", os.O_PATH | os.O_DIRECTORY), True)


def test_an_inheritable_directory_does_not_cross_execveat() -> None:
    def leak() -> None:
        lockdown.STEPS = (("leak", _leave_a_directory_open), *lockdown.STEPS)

    assert _inside_with(leak, "fds") == [[0, 1, 2]]


def _without_filter() -> None:
    lockdown.STEPS = tuple(s for s in lockdown.STEPS if s[0] != "load the system-call filter")


def test_no_namespace_can_be_made_even_without_the_filter() -> None:
    assert _inside_with(_without_filter, "unshare:0x10000000") == ["ENOSPC"]

    def also_without_limits() -> None:  # the control: then it can
        _without_filter()
        view.STEPS = tuple(s for s in view.STEPS if s[0] != "forbid nested namespaces")

    assert _inside_with(also_without_limits, "unshare:0x10000000") == ["ok"]
