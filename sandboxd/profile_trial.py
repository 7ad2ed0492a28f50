"""Does a profile hold on this host, and does it do what its own examples say?

The last step of loading: the program is found and pinned, grants are compared with what stands on
the host, and every example is decided as a request would be.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from sandboxd import executables
from sandboxd.arguments import check_arguments
from sandboxd.argv import build
from sandboxd.canonical import canonical_digest
from sandboxd.endpoints import default_endpoints
from sandboxd.executables import Pinned
from sandboxd.host_grants import problem_on_host
from sandboxd.interpreters import open_ended
from sandboxd.profile import Profile, ProfileFile
from sandboxd.profile_checks import Fault, faults
from sandboxd.profile_sections import Example, ExecutableSection
from sandboxd.profile_text import ProfileText, Rejected
from sandboxd.protocol import Denial


def complete(text: ProfileText, file: ProfileFile) -> Profile | None:
    """Make the profile in force; None for one without a program, which can only be extended.

    Raises:
        Rejected: with every problem found.

    """
    found = [*faults(file), *_granted(file)]
    pinned, problem = None, None
    if file.executable is not None:
        try:
            pinned, problem = _pin(file.name, file.executable)
        except executables.Unusable as unusable:
            found.append(Fault(("executable", "path"), str(unusable)))
        found += _interpreter(file, file.executable, pinned)
    if found:
        raise Rejected.at(text, found)
    if file.executable is None:
        return None
    profile = Profile(
        **dict(file),
        source=text.source,
        digest=_digest(file),
        pinned=pinned,
        executable_problem=problem,
    )
    wrong = list(_examples(profile))
    if wrong:
        raise Rejected.at(text, wrong)
    return profile


def _granted(file: ProfileFile) -> Iterator[Fault]:
    endpoints = default_endpoints()
    secret = (endpoints.runtime_dir, endpoints.state_dir)
    for key, granted, own in (
        ("read", file.view.read, secret),
        ("write", file.view.write, (*secret, *endpoints.profile_dirs)),
    ):
        for index, path in enumerate(granted):
            problem = problem_on_host(path, own)
            if problem is not None:
                yield Fault(("view", key, index), problem)


def _pin(name: str, section: ExecutableSection) -> tuple[Pinned | None, str | None]:
    """Return what is pinned and why it cannot run now, if so.

    Raises:
        Unusable: it stands where others could exchange it, or is no program.

    """
    try:
        pinned, fd = executables.open_pinned(section.path)
    except executables.Missing as missing:
        return None, str(missing)
    os.close(fd)
    problem = executables.content_problem(pinned.file, section.sha256)
    if problem is None:
        return pinned, None
    return pinned, f"{problem}; `sandboxctl profile pin {name}` pins what is there now"


def _interpreter(
    file: ProfileFile, section: ExecutableSection, pinned: Pinned | None
) -> Iterator[Fault]:
    if section.interpreter:
        return
    used = [section.path, *([pinned.file.real_path] if pinned else [])]
    why = open_ended(file, tuple(path.rpartition("/")[2] for path in used))
    if why is not None:
        text = f"OPEN_ENDED_INTERPRETER: cannot use it; {why}; say interpreter = true if meant"
        yield Fault(("executable", "path"), text)


def _digest(file: ProfileFile) -> str:
    return canonical_digest(
        file.model_dump(mode="json", by_alias=True, exclude={"extends", "example"})
    )


def _examples(profile: Profile) -> Iterator[Fault]:
    for index, example in enumerate(profile.example):
        problem = _trial(profile, example)
        if problem is not None:
            yield Fault(("example", index), f"cannot confirm this example; {problem}")


def _trial(profile: Profile, example: Example) -> str | None:
    denials: tuple[Denial, ...] = ()
    argv: tuple[str, ...] = ()
    values = check_arguments(profile, example.arguments)
    if isinstance(values, tuple):
        denials = values
    else:
        built = build(profile.argv, profile.arguments, values, profile.name)
        if isinstance(built, Denial):
            denials = (built,)
        else:
            argv = built
    if example.rejected is not None:
        reasons = sorted({denial.reason for denial in denials})
        if example.rejected in reasons:
            return None
        return f"it is {'rejected as ' + ', '.join(reasons) if reasons else 'not rejected'}"
    if denials:
        return f"it is rejected: {denials[0].message}"
    if argv != example.argv:
        return f"argv is {list(argv)}"
    return None
