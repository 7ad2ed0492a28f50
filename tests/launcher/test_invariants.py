"""Do the list of invariants and the modules it names agree?"""

from __future__ import annotations

import os
import re

import launcher

HERE = os.path.dirname(os.path.abspath(launcher.__file__))
ROW = re.compile(r"^(I\d+) +(.*?)\s+(\w+)$", re.MULTILINE)


def test_every_invariant_names_a_module_that_exists() -> None:
    rows = ROW.findall(launcher.__doc__ or "")
    assert [name for name, _, _ in rows] == [f"I{n}" for n in range(1, len(rows) + 1)]
    assert len(rows) >= 12
    for name, _, module in rows:
        with open(os.path.join(HERE, f"{module}.py"), encoding="utf-8") as file:
            assert re.search(rf"\b{name}\b", file.read()), f"{module} does not mention {name}"


def test_the_launcher_stays_small_enough_to_be_read() -> None:
    sizes = {}
    for name in os.listdir(HERE):
        if name.endswith(".py"):
            with open(os.path.join(HERE, name), encoding="utf-8") as file:
                sizes[name] = sum(1 for _ in file)
    assert max(sizes.values()) <= 320, sizes
