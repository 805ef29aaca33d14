"""Speaking to nvidia-persistenced over its own protocol, wherever its socket is seen."""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from persistenced import Daemon, run_persistenced
from pydra_nvidia.host.driver_root import DriverMissing, DriverRoot
from pydra_nvidia.host.persistenced import Persistenced, PersistenceFailed
from pydra_pci import Roots, Tree

GPU, OTHER, UNKNOWN = "0000:53:00.0", "0001:e4:1f.0", "0000:99:00.0"


def no_root() -> DriverRoot:
    raise DriverMissing("no driver")


def make(host: Path, find_root: Callable[[], DriverRoot] = no_root, seconds: float = 10.0) -> Persistenced:
    return Persistenced(Tree(Roots(host=str(host))), find_root, seconds=seconds)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with run_persistenced(tmp_path, GPU, OTHER) as daemon:
        yield daemon


def test_it_releases_one_gpu_on_request_and_keeps_it_again(tmp_path: Path, daemon: Daemon) -> None:
    told = make(tmp_path)
    assert told.keeps(OTHER)
    assert told.keep(OTHER, on=False)
    assert daemon.kept == {GPU: True, OTHER: False}
    assert not told.keeps(OTHER)
    assert told.keep(OTHER, on=True)
    assert daemon.kept == {GPU: True, OTHER: True}


def test_a_gpu_that_it_never_saw_is_not_kept_by_it(tmp_path: Path, daemon: Daemon) -> None:
    told = make(tmp_path)
    assert not told.keeps(UNKNOWN)
    assert not told.keep(UNKNOWN, on=True)
    assert daemon.calls == [(2, UNKNOWN), (1, UNKNOWN)]


@pytest.mark.parametrize("left", ["nothing", "a socket that nobody listens to", "a file"])
def test_where_none_runs_nothing_is_kept(tmp_path: Path, left: str) -> None:
    folder = tmp_path / "run/nvidia-persistenced"
    folder.mkdir(parents=True)
    if left != "nothing":
        os.mknod(folder / "socket", 0o666 | (stat.S_IFREG if left == "a file" else stat.S_IFSOCK))
    told = make(tmp_path)
    assert not told.keeps(GPU)
    assert not told.keep(GPU, on=False)


@pytest.mark.parametrize("where", ["the host's /var/run is a link", "the driver's root"])
def test_it_is_found_in_the_roots_of_the_host_and_of_the_driver(tmp_path: Path, where: str) -> None:
    host = tmp_path / "host"
    driver = host / "run/nvidia/driver"
    driver.mkdir(parents=True)
    root = DriverRoot(host_path="/run/nvidia/driver", here=str(driver), library_dir="/usr/lib64", nvml_library="/nvml")
    if where == "the driver's root":
        place, told = driver, make(host, lambda: root)
    else:
        place, told = host / "elsewhere", make(host)
        (host / "var").mkdir()
        (host / "var/run").symlink_to("/elsewhere/run")  # of the host, not of this process
    with run_persistenced(place, GPU):
        assert told.keeps(GPU)


@pytest.mark.parametrize(
    ("status", "words"),
    [(3, "the driver refused"), (7, "it obeys root only"), (10, "the GPU's memory"), (99, "it says 99")],
)
def test_what_it_refuses_is_said_in_words(tmp_path: Path, daemon: Daemon, status: int, words: str) -> None:
    daemon.status = status
    with pytest.raises(PersistenceFailed, match=words) as caught:
        make(tmp_path).keep(GPU, on=False)
    assert f"{tmp_path}/run/nvidia-persistenced/socket" in str(caught.value)
    assert daemon.kept[GPU]


def test_one_that_hangs_is_waited_for_no_longer_than_that(tmp_path: Path, daemon: Daemon) -> None:
    daemon.silent = True
    with pytest.raises(PersistenceFailed, match=r"does not answer; the admin can restart it"):
        make(tmp_path, seconds=0.01).keeps(GPU)


@pytest.mark.parametrize("pieces", [1, 3, 24])
def test_an_answer_may_come_in_pieces(tmp_path: Path, daemon: Daemon, pieces: int) -> None:
    daemon.pieces = pieces
    assert make(tmp_path).keeps(GPU)


def record(*words: int) -> bytes:
    return struct.pack(f"!I{len(words)}I", 1 << 31 | 4 * len(words), *words)


@pytest.mark.fuzz
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(raw=st.binary(max_size=64) | st.lists(st.integers(0, 9), max_size=12).map(lambda words: record(*words)))
def test_what_is_no_answer_is_an_error_in_words(tmp_path: Path, daemon: Daemon, raw: bytes) -> None:
    daemon.raw = raw
    with pytest.raises(PersistenceFailed, match="answers wrongly"):
        make(tmp_path).keeps(GPU)


def test_what_is_no_address_is_said() -> None:
    with pytest.raises(PersistenceFailed, match="'gpu-0' is not a PCI address"):
        make(Path("/proc/nowhere")).keeps("gpu-0")
