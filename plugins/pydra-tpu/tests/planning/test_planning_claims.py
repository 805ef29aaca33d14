"""What a claim gets, and what it is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from pydra import Claim, ClaimError, DeviceStatus, UnknownDevice
from pydra.cdi.spec import build_spec
from pydra_tpu import DRIVER
from pydra_tpu.cdi.edits import ChipUnusable, NotAMesh, prepare_claim
from pydra_tpu.cdi.environment import NoIciResiliency, build_environment
from pydra_tpu.cdi.mesh_processes import NotProcesses
from pydra_tpu.claim_config import LoggingConfig, Processes, TpuConfig
from pydra_tpu.devices import list_offered
from pydra_tpu.geometry import Bounds, list_sub_slices, parse_topology
from pydra_tpu.hardware_types import Host, SliceFacts
from pydra_tpu.settings import Offer, Settings
from tpu_values import allocated_device, chip_of, claim_of, host_of

V5E = host_of("v5litepod", 8, Bounds(2, 4))
OFFERED = list_offered(V5E, Offer.SUB_SLICES)


def test_a_part_of_a_host_is_a_slice_by_itself_of_the_chips_that_its_containers_see() -> None:
    (prepared,) = prepare_claim(claim_of("2x2-4"), V5E, OFFERED, Settings())
    assert [node.path for node in prepared.edits.device_nodes] == [
        *(f"/dev/vfio/{group}" for group in range(4, 8)),
        "/dev/vfio/vfio",
    ]
    assert prepared.status == DeviceStatus(
        data={"chips": [4, 5, 6, 7], "pciBusIDs": [V5E.chips[index].address for index in range(4, 8)]}
    )
    assert dict(prepared.edits.env) == {
        "TPU_SKIP_MDS_QUERY": "true",
        "TPU_ACCELERATOR_TYPE": "v5litepod-4",
        "TPU_TOPOLOGY": "2x2",
        "TPU_TOPOLOGY_ALT": "false",
        "ALT": "false",
        "TPU_TOPOLOGY_WRAP": "false,false,false",
        "WRAP": "false,false,false",
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "2,2,1",
        "TPU_CHIPS_PER_HOST_BOUNDS": "2,2,1",
        "CHIPS_PER_HOST_BOUNDS": "2,2,1",
        "TPU_PROCESS_BOUNDS": "1,1,1",
        "TPU_HOST_BOUNDS": "1,1,1",
        "HOST_BOUNDS": "1,1,1",
        "TPU_WORKER_ID": "0",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_VISIBLE_CHIPS": "0,1,2,3",
        "TPU_DEVICE_2x2_4_RESOURCE_CLAIM": "uid-1",
    }


def test_containers_share_the_directory_of_logs_unless_there_is_none() -> None:
    def list_mounts(settings: Settings) -> list[tuple[str, str]]:
        (prepared,) = prepare_claim(claim_of("chip-0"), V5E, OFFERED, settings)
        return [(one.host_path, one.container_path) for one in prepared.edits.mounts]

    assert list_mounts(Settings(log_directory="/var/log/tpu")) == [("/var/log/tpu", "/tmp/tpu_logs")]
    assert list_mounts(Settings(log_directory="")) == []


OF_16: dict[str, Any] = {"worker_id": 3, "worker_hostnames": tuple(f"worker-{number}" for number in range(16))}


@pytest.mark.parametrize(
    ("host", "kind", "topology", "bounds", "hosts"),
    [
        (host_of("v4", 4, Bounds(2, 2, 1)), "v4-8", "2x2x1", "2,2,1", "1,1,1"),
        (
            host_of("v5p", 4, Bounds(4, 4, 4), **OF_16),
            "v5p-128",
            "4x4x4",
            "2,2,1",
            "2,2,4",
        ),
        (host_of("v5litepod", 8, Bounds(2, 4)), "v5litepod-8", "2x4", "2,4,1", "1,1,1"),
        (host_of("v6e", 1, Bounds(1, 1)), "v6e-1", "1x1", "1,1,1", "1,1,1"),
        (host_of("tpu7x", 4, Bounds(2, 2, 1)), "tpu7x-8", "2x2x1", "2,2,1", "1,1,1"),
    ],
)
def test_a_whole_host_is_told_of_its_slice(host: Host, kind: str, topology: str, bounds: str, hosts: str) -> None:
    environment = build_environment(host, list_sub_slices(len(host.chips))[0], TpuConfig())
    told = {"TPU_ACCELERATOR_TYPE": kind, "TPU_TOPOLOGY": topology, "TPU_HOST_BOUNDS": hosts, "HOST_BOUNDS": hosts}
    assert told.items() <= environment.items()
    assert environment["TPU_CHIPS_PER_HOST_BOUNDS"] == environment["TPU_CHIPS_PER_PROCESS_BOUNDS"] == bounds
    assert "TPU_VISIBLE_CHIPS" not in environment
    assert environment["TPU_WORKER_ID"] == str(host.facts.worker_id or 0)
    assert environment["TPU_WORKER_HOSTNAMES"] == (",".join(host.facts.worker_hostnames) or "localhost")


@pytest.mark.parametrize(
    ("generation", "chips", "topology", "device", "told"),
    [
        ("v5p", 1, "1x1x1", "chip-0", ("v5p-2", "1,1,1")),
        ("v5p", 2, "2x1x1", "2x1x1-0", ("v5p-4", "2,1,1")),
        ("v5p", 2, "1x2x1", "2x1x1-0", ("v5p-4", "1,2,1")),
        ("tpu7x", 1, "1x1x1", "chip-0", ("tpu7x-2", "1,1,1")),
    ],
)
def test_a_host_of_one_or_two_chips_is_a_slice_by_itself(
    generation: str, chips: int, topology: str, device: str, told: tuple[str, str]
) -> None:
    host = host_of(generation, chips, parse_topology(topology))
    (prepared,) = prepare_claim(claim_of(device), host, list_offered(host, Offer.SUB_SLICES), Settings())
    environment = prepared.edits.env
    assert (environment["TPU_ACCELERATOR_TYPE"], environment["TPU_CHIPS_PER_PROCESS_BOUNDS"]) == told
    assert (environment["TPU_TOPOLOGY"], environment["TPU_PROCESS_BOUNDS"]) == (topology, "1,1,1")


def test_single_chips_that_are_a_sub_slice_together_are_one_mesh() -> None:
    prepared = prepare_claim(claim_of(*(f"chip-{index}" for index in range(8))), V5E, OFFERED, Settings())
    assert {one.edits.env["TPU_TOPOLOGY"] for one in prepared} == {"2x4"}
    assert [one.edits.device_nodes[0].path for one in prepared] == [f"/dev/vfio/{index}" for index in range(8)]


def test_chips_that_a_claim_only_looks_at_are_no_part_of_its_mesh() -> None:
    looks = allocated_device("2x2-4", admin_access=True)
    prepared = prepare_claim(claim_of("chip-0", looks), V5E, OFFERED, Settings())
    assert [one.edits.env["TPU_TOPOLOGY"] for one in prepared] == ["1x1", "2x2"]


@pytest.mark.parametrize("topology", [None, Bounds(2, 3, 4)])
@pytest.mark.parametrize("generation", ["v4", "v5p", "v6e"])
def test_a_whole_host_of_unknown_topology_is_told_its_own_bounds_only(generation: str, topology: Bounds | None) -> None:
    host = host_of(generation, 4, topology, worker_id=3, worker_hostnames=("a", "b"))
    whole, *parts = list_sub_slices(4)
    assert dict(build_environment(host, whole, TpuConfig())) == {
        "TPU_SKIP_MDS_QUERY": "true",
        **dict.fromkeys(
            ("TPU_CHIPS_PER_PROCESS_BOUNDS", "TPU_CHIPS_PER_HOST_BOUNDS", "CHIPS_PER_HOST_BOUNDS"), "2,2,1"
        ),
        "TPU_WORKER_ID": "3",
    }
    unknown = replace(host, facts=SliceFacts())
    assert "TPU_WORKER_ID" not in build_environment(unknown, whole, TpuConfig())
    with pytest.raises(NoIciResiliency, match="slice of unknown topology"):
        build_environment(unknown, whole, TpuConfig(ici_resiliency=True))
    assert build_environment(host, parts[0], TpuConfig())["TPU_WORKER_ID"] == "0"


@pytest.mark.parametrize(
    ("config", "variables"),
    [
        ({}, {}),
        ({"logging": {"level": 2}}, {"TPU_MIN_LOG_LEVEL": "2", "TPU_STDERR_LOG_LEVEL": "2"}),
        ({"logging": {"level": 0, "stderrLevel": 3}}, {"TPU_MIN_LOG_LEVEL": "0", "TPU_STDERR_LOG_LEVEL": "3"}),
        ({"logging": {"directory": "disabled"}}, {"TPU_LOG_DIR": "disabled"}),
        ({"metricsPorts": [8431, 8432]}, {"TPU_RUNTIME_METRICS_PORTS": "8431,8432"}),
        (
            {"premappedBuffer": {"size": "16Gi", "transferThreshold": 4096}},
            {
                "TPU_PREMAPPED_BUFFER_SIZE": "17179869184",
                "TPU_PREMAPPED_BUFFER_TRANSFER_THRESHOLD_BYTES": "4096",
            },
        ),
        ({"iciResiliency": False}, {"ENABLE_ICI_RESILIENCY": "false"}),
        (
            {"megascale": {"slices": 2, "slice": 0, "coordinator": "train-0.train:8080"}},
            {
                "MEGASCALE_NUM_SLICES": "2",
                "MEGASCALE_SLICE_ID": "0",
                "MEGASCALE_COORDINATOR_ADDRESS": "train-0.train:8080",
            },
        ),
        ({"visibleChips": "unset"}, {"TPU_VISIBLE_CHIPS": None}),
        (
            {"arguments": ["--xla_tpu_enable_latency_hiding_scheduler=true", "--xla_enable_async_all_gather"]},
            {"LIBTPU_INIT_ARGS": "--xla_tpu_enable_latency_hiding_scheduler=true --xla_enable_async_all_gather"},
        ),
    ],
)
def test_a_config_sets_variables_of_libtpu_and_no_others(
    config: dict[str, object], variables: dict[str, str | None]
) -> None:
    part = OFFERED["2x2-4"]
    default = build_environment(V5E, part, TpuConfig())
    environment = build_environment(V5E, part, msgspec.convert(config, TpuConfig))
    wanted = {**default, **variables}
    assert environment == {name: value for name, value in wanted.items() if value is not None}


def test_a_claim_gets_the_variables_of_its_config() -> None:
    config = TpuConfig(logging=LoggingConfig(level=2))
    (prepared,) = prepare_claim(
        claim_of(allocated_device("chip-0", configs=(config,), explicit=(True,))), V5E, OFFERED, Settings()
    )
    assert prepared.edits.env["TPU_MIN_LOG_LEVEL"] == "2"


def test_a_whole_host_believes_what_it_was_told_of_its_slice_and_a_part_of_it_does_not() -> None:
    facts = {"worker_id": 0, "wrap": (True, False, False), "ici_resiliency": False}
    host = host_of("v5p", 4, Bounds(4, 4, 4), **facts)
    whole, *parts = (build_environment(host, one, TpuConfig()) for one in list_sub_slices(4))
    assert (whole["TPU_TOPOLOGY_WRAP"], whole["ENABLE_ICI_RESILIENCY"]) == ("true,false,false", "false")
    assert (
        build_environment(host, list_sub_slices(4)[0], TpuConfig(ici_resiliency=True))["ENABLE_ICI_RESILIENCY"]
        == "true"
    )
    for part in parts:
        assert part["TPU_TOPOLOGY_WRAP"] == "false,false,false"
        assert "ENABLE_ICI_RESILIENCY" not in part


@pytest.mark.parametrize("generation", ["v2", "v3"])
def test_a_part_of_a_host_gets_no_accelerator_type_that_libtpu_does_not_know(generation: str) -> None:
    whole, *parts = (
        build_environment(host_of(generation, 4, Bounds(2, 2)), one, TpuConfig()) for one in list_sub_slices(4)
    )
    assert whole["TPU_ACCELERATOR_TYPE"] == f"{generation}-8"
    assert not [part for part in parts if "TPU_ACCELERATOR_TYPE" in part]


def test_resilience_of_links_is_for_whole_hosts_of_slices_that_have_it() -> None:
    config = TpuConfig(ici_resiliency=True)
    whole, *parts = list_sub_slices(4)
    host = host_of("v5p", 4, Bounds(4, 4, 4), worker_id=0)
    assert build_environment(host, whole, config)["ENABLE_ICI_RESILIENCY"] == "true"
    with pytest.raises(NoIciResiliency, match="TPU v5p slice of 1x2x1 has none"):
        build_environment(host, parts[0], config)
    with pytest.raises(NoIciResiliency, match="TPU v5e slice of 2x4 has none"):
        build_environment(V5E, list_sub_slices(8)[0], config)


@pytest.mark.parametrize(
    ("devices", "error", "words"),
    [
        (("chip-1", "chip-2"), NotAMesh, "chips 1, 2 of this host do not form a mesh"),
        (("2x2-0", "chip-4"), NotAMesh, "ask for one device of the shape that is needed"),
        (("2x2-2",), UnknownDevice, "no device 2x2-2; it has 2x4-0"),
    ],
)
def test_what_is_not_a_mesh_is_refused(devices: tuple[str, ...], error: type[ClaimError], words: str) -> None:
    with pytest.raises(error, match=words):
        prepare_claim(claim_of(*devices), V5E, OFFERED, Settings())


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"node": "", "driver": ""}, r"0000:00:04.0\) is bound to no driver, .* must bind it to the driver for TPUs"),
        ({"node": "", "driver": "", "present": False}, "no PCI function 0000:00:04.0 any more; delete the pod to have"),
        ({"missing_functions": 1}, "it has 1 PCI functions, and other chips of this machine have more; delete the pod"),
    ],
)
def test_a_chip_that_containers_cannot_use_is_refused_with_what_to_do(fields: dict[str, object], words: str) -> None:
    host = Host(chips=(chip_of("v6e", 0, **fields),))
    with pytest.raises(ChipUnusable, match=words):
        prepare_claim(claim_of("chip-0"), host, list_offered(host, Offer.SUB_SLICES), Settings())


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"loging": {}}, "unknown field `loging`"),
        ({"logging": {"level": 4}}, r"<= 3 - at `\$.logging.level`"),
        ({"logging": {"level": "INFO"}}, "Expected `int"),
        ({"logging": {"directory": "logs"}}, "matching regex"),
        ({"metricsPorts": [8431, 0]}, r"at `\$.metricsPorts\[1\]`"),
        ({"metricsPorts": list(range(1, 2000))}, r"length <= 64 - at `\$.metricsPorts`"),
        ({"metricsPorts": [8431, 8431]}, "8431 must not be there twice"),
        ({"premappedBuffer": {"size": "4097"}}, "size: 4097 must be a positive multiple of 4096 bytes"),
        ({"premappedBuffer": {"size": 0, "transferThreshold": "1.5"}}, "size: 0 must be .*transferThreshold: 1.5 must"),
        ({"premappedBuffer": {"size": f"{'9' * 4000}e999"}}, "size: 9{32} must be at most 8Ei"),
        ({"megascale": {"slices": 2, "slice": 2, "coordinator": "a"}}, "slice: 2 must be less than slices, which is 2"),
        ({"megascale": {"slices": 2, "slice": 0}}, "missing required field `coordinator`"),
        ({"megascale": {"slices": 2, "slice": 0, "coordinator": "a b"}}, "matching regex"),
        ({"visibleChips": "host"}, "Invalid enum value 'host'"),
        ({"arguments": ["--a --b"]}, "matching regex"),
    ],
)
def test_a_wrong_config_is_refused(config: dict[str, object], words: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=words):
        msgspec.convert(config, TpuConfig)


def processes_of(**requests: str) -> Claim:
    config = TpuConfig(processes=Processes(first_port=9000))
    return claim_of(
        *(replace(allocated_device(name, configs=(config,)), request=request) for request, name in requests.items())
    )


@pytest.mark.parametrize(
    ("requests", "chip_bounds", "process_bounds", "ranks"),
    [
        ({"a": "chip-0", "b": "chip-1", "c": "chip-2", "d": "chip-3"}, "1,1,1", "2,2,1", "0123"),
        ({name: f"chip-{index}" for index, name in enumerate("abcdefgh")}, "1,1,1", "4,2,1", "01234567"),
        ({name: f"1x2-{2 * index}" for index, name in enumerate("abcd")}, "1,2,1", "2,2,1", "0123"),
        ({"a": "1x2-2", "b": "1x2-0"}, "1,2,1", "2,1,1", "10"),
        ({"a": "2x2-4", "b": "2x2-0"}, "2,2,1", "1,2,1", "10"),
    ],
)
def test_each_request_is_a_process_in_the_order_of_the_chips(
    requests: dict[str, str], chip_bounds: str, process_bounds: str, ranks: str
) -> None:
    prepared = prepare_claim(processes_of(**requests), V5E, OFFERED, Settings())
    for one, rank in zip(prepared, ranks, strict=True):
        environment = one.edits.env
        assert environment["CLOUD_TPU_TASK_ID"] == rank
        assert environment["TPU_PROCESS_PORT"] == f"900{rank}"
        assert environment["TPU_PROCESS_ADDRESSES"].split(",") == [f"localhost:900{port}" for port in sorted(ranks)]
        assert (environment["TPU_CHIPS_PER_PROCESS_BOUNDS"], environment["TPU_PROCESS_BOUNDS"]) == (
            chip_bounds,
            process_bounds,
        )
    assert build_spec(DRIVER, "uid-1", prepared).content is not None


@pytest.mark.parametrize(
    ("claim", "host", "told"),
    [
        pytest.param(processes_of(a="2x2-0"), V5E, "there must be at least two", id="one"),
        pytest.param(processes_of(a="1x2-0", b="chip-2", c="chip-3"), V5E, "a: 0, 1; b: 2; c: 3", id="unequal"),
        pytest.param(
            claim_of(*processes_of(a="chip-0", b="chip-1").devices, *processes_of(a="chip-3", b="chip-2").devices),
            V5E,
            "a: 0, 3; b: 1, 2",
            id="no meshes",
        ),
        pytest.param(
            claim_of(*processes_of(a="2x2-0").devices, replace(allocated_device("2x2-4"), request="b")),
            V5E,
            "request b has another value or none",
            id="a config for one",
        ),
        pytest.param(
            processes_of(a="2x2-0", b="2x2-4"),
            host_of("v5litepod", 8, Bounds(4, 4)),
            "one host of a larger slice",
            id="a larger slice",
        ),
        pytest.param(
            processes_of(a="1x2-0", b="1x2-2"), host_of("v6e", 4), "may be, one host of a larger slice", id="unknown"
        ),
    ],
)
def test_requests_that_are_no_processes_of_one_mesh_are_refused(claim: Claim, host: Host, told: str) -> None:
    with pytest.raises(NotProcesses, match=told):
        prepare_claim(claim, host, list_offered(V5E, Offer.SUB_SLICES), Settings())
