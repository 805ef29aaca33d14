"""What claims may configure: decoded strictly, and also by the webhook."""

from __future__ import annotations

from typing import Any

import pytest

import pydra_cpu
from pydra.backends.claim_config import find_check, find_config_problems
from pydra_cpu.settings import Settings

THEIRS = {"apiVersion": "v1alpha1"}
HEADER = {"apiVersion": "cpu.pydra.dev/v1alpha1", "kind": "CpuConfig"}


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        ({"apiVersion": "v1beta1", "cpuConfig": {"cpuset": "2-5"}}, "$.kind: missing"),
        ({**THEIRS, "cpuConfig": {"cpuset": ""}}, "$.cpuConfig.cpuset: found"),
        ({**THEIRS, "cpuConfig": {"cpuset": "1", "numa": 1}}, "$.cpuConfig.numa: unknown field"),
        ({**THEIRS, "cpuConfig": {"cpuset": "0-2"}}, '$.cpuConfig.cpuset: found "0-2", of which 0 is reserved'),
        ({**HEADER, "cpuSet": "2-5"}, '$.cpuSet: unknown field (did you mean "cpuset"?)'),
        ({**HEADER, "cpuset": "2-5,"}, "$.cpuset: found"),
        ({**HEADER, "cpuset": "5-2"}, "5-2 is not a range of CPUs"),
        ({**HEADER, "cpuset": "2-5", "spread": "cache"}, "cpuset excludes cores and spread"),
        ({**HEADER, "cpuset": "0-2"}, "of which 0 is reserved for the system"),
        ({**HEADER, "cores": "half"}, "$.cores: found"),
    ],
    ids=[
        "another-version",
        "empty",
        "unknown-in-theirs",
        "reserved-in-theirs",
        "unknown-field",
        "no-list",
        "no-range",
        "excluded",
        "reserved",
        "no-value",
    ],
)
def test_a_configuration_that_cannot_be_followed_exactly_is_refused(parameters: Any, problem: str) -> None:
    check = find_check(pydra_cpu, Settings(reserved_cpus="0"))
    found = find_config_problems(parameters, pydra_cpu.CONFIG_TYPES, check)
    assert problem in found[0]


def test_a_valid_configuration_is_not() -> None:
    check = find_check(pydra_cpu, Settings(reserved_cpus="0"))
    for parameters in ({**HEADER, "cpuset": "1-2"}, {**THEIRS, "cpuConfig": {"cpuset": "1-2"}}):
        assert find_config_problems(parameters, pydra_cpu.CONFIG_TYPES, check) == ()
