"""Would these arguments be a program of the agent's own?

Some programs run whatever their arguments say: interpreters of languages, and tools with a way to
start others (find -exec, git -c, tar --to-command). A profile of one of them either leaves no room
for that, or says ``interpreter = true`` so that nobody grants it unawares
(OPEN_ENDED_INTERPRETER).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from sandboxd.patterns import fullmatch
from sandboxd.profile import ProfileFile
from sandboxd.profile_arguments import Argument, List, Path, String

# Any text, any file, even an empty command line (they read standard input) is a program to these.
_LANGUAGES = re.compile(
    r"python[0-9.]*|pypy[0-9.]*|ipython[0-9]*|perl[0-9.]*|ruby[0-9.]*|irb|node(js)?|deno|bun|tsx"
    r"|ts-node|(ba|da|a|k|mk|z|c|tc|fi|r)?sh|busybox|toybox|lua(jit)?[0-9.]*|php[0-9.]*|tclsh[0-9.]*"
    r"|expect|wish|Rscript|R|julia|guile|racket|sbcl|clisp|ghci|runghc|java|jshell|groovy|scala"
    r"|kotlin|erl|elixir|iex|[gmn]?awk|bc|dc|ed|ex|vi(m)?|nvim|emacs|gdb|lldb|sqlite3|psql|mysql"
    r"|make|gmake|ninja|cmake|meson|bazel|npm|npx|yarn|pnpm|pip[0-9.]*|uvx?|poetry|cargo|go|gcc|cc"
    r"|mvn|gradle|ansible.*|terraform|docker|podman|kubectl|ssh|pwsh|m4"
)
# These start others when an argument says so.
_STARTERS = re.compile(
    r"find|fd(find)?|git|tar|bsdtar|sed|xargs|parallel|env|nice|ionice|chrt|taskset|timeout|nohup"
    r"|setsid|stdbuf|script|time|strace|ltrace|unshare|nsenter|chroot|sudo|su|doas|runuser|setpriv"
    r"|flock|watch|entr|rsync|scp|sftp|zip|unzip|sort|split|less|more|man|curl|wget|nc|ncat|socat"
    r"|crontab|at|systemd-run|dbus-send|gio|xdg-open|cpio|rpm|dpkg|apt(-get)?|openssl|ffmpeg|tee"
)
# Texts that no narrow pattern has room for: commands, programs, options that take a command.
_TEXTS = (
    *("/bin/sh", "system('x')", 'BEGIN{system("x")}', "import os; x()", "x; y", "!sh", "|sh x"),
    *("1e x", "ext::sh -c x", "alias.x=!sh", "core.pager=x", "$(x)", "`x`", "a b"),
)
_OPTIONS = (
    *("-c", "-e", "-m", "-x", "-p", "-S", "-exec", "-execdir", "-ok", "-delete", "-fprint"),
    *("--eval=x", "--exec=x", "--command=x", "--to-command=x", "--use-compress-program=x"),
    *("--checkpoint-action=exec=x", "--upload-pack=x", "--ext-diff", "--rsh=x", "--pre=x"),
    *("-ccore.pager=x", "-Ix", "--expression=x", "--compress-program=x", "--file=x", "sh"),
)


def open_ended(profile: ProfileFile, names: tuple[str, ...]) -> str | None:
    """Say why the arguments of the program called ``names`` are a program of their own, if so.

    ``names`` are the last components of the path as written and of the real path.
    """
    language = next((name for name in names if _LANGUAGES.fullmatch(name)), None)
    starter = next((name for name in names if _STARTERS.fullmatch(name)), None)
    name = language or starter
    section = profile.argv
    if name is None or section is None:
        return None
    if section.passthrough is not None:
        for pattern in section.passthrough.allow:
            text = next((t for t in (*_TEXTS, *_OPTIONS) if fullmatch(pattern, t)), None)
            if text is not None:
                return f"argv.passthrough lets {name} be given {text!r}"
    elif language is not None and not section.template:
        return f"{name} without arguments runs what its standard input says"
    free = next(_free(profile.arguments, files=language is not None), None)
    return None if free is None else f"argument {free} can be a program for {name}"


def _free(arguments: dict[str, Argument], *, files: bool) -> Iterator[str]:
    for name, argument in arguments.items():
        single = argument.items if isinstance(argument, List) else argument
        if isinstance(single, Path) and files:
            yield name
        if isinstance(single, String) and single.choices is None:
            pattern = single.pattern
            if pattern is None or any(fullmatch(pattern, text) for text in _TEXTS):
                yield name
