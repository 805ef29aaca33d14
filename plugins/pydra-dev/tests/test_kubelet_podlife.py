"""What the kubelet does next with a pod, and what it writes into its status."""

from __future__ import annotations

from typing import Any

import pytest

from pydra_dev.kubelet.pods import (
    Phase,
    PodState,
    ResourceHealth,
    Todo,
    adopt_state,
    build_status,
    find_end,
    plan_pod,
)


def pod(*, ending: bool = False, phase: str = "", command: list[str] | None = None, policy: str = "Never") -> Any:
    metadata: dict[str, Any] = {"name": "p", "namespace": "ns", "uid": "u"}
    if ending:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    container = {"name": "main", "image": "i", "command": command or []}
    return {
        "metadata": metadata,
        "spec": {"containers": [container], "restartPolicy": policy},
        "status": {"phase": phase} if phase else {},
    }


@pytest.mark.parametrize(
    ("given", "state", "todo"),
    [
        (pod(), PodState(), Todo.START),
        (pod(ending=True), PodState(), Todo.CLEAN),
        (pod(), PodState(phase=Phase.RUNNING), Todo.WAIT),
        (pod(), PodState(phase=Phase.RUNNING, ends=11), Todo.WAIT),
        (pod(), PodState(phase=Phase.RUNNING, ends=10), Todo.STOP),
        (pod(ending=True), PodState(phase=Phase.RUNNING), Todo.STOP),
        (pod(), PodState(phase=Phase.STOPPED), Todo.CLEAN),
        (pod(ending=True), PodState(phase=Phase.STOPPED), Todo.CLEAN),
        (pod(), PodState(phase=Phase.CLEAN), Todo.FINISH),
        (pod(), PodState(phase=Phase.ENDED), Todo.WAIT),
        (pod(ending=True), PodState(phase=Phase.ENDED), Todo.DELETE),
        (None, PodState(), Todo.LEAVE),
        (None, PodState(phase=Phase.RUNNING), Todo.STOP),
        (None, PodState(phase=Phase.STOPPED), Todo.LEAVE),
        (None, PodState(phase=Phase.ENDED), Todo.LEAVE),
    ],
)
def test_the_next_thing_follows_from_the_pod_and_what_was_done(given: Any, state: PodState, todo: Todo) -> None:
    assert plan_pod(given, state, now=10) is todo


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


@pytest.mark.parametrize(
    ("phase", "expected"),
    [
        ("", Phase.NEW),
        ("Pending", Phase.NEW),
        ("Running", Phase.RUNNING),
        ("Succeeded", Phase.STOPPED),
        ("Failed", Phase.STOPPED),
    ],
)
def test_a_new_kubelet_takes_pods_over_as_it_finds_them(phase: str, expected: Phase) -> None:
    assert adopt_state(pod(phase=phase), now=0).phase is expected


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


def test_the_health_of_a_resource_stands_in_the_status_once() -> None:
    twice = [ResourceHealth(resource_id="r", health="Unhealthy", message="hot")] * 2
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
