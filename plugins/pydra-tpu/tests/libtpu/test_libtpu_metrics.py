"""Google's library in a process of its own: what it prints, and what happens when it does not."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydra_tpu.libtpu.print_metrics import METRICS
from pydra_tpu.libtpu.sdk_metrics import SdkMetrics, add_links, build_sdk_samples
from pydra_tpu.libtpu.sdk_monitor import ENVIRONMENT, SdkMonitor, find_library
from tpu_values import host_of

GOOD = ("echo", '{"ici_link_health": ["tray1.chip0.ici0.int: 10"]}')
TOLD = SdkMetrics(ici_link_health=("tray1.chip0.ici0.int: 10",))


async def look(*commands: tuple[str, ...]) -> SdkMetrics:
    """The metrics after a look with each of these commands, while the agent's port is open."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        metrics = SdkMetrics()
        for command in commands:
            monitor = SdkMonitor(command, server.getsockname()[1], 1, 0.5 if "sleep" in " ".join(command) else 30)
            monitor.metrics = metrics
            await monitor.look()
            metrics = monitor.metrics
        return metrics


async def test_the_last_answer_stays_while_the_library_hangs_or_fails() -> None:
    assert await look(GOOD, ("sleep", "1000"), ("false",), ("echo", "no JSON"), ("/no/such/program",)) == TOLD


async def test_a_library_that_hangs_with_the_interpreters_lock_held_does_not_hold_up_the_event_loop() -> None:
    # In this process the call would end after 1000 s.
    assert await look(GOOD, (sys.executable, "-c", "import ctypes; ctypes.PyDLL(None).sleep(1000)")) == TOLD


def test_googles_library_answers_in_the_form_that_is_parsed(tmp_path: Path) -> None:
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("libtpu, which is for x86-64 only, is not installed: pip install 'pydra-tpu[libtpu]'")
    environment = {**os.environ, **ENVIRONMENT, "VBAR_CONTROL_SERVICE_URL": "127.0.0.1:9", "TPU_LOG_DIR": str(tmp_path)}
    done = subprocess.run(find_library(), env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # Nobody serves these metrics here, so none has values.
    assert msgspec.json.decode(done.stdout.splitlines()[-1], type=SdkMetrics) == SdkMetrics()
    names = "from libtpu import sdk; print(*sdk.tpumonitoring.list_supported_metrics())"
    known = subprocess.run([sys.executable, "-c", names], env=environment, capture_output=True, text=True, check=True)
    assert set(METRICS) <= set(known.stdout.split())


async def test_nothing_is_asked_and_known_while_the_port_is_closed(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monitor = SdkMonitor(("touch", str(tmp_path / "asked")), port, 1)
    monitor.metrics = TOLD
    await monitor.look()
    assert monitor.metrics == SdkMetrics()
    assert not (tmp_path / "asked").exists()


def test_the_program_prints_what_the_library_says(tmp_path: Path) -> None:
    (tmp_path / "libtpu").mkdir()
    (tmp_path / "libtpu" / "__init__.py").touch()
    (tmp_path / "libtpu" / "sdk.py").write_text(
        "class Metric:\n    def data(self): return ['0-3', 1.5]\n"
        "class tpumonitoring:\n    get_metric = staticmethod(lambda name: Metric())\n"
    )
    command = [sys.executable, "-m", "pydra_tpu.libtpu.print_metrics"]
    done = subprocess.run(command, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert '"tpu_throttle_score":["0-3","1.5"]' in done.stdout


def test_links_are_left_out_where_they_may_be_of_other_chips() -> None:
    chips = host_of("v5litepod", 4).chips
    metrics = SdkMetrics(ici_link_health=("tray1.chip3.ici0.int: 10",), tpu_throttle_score=("0-3",))
    assert add_links(chips, metrics) == chips
    assert [*build_sdk_samples(chips, metrics)] == []


NUMBERS = st.integers(0, 12)
TEXTS = st.one_of(
    st.text(max_size=8),
    st.builds("tray{}.chip{}.ici{}.int: {}".format, NUMBERS, NUMBERS, NUMBERS, NUMBERS),
    st.builds("{}-{}".format, NUMBERS, NUMBERS),
)


@pytest.mark.fuzz
@given(texts=st.lists(TEXTS, max_size=12))
def test_no_text_of_the_library_is_an_error(texts: list[str]) -> None:
    told = tuple(texts)
    metrics = SdkMetrics(ici_link_health=told, tpu_throttle_score=told, tensorcore_util=told)
    chips = add_links(host_of("v4", 4).chips, metrics)
    assert all(chip.throttle in (None, *range(11)) for chip in chips)
    assert all(sample.device for sample in build_sdk_samples(chips, metrics))
