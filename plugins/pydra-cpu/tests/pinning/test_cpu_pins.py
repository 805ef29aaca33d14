"""Which CPUs containers may use."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pydra import AllocatedDevice, Claim, HeldClaim
from pydra_cpu.claim_plan import read_shares
from pydra_cpu.cpu_list import format_cpu_list, parse_cpu_list
from pydra_cpu.pinning import Container, Pin, build_variable, find_pins

UID = "11111111-2222-3333-4444-555555555555"
OTHER = "66666666-2222-3333-4444-555555555555"


def hold(uid: str, *cpus: str, memory: str = "0", taken: str = "", requests: Sequence[str] = ()) -> HeldClaim:
    devices = tuple(
        AllocatedDevice(request=request, pool="node", device="cpudevnuma000", share_id=f"s{place}")
        for place, request in enumerate(requests or [f"r{place}" for place, _ in enumerate(cpus)])
    )
    plan = [{"taken": taken or one, "cpus": one, "memory": memory} for one in cpus]
    return HeldClaim(
        claim=Claim(uid=uid, namespace="team", name="fast", devices=devices, plan=plan), prepared=(), completed=True
    )


def run(*env: str, cpus: str = "", name: str = "main", namespace: str = "team") -> Container:
    return Container(id=name, namespace=namespace, pod="pod", name=name, env=env, cpus=parse_cpu_list(cpus))


def pin(
    *containers: Container,
    held: Sequence[HeldClaim],
    online: str = "0-7",
    created: Sequence[Container] = (),
    starting: Sequence[str] = (),
) -> dict[str, tuple[str, str] | str]:
    """Of each container, the CPUs and the memory, or why it is refused."""
    found = find_pins(containers, held, parse_cpu_list(online), *created, starting=starting)
    return {
        name: (format_cpu_list(one.cpus), format_cpu_list(one.memory)) if isinstance(one, Pin) else str(one)
        for name, one in found.items()
    }


def variable(one: HeldClaim, request: str = "r0") -> str:
    return "=".join(build_variable(one.claim, read_shares(one.plan), request))


def test_a_container_with_a_claim_has_its_cpus_and_memory_near_them() -> None:
    one = hold(UID, "2-3", memory="1")
    assert variable(one) == f"DRA_CPUSET_{UID}=2-3"
    assert pin(run("PATH=/bin", variable(one)), held=[one]) == {"main": ("2-3", "1")}


def test_several_containers_can_use_one_claim() -> None:
    one = hold(UID, "2-3")
    found = pin(run(variable(one), name="first"), run(variable(one), name="second"), held=[one])
    assert found == {"first": ("2-3", "0"), "second": ("2-3", "0")}


def test_a_container_that_uses_one_request_of_a_claim_has_the_cpus_of_that() -> None:
    one = hold(UID, "2-3", "6-7")
    assert variable(one, "r1") == f"DRA_CPUSET_{UID}_1=6-7"
    assert pin(run(variable(one, "r1")), held=[one]) == {"main": ("6-7", "0")}
    assert pin(run(variable(one, "r0"), variable(one, "r1")), held=[one]) == {"main": ("2-3,6-7", "0")}


def test_several_devices_of_a_request_are_one_variable() -> None:
    one = hold(UID, "2", "3", "6", requests=("r", "r", "r"))
    assert variable(one, "r") == f"DRA_CPUSET_{UID}=2-3,6"
    assert pin(run(variable(one, "r")), held=[one]) == {"main": ("2-3,6", "0")}


def test_memory_of_all_nodes_is_left_as_it_is() -> None:
    one, other = hold(UID, "2-3", memory=""), hold(OTHER, "4", memory="1")
    assert pin(run(variable(one), variable(other)), held=[one, other]) == {"main": ("2-4", "")}


def test_a_container_without_a_claim_has_what_no_container_has_by_a_claim() -> None:
    one, idle = hold(UID, "2", taken="2,6"), hold(OTHER, "4")
    found = pin(run(), run(variable(one), name="fast"), held=[one, idle])
    assert found == {"main": ("0-1,3-5,7", ""), "fast": ("2", "0")}
    assert pin(run(), held=[one, idle]) == {"main": ("0-7", "")}


def test_a_container_that_is_starting_gets_cpus_of_claims_only_if_there_are_no_others() -> None:
    idle = hold(UID, "2-3")
    found = pin(run(), run(name="early"), held=[idle], starting=["early"])
    assert found == {"main": ("0-7", ""), "early": ("0-1,4-7", "")}
    assert pin(run(), held=[idle], online="2-3", starting=["main"]) == {"main": ("2-3", "")}


@pytest.mark.parametrize(
    "forged",
    [
        f"DRA_CPUSET_{OTHER}=2-3",
        f"DRA_CPUSET_{UID}=2-5",
        f"DRA_CPUSET_{UID}=",
        f"DRA_CPUSET_{UID}",
        f"DRA_CPUSET_{UID}_0=2-3",
        f"DRA_CPUSET_{UID}_9=2-3",
        "DRA_CPUSET_=0-63",
        "DRA_CPUSET_../../etc=1",
    ],
)
def test_a_variable_that_no_claim_has_set_is_refused_with_the_container(forged: str) -> None:
    found = pin(run(forged), run(name="other"), held=[hold(UID, "2-3")])
    assert "container main of pod team/pod has the variable 'DRA_CPUSET_" in found["main"]
    assert found["other"] == ("0-7", "")


def test_the_variable_of_another_namespace_is_refused() -> None:
    one = hold(UID, "2-3")
    found = pin(run(variable(one), namespace="other"), held=[one])
    assert "is not of a claim that is prepared here" in found["main"]


def test_a_container_without_a_claim_is_refused_when_claims_have_all_cpus_also_those_that_do_not_run_yet() -> None:
    found = pin(created=[run()], held=[hold(UID, "0-3"), hold(OTHER, "4-7")])
    assert found == {"main": "container main of pod team/pod has no CPU to run on: claims have all CPUs of the node"}


def test_one_that_runs_already_has_the_cpus_of_claims_without_a_container_and_keeps_the_last_of_them() -> None:
    """It was created while the agent did not run, or CPUs have gone off-line since."""
    one, idle = hold(UID, "0-3"), hold(OTHER, "4-7")
    fast, late = run(variable(one), name="fast"), run(variable(idle), name="late")
    assert pin(run(), fast, held=[one, idle])["main"] == ("4-7", "")
    found = pin(run(), fast, created=[late], held=[one, idle])
    assert found["late"] == (
        "container late of pod team/pod would leave no CPU to containers without a claim (now 1, such as container "
        "main of pod team/pod); delete their pods, or those of another claim"
    )
    again = run(variable(one), name="again")
    assert pin(run(), fast, late, created=[again], held=[one, idle])["again"] == ("0-3", "0")


def test_a_running_container_whose_claim_is_not_known_keeps_its_cpus_for_itself() -> None:
    lost = HeldClaim(claim=Claim(uid=UID, namespace="team", name="lost", devices=()), completed=True)
    found = pin(run(f"DRA_CPUSET_{UID}=2-3", cpus="2-3"), run(name="other"), held=[lost])
    assert found["other"] == ("0-1,4-7", "")
    assert found["main"] == "the CPUs of claim team/lost are not known, since its record cannot be read; delete the pod"
