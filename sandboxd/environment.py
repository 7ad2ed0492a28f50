"""Which variables may a profile set, and which may a client?

The sandbox starts with nothing; what is set is what the view itself sets, what the profile says,
and what the client says under a name that the profile passes. Variables that make a loader, an
interpreter or a tool run or read something else are never a client's, whatever the profile says.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from sandboxd.profile import Profile
from sandboxd.profile_sections import EnvironmentSection
from sandboxd.protocol import Denial
from sandboxd.refusals import MAX_DENIALS, bare, refuse

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}", re.ASCII)
_VALUE_MAX = 32 << 10
# Set by the view itself: where things are, and who one is.
_VIEW = re.compile(
    r"PATH|HOME|TMPDIR|TMP|TEMP|USER|LOGNAME|SHELL|PWD|OLDPWD|SHLVL|_|HOSTNAME|MAIL|XDG_\w*"
)
# ld.so(8), "ENVIRONMENT", and what glibc drops in secure-execution mode: not even a profile's.
_LOADER = re.compile(
    r"LD_\w*|GLIBC_\w*|GCONV_PATH|GETCONF_DIR|HOSTALIASES|LOCALDOMAIN|LOCPATH|MALLOC_\w*"
    r"|NIS_PATH|NLSPATH|RESOLV_HOST_CONF|RES_OPTIONS|TZDIR|BASH_FUNC_.*"
)
# Interpreters and tools that run or read what a variable names: a profile's, never a client's.
_INTERPRETER = re.compile(
    r"PYTHON\w*|PYENV_\w*|VIRTUAL_ENV|PERL\w*|RUBY\w*|GEM_\w*|BUNDLE_\w*|NODE_\w*|NPM_\w*|npm_\w*"
    r"|DENO_\w*|BUN_\w*|JAVA_\w*|_JAVA_\w*|JDK_JAVA_\w*|CLASSPATH|LUA_\w*|PHP\w*|TCL\w*|R_\w*"
    r"|BASH_\w*|BASHOPTS|SHELLOPTS|ENV|PS[0-4]|IFS|CDPATH|PROMPT_COMMAND|ZDOTDIR|FPATH|KSH_\w*"
    r"|AWKPATH|AWKLIBPATH|JQ_\w*|GIT_\w*|SSH_\w*|GPG_\w*|GNUPGHOME|SVN_\w*|HG\w*"
    r"|\w*PAGER|\w*EDITOR|VISUAL|BROWSER|LESS\w*|MORE|MANPATH|INFOPATH|TERMINFO\w*|TERMCAP"
    r"|TAR_OPTIONS|TAPE|RSH|MAKE\w*|MFLAGS|GNUMAKEFLAGS|GREP_\w*|RIPGREP_\w*|FIND_\w*|GZIP|XZ_\w*"
    r"|ZIPOPT|UNZIP|BZIP\w*|ZSTD_\w*|RSYNC_\w*|CC|CXX|CPP|LD|AS|AR|CFLAGS|CXXFLAGS|LDFLAGS"
    r"|CPATH|C_INCLUDE_PATH|CPLUS_INCLUDE_PATH|LIBRARY_PATH|COMPILER_PATH|GCC_\w*|PKG_CONFIG\w*"
    r"|CARGO\w*|RUST\w*|GO(PATH|ROOT|FLAGS|BIN|ENV|PROXY|WORK|DEBUG|CACHE|TMPDIR|TOOLCHAIN|SUMDB|PRIVATE)|CGO_\w*|PIP_\w*|UV_\w*|POETRY_\w*|PYTEST_\w*|CMAKE_\w*|DOCKER_\w*"
    r"|OPENSSL_\w*|SSL_CERT_\w*|CURL_\w*|WGETRC|\w*_PROXY|\w*_proxy|DBUS_\w*|DISPLAY|WAYLAND_\w*"
    r"|XAUTHORITY|QT_\w*|GTK_\w*|GIO_\w*|INPUTRC|READLINE_\w*|POSIXLY_CORRECT"
)
_TIME_ZONE = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z][A-Za-z0-9_+-]*){0,2}", re.ASCII)


def problems(section: EnvironmentSection) -> dict[tuple[str, ...], str]:
    """Say, by place in the profile, what ``[environment]`` may not have."""
    found: dict[tuple[str, ...], str] = {}
    for name, value in section.set.items():
        problem = _name_problem(name, by_client=False) or _value_problem(name, value)
        if problem:
            found["environment", "set", name] = f"cannot set {bare(name)}; {problem}"
    for name in section.pass_:
        problem = _name_problem(name, by_client=True)
        if problem:
            found["environment", "pass"] = f"cannot pass {bare(name)}; {problem}"
    return found


def _name_problem(name: str, *, by_client: bool) -> str | None:
    if _LOADER.fullmatch(name):
        return "a loader variable runs code that no profile names"
    if _NAME.fullmatch(name) is None:
        return "a name has letters, digits and '_' only; there are no wildcards"
    if _VIEW.fullmatch(name):
        return "the view sets it"
    if by_client and _INTERPRETER.fullmatch(name):
        return "interpreters or tools take commands or files from it"
    return None


def _value_problem(name: str, value: str) -> str | None:
    if len(value) > _VALUE_MAX:
        return f"the value has {len(value)} characters; at most {_VALUE_MAX} may be"
    if any(ord(each) < 0x20 or 0x7F <= ord(each) < 0xA0 for each in value):
        return "the value holds a control character"
    if any(0xD800 <= ord(each) < 0xE000 for each in value):
        return "the value holds a lone surrogate"
    if name == "TZ" and not _TIME_ZONE.fullmatch(value):
        return "the value is no name of a time zone; a path may not be given"
    return None


def merge(
    profile: Profile, given: Mapping[str, str]
) -> tuple[tuple[str, ...], tuple[Denial, ...]]:
    """Return sorted ``NAME=value``, and a denial for each variable that may not be set."""
    denials: list[Denial] = []
    for name, value in given.items():
        if name not in profile.environment.pass_:
            allowed = ", ".join(profile.environment.pass_) or "none"
            denials.append(_denial(profile, name, "the profile does not pass it", allowed))
            continue
        problem = _name_problem(name, by_client=True) or _value_problem(name, value)
        if problem:
            denials.append(_denial(profile, name, problem, ""))
    merged = profile.environment.set | dict(given)
    return tuple(f"{k}={v}" for k, v in sorted(merged.items())), tuple(denials[:MAX_DENIALS])


def _denial(profile: Profile, name: str, problem: str, allowed: str) -> Denial:
    target = f"environment.{bare(name)}"
    return refuse(
        "argument",
        target,
        "ARGUMENT_INVALID",
        f"cannot set {bare(name)}; {problem}",
        profile=profile.name,
        rule=f"{profile.name}: environment.pass",
        advice=f"variables that may be set: {allowed}" if allowed else "",
    )
