"""When a pod's containers end, and what the kubelet writes into its status."""

from __future__ import annotations

from typing import Any

import pytest

from pydra_dev.kubelet.pod_workers import ResourceHealth, build_status, find_end


def pod(*, command: list[str] | None = None, policy: str = "Never") -> Any:
    container = {"name": "main", "image": "i", "command": command or []}
    return {
        "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
        "spec": {"containers": [container], "restartPolicy": policy},
    }


@pytest.mark.parametrize(
    ("command", "policy", "end"),
    [
        (["sleep", "2"], "Never", 12),
        (["sleep", "0.5"], "OnFailure", 10.5),
        (["/bin/sleep", "2"], "Never", 12),
        (["sleep", "infinity"], "Never", float("inf")),
        (["sleep", "2"], "Always", None),
        (["sleep", "soon"], "Never", None),
        (["serve"], "Never", None),
    ],
)
def test_containers_that_sleep_end_and_others_do_not(command: list[str], policy: str, end: float | None) -> None:
    assert find_end(pod(command=command, policy=policy), now=10) == end


def test_a_pod_ends_when_its_last_container_does() -> None:
    several = pod(command=["sleep", "1"])
    several["spec"]["containers"].append({"name": "b", "command": ["sleep"], "args": ["3"]})
    assert find_end(several, now=0) == 3
    several["spec"]["containers"].append({"name": "c", "command": ["serve"]})
    assert find_end(several, now=0) is None


def status(given: Any, state: dict[str, Any], **resources: Any) -> dict[str, Any]:
    return build_status(given, "Running", "2026-01-01T00:00:00Z", state=state, resources=resources)


def test_a_status_has_the_kubelets_part_and_the_conditions_of_others() -> None:
    given = pod()
    given["status"] = {
        "resourceClaimStatuses": [{"name": "c"}],
        "conditions": [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "False"}],
    }
    built = status(given, {"running": {}})
    assert set(built) == {"phase", "startTime", "conditions", "containerStatuses"}
    assert {one["type"]: one["status"] for one in built["conditions"]} == {
        "PodScheduled": "True",
        "Ready": "True",
        "ContainersReady": "True",
    }


def test_building_a_status_again_changes_nothing() -> None:
    given = pod()
    first = status(given, {"running": {}}, main=[("claim:c", [ResourceHealth(resource_id="r", health="Healthy")])])
    assert (
        status(
            {**given, "status": first},
            {"running": {}},
            main=[("claim:c", [ResourceHealth(resource_id="r", health="Healthy")])],
        )
        == first
    )


def test_the_health_of_a_resource_stands_in_the_status_once_and_is_that_of_its_first_device() -> None:
    twice = [ResourceHealth(resource_id="r", health="Unhealthy", message="hot")]
    twice.append(ResourceHealth(resource_id="r", health="Healthy"))
    (container,) = status(pod(), {"running": {}}, main=[("claim:c/req", twice), ("claim:empty", [])])[
        "containerStatuses"
    ]
    assert container["allocatedResourcesStatus"] == [
        {"name": "claim:c/req", "resources": [{"resourceID": "r", "health": "Unhealthy", "message": "hot"}]}
    ]


def test_a_container_without_claims_has_no_resource_status() -> None:
    (container,) = status(pod(), {"terminated": {"exitCode": 0}})["containerStatuses"]
    assert "allocatedResourcesStatus" not in container
    assert container["ready"] is False
