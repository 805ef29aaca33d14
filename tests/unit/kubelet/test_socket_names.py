"""Socket names: the forms of Kubernetes' own library, within what Linux allows."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydra.errors import SettingsError
from pydra.kubelet.sockets import MAX_SOCKET_PATH, SocketPaths, plan_socket_paths

UID = "0f5e8c1e-3b43-4d0b-9f0a-6f3d2c1b0a99"
REGISTRY = "/var/lib/kubelet/plugins_registry"
LABEL = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,8}[a-z0-9])?", fullmatch=True)
DRIVERS = st.lists(LABEL, min_size=1, max_size=6).map(".".join)


def plan(driver: str, uid: str = "", registry: str = REGISTRY, plugin: str = "") -> SocketPaths:
    directory = plugin or f"/var/lib/kubelet/plugins/{driver}"
    return plan_socket_paths(driver, registry_directory=registry, plugin_directory=directory, pod_uid=uid)


def digest(text: str, size: int) -> str:
    return urlsafe_b64encode(sha256(text.encode()).digest()[:size]).decode().rstrip("=")


def test_without_a_pod_uid_the_names_are_plain() -> None:
    paths = plan("gpu.example.com")
    assert paths.registration == f"{REGISTRY}/gpu.example.com-reg.sock"
    assert paths.service == "/var/lib/kubelet/plugins/gpu.example.com/dra.sock"


def test_with_a_pod_uid_each_instance_has_names_of_its_own() -> None:
    paths = plan("gpu.example.com", UID)
    assert paths.registration == f"{REGISTRY}/gpu.example.com-{UID}-reg.sock"
    assert paths.service == f"/var/lib/kubelet/plugins/gpu.example.com/dra-{UID}.sock"


def test_a_long_driver_name_shortens_the_uid_to_its_digest() -> None:
    driver = "accelerators.of-a-rather-long-name.example.com"
    assert plan(driver, UID).registration == f"{REGISTRY}/{driver}-{digest(UID, 8)}-reg.sock"
    assert plan(driver, UID).service == f"/var/lib/kubelet/plugins/{driver}/dra-{digest(UID, 8)}.sock"


def test_a_very_long_driver_name_leaves_digests_only() -> None:
    driver = "a" * 63
    both = f"{driver}\0{UID}"
    assert plan(driver, UID).registration == f"{REGISTRY}/dra-{digest(both, 16)}-reg.sock"
    assert plan(driver, UID).service == f"/var/lib/kubelet/plugins/{driver}/{digest(both, 8)}.sock"


@given(driver=DRIVERS.filter(lambda name: len(name) <= 63), depth=st.integers(0, 30))
def test_what_is_planned_fits_and_is_the_same_each_time(driver: str, depth: int) -> None:
    registry = REGISTRY + "/" + "d" * depth
    paths = plan(driver, UID, registry, "/p")
    assert len(paths.registration.encode()) <= MAX_SOCKET_PATH
    assert len(paths.service.encode()) <= MAX_SOCKET_PATH
    assert paths == plan(driver, UID, registry, "/p")


@given(driver=DRIVERS.filter(lambda name: len(name) <= 62))
def test_instances_and_drivers_never_share_a_registration_socket(driver: str) -> None:
    deep = REGISTRY + "/" + "d" * 20
    taken = {
        plan(driver, UID, deep, "/p"),
        plan(driver, UID[:-1] + "0", deep, "/p"),
        plan(driver + "x", UID, deep, "/p"),
    }
    assert len({paths.registration for paths in taken}) == 3


def test_the_limit_is_met_to_the_byte() -> None:
    name = len("/gpu.example.com-reg.sock")
    fits = "/" + "d" * (MAX_SOCKET_PATH - name - 1)
    assert len(plan("gpu.example.com", registry=fits).registration) == MAX_SOCKET_PATH
    with pytest.raises(SettingsError, match=r"108 bytes, and Linux allows 107; .* shorter"):
        plan("gpu.example.com", registry=fits[:-1] + "ü")


def test_all_that_is_wrong_is_reported_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        plan("GPU", "uid", "registry", "plugin")
    assert [problem.partition(" is ")[0] for problem in caught.value.problems] == [
        "'GPU'",
        "'registry'",
        "'plugin'",
    ]


@pytest.mark.parametrize(
    "driver",
    [
        "",
        "GPU.example.com",
        "gpu_example",
        "-gpu",
        "gpu-",
        "gpu..com",
        ".gpu",
        "gpu.example.com\n",
        "a" * 64,
        "../gpu",
        "gpü",
    ],
)
def test_a_driver_name_is_a_dns_subdomain_of_at_most_63_bytes(driver: str) -> None:
    with pytest.raises(SettingsError, match="is not a driver name"):
        plan(driver, plugin="/p")
