"""What the TPU runtime of a workload says, through the real client and a real gRPC service."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from grpclib.const import Cardinality, Handler
from grpclib.server import Stream
from msgspec.structs import replace

import pydra_tpu
from pydra import Sample
from pydra_tpu import Settings
from pydra_tpu.claim_config import TpuConfig
from pydra_tpu.hardware_types import Process
from pydra_tpu.runtime_metrics.client import DUTY_CYCLE
from pydra_tpu.runtime_metrics.find_runtimes import ask_runtimes
from pydra_tpu.runtime_metrics.pb import Metric, MetricRequest, MetricResponse, TpuMetric
from pydra_tpu.runtime_metrics.samples import HeldChips, RuntimeAnswer, build_samples
from pydra_tpu.simulation.runtime import GIB, SimulatedRuntime, describe_workload, run_runtime
from tpu_values import allocated_device, chip_of, claim_of, holding, host_of


def by_chip(samples: list[Sample], name: str) -> Mapping[tuple[str, str], float]:
    return {(one.device, one.labels["chip"]): one.value for one in samples if one.name == name}


async def test_the_memory_and_use_of_each_chip_are_measured_while_a_workload_runs(tmp_path: Path) -> None:
    async with run_runtime(SimulatedRuntime(describe_workload(8, 1, 16))) as runtime:
        settings = Settings(scenario="v5e-8", state=str(tmp_path), runtime_metrics_ports=(runtime.port,))
        async with pydra_tpu.connect(settings) as backend:
            await backend.discover()
            samples = list(await backend.measure())
    assert by_chip(samples, "hbm_total_bytes") == {(f"chip-{n}", str(n)): 16 * GIB for n in range(8)}
    assert by_chip(samples, "hbm_used_bytes") == {(f"chip-{n}", str(n)): 8 * GIB for n in range(8)}
    assert by_chip(samples, "duty_cycle_ratio")["chip-1", "1"] == 0.25
    assert [one.value for one in samples if one.name == "runtime_answered"] == [1]


async def test_a_workload_on_a_sub_slice_is_measured_on_the_chips_of_its_claim(tmp_path: Path) -> None:
    async with run_runtime(SimulatedRuntime(describe_workload(4, 1, 16))) as runtime:
        settings = Settings(scenario="v5e-8", state=str(tmp_path), runtime_metrics_ports=(runtime.port,))
        async with pydra_tpu.connect(settings) as backend:
            await backend.discover()
            with holding(claim_of("2x2-4")):
                mine = by_chip(list(await backend.measure()), "duty_cycle_ratio")
            with holding(claim_of("2x2-4"), claim_of("2x2-0", uid="uid-2")):
                unknown = by_chip(list(await backend.measure()), "duty_cycle_ratio")
    assert [*mine] == [("chip-4", "0"), ("chip-5", "1"), ("chip-6", "2"), ("chip-7", "3")]
    assert [*unknown] == [("", "0"), ("", "1"), ("", "2"), ("", "3")]


@pytest.mark.parametrize(
    ("device", "chips"), [("2x4-0", (2, 3, 4, 5, 6, 7, 0, 1)), ("2x2-0", (2, 3, 0, 1)), ("2x2-4", (4, 5, 6, 7))]
)
async def test_a_runtime_numbers_its_chips_by_the_text_of_their_nodes_names(
    device: str, chips: tuple[int, ...], tmp_path: Path
) -> None:
    # Chips 0 to 7 have the nodes /dev/vfio/8 to /dev/vfio/15, of which "10" is the first.
    async with run_runtime(SimulatedRuntime(describe_workload(len(chips), 1, 16))) as runtime:
        settings = Settings(scenario="v5e-8+groups-from-8", state=str(tmp_path), runtime_metrics_ports=(runtime.port,))
        async with pydra_tpu.connect(settings) as backend:
            devices = {one.name: one.attributes for one in (await backend.discover()).devices}
            with holding(claim_of(device)):
                samples = by_chip(list(await backend.measure()), "duty_cycle_ratio")
    assert [*samples] == [(f"chip-{chip}", str(number)) for number, chip in enumerate(chips)]
    assert [devices[f"chip-{chip}"]["index"] for chip in (0, 1, 2, 7)] == [6, 7, 0, 5]
    assert devices["2x2-4"]["index"] == 2


async def test_two_workloads_are_measured_on_the_chips_of_the_claims_that_name_their_ports(tmp_path: Path) -> None:
    workload = describe_workload(4, 1, 16)
    async with run_runtime(SimulatedRuntime(workload)) as one, run_runtime(SimulatedRuntime(workload)) as other:
        settings = Settings(scenario="v5e-8", state=str(tmp_path), runtime_metrics_ports=(one.port, other.port))
        async with pydra_tpu.connect(settings) as backend:
            await backend.discover()
            claims = [
                claim_of(allocated_device(device, configs=(TpuConfig(metrics_ports=(port,)),)), uid=uid)
                for uid, device, port in (("a", "2x2-4", one.port), ("b", "2x2-0", other.port))
            ]
            with holding(*claims):
                samples = [one for one in await backend.measure() if one.name == "duty_cycle_ratio"]
            with holding(*claims, claim_of("1x2-0", uid="c")):  # its runtime could be at either port
                unknown = by_chip(list(await backend.measure()), "duty_cycle_ratio")
    assert {(sample.labels["port"], sample.device) for sample in samples} == {
        *((str(one.port), f"chip-{n}") for n in range(4, 8)),
        *((str(other.port), f"chip-{n}") for n in range(4)),
    }
    assert {device for device, _ in unknown} == {""}


async def test_a_service_that_hangs_costs_its_deadline_and_not_the_event_loop() -> None:
    async with run_runtime(SimulatedRuntime({})) as runtime:
        runtime.hangs = True
        asking = asyncio.create_task(ask_runtimes((runtime.port,), 0.2))
        turns = 0
        while not asking.done():
            await asyncio.sleep(0)
            turns += 1
    assert asking.result() == (RuntimeAnswer(port=runtime.port),)
    assert turns > 10


async def test_what_is_no_metrics_service_is_not_answered() -> None:
    async def talk(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        assert await ask_runtimes((port,), 5) == (RuntimeAnswer(port=port),)
    assert await ask_runtimes((port,), 5) == ()


class ForeignAnswer(SimulatedRuntime):
    """Another service, or another version of this one: it answers with bytes that are none of its messages."""

    def __init__(self, answer: bytes) -> None:
        super().__init__({})
        self.bytes = answer

    def SerializeToString(self) -> bytes:  # noqa: N802 - as grpclib calls it
        return self.bytes

    async def send(self, stream: Stream[MetricRequest, ForeignAnswer]) -> None:
        await stream.recv_message()
        await stream.send_message(self)

    def __mapping__(self) -> Mapping[str, Handler]:
        (path,) = super().__mapping__()
        return {path: Handler(self.send, Cardinality.UNARY_UNARY, MetricRequest, ForeignAnswer)}


@pytest.mark.parametrize(
    "answer",
    [
        b"\x08\x01",  # the metric as a number
        bytes(MetricResponse(metric=TpuMetric(name="m", metrics=[Metric()]))).replace(b"\x1a\x00", b"\x18\x00"),
        b"\x0a\x08\x1a\x06\x0a\x02\x10\x01\x18\x01",  # an attribute's value and a gauge as numbers
    ],
)
async def test_a_service_that_answers_with_something_else_hides_no_runtime(answer: bytes) -> None:
    async with (
        run_runtime(ForeignAnswer(answer)) as foreign,
        run_runtime(SimulatedRuntime(describe_workload(4, 1, 16))) as runtime,
    ):
        first, second = await ask_runtimes((foreign.port, runtime.port), 5)
    assert first == RuntimeAnswer(port=foreign.port)
    assert len(second.duty_percent) == 4


async def test_a_metric_that_a_runtime_does_not_have_is_left_out() -> None:
    metrics = dict(describe_workload(4, 1, 16))
    del metrics[DUTY_CYCLE]
    async with run_runtime(SimulatedRuntime(metrics)) as runtime:
        answers = await ask_runtimes((runtime.port,), 5)
    samples = build_samples(answers, host_of("v5litepod", 4), [])
    assert {one.name for one in samples} == {"runtime_answered", "hbm_total_bytes", "hbm_used_bytes"}
    assert {one.device for one in samples} == {""}  # nothing says how many chips these are


@pytest.mark.parametrize(
    ("generation", "answer", "expected"),
    [
        ("v5p", {"memory_total": {0: 95.0, 1: 95.0, 2: 95.0, 3: 95.0}}, [95, 95, 95, 95]),
        ("tpu7x", {"memory_total": dict.fromkeys(range(8), 96.0)}, [192, 192, 192, 192]),
        ("v4", {"memory_total": {11: 2.0, 8: 1.0}}, [1, 2]),  # of another worker of a slice
        ("tpu7x", {"memory_total": {0: 96.0}}, []),  # half a chip
        ("v4", {"memory_total": {0: float("nan")}}, []),
        ("v4", {"memory_total": dict.fromkeys(range(20_000), 1.0)}, []),  # more than the agent keeps of a backend
    ],
)
def test_memory_is_added_up_for_chips_whose_cores_are_devices_of_their_own(
    generation: str, answer: Mapping[str, Mapping[int, float]], expected: list[int]
) -> None:
    samples = build_samples([RuntimeAnswer(port=8431, answered=True, **answer)], host_of(generation, 4), [])
    assert [one.value for one in samples if one.name == "hbm_total_bytes"] == expected


def test_chips_are_not_named_where_a_runtime_without_a_claim_may_have_others() -> None:
    host = host_of("v5litepod", 8)
    stranger = chip_of("v5litepod", 7, unclaimed_users=(Process(pid=1, started=1),))
    answer = RuntimeAnswer(port=8431, answered=True, duty_percent={0: 50.0})
    for found, device in ((host, "chip-2"), (replace(host, chips=(*host.chips[:7], stranger)), "")):
        samples = build_samples([answer], found, [HeldChips(chips=(2,))])
        assert [one.device for one in samples if one.name == "duty_cycle_ratio"] == [device]


def test_nothing_of_grpc_is_loaded_while_no_workload_runs() -> None:
    code = (
        "import asyncio, sys; from pydra_tpu.runtime_metrics.find_runtimes import ask_runtimes\n"
        "import pydra_tpu.backend; assert asyncio.run(ask_runtimes((1,), 5)) == ()\n"
        "assert not {'grpclib', 'betterproto2'} & {*sys.modules}"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
