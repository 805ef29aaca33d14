"""Metrics: the series are there from the start, and a backend's own measurements join them."""

from __future__ import annotations

from pydra.devices import Sample
from pydra.observability.metrics import Metrics


def lines(metrics: Metrics) -> list[str]:
    return metrics.text().decode().splitlines()


def test_a_backends_series_exist_before_anything_happened() -> None:
    metrics = Metrics()
    metrics.announce_backend("sim")
    metrics.announce_driver("sim.pydra.dev")
    found = lines(metrics)
    prepare = 'driver="sim.pydra.dev",operation="prepare"'
    for series in (
        'pydra_backend_crashes_total{backend="sim",signal="SIGSEGV"} 0.0',
        'pydra_backend_crashes_total{backend="sim",signal="SIGILL"} 0.0',
        'pydra_backend_crashes_total{backend="sim",signal="SIGSYS"} 0.0',
        'pydra_backend_up{backend="sim"} 0.0',
        f'pydra_claim_operation_duration_seconds_count{{{prepare},result="ok",retryable=""}} 0.0',
        'pydra_claim_operations_in_flight{driver="sim.pydra.dev",operation="unprepare"} 0.0',
        'pydra_devices{driver="sim.pydra.dev",health="Unhealthy"} 0.0',
        'pydra_foreign_resourceslices{driver="sim.pydra.dev"} 0.0',
        'pydra_resourceslice_writes_total{driver="sim.pydra.dev",verb="create"} 0.0',
        'pydra_checkpoint_records{driver="sim.pydra.dev",stage="completed"} 0.0',
        'pydra_sweeps_total{driver="sim.pydra.dev",result="ok"} 0.0',
        'pydra_claim_statuses_total{driver="sim.pydra.dev",result="failed"} 0.0',
        'pydra_events_total{result="dropped"} 0.0',
        'pydra_resourceslice_publish_failures_total{driver="sim.pydra.dev",reason="Unavailable"} 0.0',
    ):
        assert series in found


def test_the_process_itself_is_measured() -> None:
    assert any(line.startswith("process_resident_memory_bytes") for line in lines(Metrics()))


def test_a_backends_samples_appear_under_its_name() -> None:
    metrics = Metrics()
    metrics.samples.replace(
        "my-gpu",
        [
            Sample(name="temperature_celsius", value=41, help="Of the die.", device="gpu-0"),
            Sample(name="temperature_celsius", value=45, device="gpu-1"),
            Sample(name="replays_total", value=3, labels={"link": "2"}),
        ],
    )
    found = lines(metrics)
    assert 'pydra_my_gpu_temperature_celsius{device="gpu-0"} 41.0' in found
    assert 'pydra_my_gpu_temperature_celsius{device="gpu-1"} 45.0' in found
    assert 'pydra_my_gpu_replays_total{link="2"} 3.0' in found
    assert "# HELP pydra_my_gpu_temperature_celsius Of the die." in found


def test_samples_of_one_name_with_other_labels_or_the_same_do_not_break_the_page() -> None:
    metrics = Metrics()
    others = [Sample(name="x", value=2), Sample(name="x", value=3, device="a")]
    metrics.samples.replace("sim", [Sample(name="x", value=1, device="a"), *others])
    assert [line for line in lines(metrics) if line.startswith("pydra_sim_x")] == ['pydra_sim_x{device="a"} 1.0']


def test_a_new_reading_replaces_the_one_before() -> None:
    metrics = Metrics()
    metrics.samples.replace("sim", [Sample(name="x", value=1, device="gone")])
    metrics.samples.replace("sim", [])
    assert not any("pydra_sim_x" in line for line in lines(metrics))
