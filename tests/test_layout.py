"""Do the maps of the modules tell the truth, and does each kind of thing have one place?"""

from __future__ import annotations

import ast
import os
import re

import sandboxd

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SIDES = ("both", "client", "daemon", "requests", "profiles", "state", "runs")


def _modules(package: str) -> set[str]:
    names = set()
    for entry in os.scandir(os.path.join(TOP, package)):
        if entry.name.endswith(".py"):
            names.add(entry.name.removesuffix(".py"))
        elif entry.is_dir() and os.path.exists(os.path.join(entry.path, "__init__.py")):
            names.add(entry.name)
    return names - {"__init__", "__main__"}


def _sources() -> list[str]:
    return [
        os.path.join(folder, name)
        for package in ("sandboxd", "launcher")
        for folder, _, names in os.walk(os.path.join(TOP, package))
        for name in names
        if name.endswith(".py")
    ]


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def test_the_map_of_sandboxd_names_every_module_once() -> None:
    table = (sandboxd.__doc__ or "").partition("keeps it so):")[2]
    words = re.sub(rf"^({'|'.join(SIDES)}) ", "", table, flags=re.MULTILINE).split()
    assert sorted(words) == sorted(_modules("sandboxd"))


def test_every_module_begins_with_its_question() -> None:
    for path in _sources():
        docstring = ast.get_docstring(ast.parse(_read(path))) or ""
        first = docstring.partition("\n\n")[0].replace("\n", " ")
        assert "?" in first, f"{path} does not say which question it answers"


def test_modules_and_functions_stay_short() -> None:
    for path in _sources():
        source = _read(path)
        assert source.count("\n") <= 350, path
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert (node.end_lineno or 0) - node.lineno < 45, f"{path}: {node.name}"


def test_pyseccomp_and_prctl_have_one_importer_each() -> None:
    for name, importer in (("pyseccomp", "compiler"), ("prctl", "privileges")):
        use = re.compile(rf'^import {name}$|import_module\("{name}"\)', re.MULTILINE)
        users = [path for path in _sources() if use.search(_read(path))]
        assert [os.path.basename(path) for path in users] == [f"{importer}.py"]


def test_one_module_of_the_daemon_starts_a_process() -> None:
    starts = re.compile(r"\bos\.(fork|posix_spawn|spawn\w*|system|popen|exec\w+)\(")
    users = {os.path.basename(path) for path in _sources() if starts.search(_read(path))}
    # The launcher's own are its work; autostart starts the daemon, `serve` becomes it.
    also = {"startup.py", "doctor.py", "doctor_report.py"}  # becomes a daemon; tries the host
    assert users <= {"launch.py", "autostart.py", "daemon_verbs.py", "programs.py"} | also, users
