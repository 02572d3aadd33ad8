"""The audit names the mistakes of the benchmark, and is silent about its right logs."""

from __future__ import annotations

import pytest
from audit_bugs import BUGS, RIGHT, Bug, alarms

UNSEEN = {"a sensor clipped"}
"""Mistakes that stand on the list of what the audit cannot see."""

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_mistake_is_found_for_its_reason(bug: Bug) -> None:
    arrays = bug.log()
    bug.make(arrays)
    found = alarms(arrays)
    assert (bug.check in found and bug.says in found[bug.check]) == (bug.name not in UNSEEN)


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_log_has_no_alarm(name: str) -> None:
    make, known = RIGHT[name]
    assert set(alarms(make())) <= set(known)
