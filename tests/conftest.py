"""What holds for every test: how a skip counts, and which tests need root."""

from __future__ import annotations

import os
from collections.abc import Generator

import hypothesis
import pytest

MUST_WORK = os.environ.get("SANDBOXD_MUST_WORK") == "1"

hypothesis.settings.register_profile("sandboxd", database=None, deadline=None)
hypothesis.settings.load_profile("sandboxd")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave tests marked ``privileged`` out of an ordinary user's run; root's run has them."""
    if os.geteuid() == 0:
        return
    privileged = [item for item in items if item.get_closest_marker("privileged")]
    config.hook.pytest_deselected(items=privileged)
    items[:] = [item for item in items if item not in privileged]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Count a skip as a failure where everything must work, unless the kernel lacks something."""
    del item
    report = yield
    if report.skipped and MUST_WORK and call.excinfo is not None:
        reason = str(call.excinfo.value)
        if not reason.startswith("kernel: "):
            report.outcome = "failed"
            report.longrepr = f"skipped although everything must work here: {reason}"
    return report
