"""Does the base view show the system and nothing of its users, also after an upgrade?"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from launcher import paths
from sandboxd import baseview
from sandboxd.baseview import BaseView
from sandboxd.errors import SetupFailed


@pytest.fixture
def base() -> Iterator[BaseView]:
    view = BaseView()
    yield view
    view.close()


def test_it_shows_the_system_only(base: BaseView) -> None:
    targets = {each.target for each in base.shown()}
    assert "/usr" in targets
    assert not any(paths.is_beneath(each, "/home") for each in targets)
    assert not targets & {"/", "/etc", "/var", "/run", "/root", "/proc", "/sys", "/dev"}
    assert not targets & {"/etc/passwd", "/etc/shadow", "/etc/resolv.conf", "/etc/ld.so.preload"}
    assert not any(each.writable for each in base.shown())


def test_links_into_usr_stay_links(base: BaseView) -> None:
    links = {each.target: each.to for each in base.links}
    for name in ("bin", "lib", "sbin"):
        if os.path.islink(f"/{name}"):
            assert links[f"/{name}"] == os.readlink(f"/{name}")
        else:
            assert f"/{name}" in {each.target for each in base.shown()}


def test_the_ceiling_it_asks_for_is_read_only(base: BaseView) -> None:
    assert not any(root.writable for root in base.roots())
    assert "/usr" in {root.path for root in base.roots()}


def test_every_part_is_what_its_identity_says(base: BaseView) -> None:
    for each in base.shown():
        assert paths.identity(each.fd) == each.identity


def test_a_file_behind_a_link_is_shown_at_the_name_of_the_link(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    os.symlink("real", f"{tmp_path}/link")
    with open(f"{tmp_path}/real", "w", encoding="ascii"):
        pass
    monkeypatch.setattr(baseview, "_ETC", (f"../{tmp_path}/link",))
    view = BaseView()
    found = next(each for each in view.shown() if each.target.endswith("link"))
    assert found.identity.ino == os.stat(f"{tmp_path}/real").st_ino
    view.close()


def test_a_part_that_an_upgrade_exchanged_is_opened_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    path = f"{tmp_path}/ld.so.cache"
    for name in (path, f"{path}~"):
        with open(name, "w", encoding="ascii"):
            pass
    monkeypatch.setattr(baseview, "_ETC", (f"../{path}",))
    view = BaseView()
    before = {each.target: each for each in view.shown()}
    os.rename(f"{path}~", path)
    after = {each.target: each for each in view.shown()}
    changed = [target for target in before if before[target].identity != after[target].identity]
    assert len(changed) == 1
    assert changed[0].endswith("ld.so.cache")
    assert after[changed[0]].identity.ino == os.stat(path).st_ino
    os.unlink(path)
    with pytest.raises(SetupFailed) as caught:
        view.shown()
    assert (caught.value.layer, caught.value.errno) == ("view", 2)
    view.close()
