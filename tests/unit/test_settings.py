"""Settings: what an admin may say, and what is said back when it is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from pydra.errors import SettingsError
from pydra.settings import HealthTaint, Settings, parse_settings

LEAST: dict[str, Any] = {"backends": ["sim"], "nodeName": "node-1"}


def test_the_least_an_admin_must_say_is_a_backend_and_the_node() -> None:
    settings = parse_settings(LEAST)
    assert settings.backends == ("sim",)
    assert settings.registry_directory == "/var/lib/kubelet/plugins_registry"
    assert settings.plugin_directory("gpu.example.com") == "/var/lib/kubelet/plugins/gpu.example.com"
    assert settings.records_directory("gpu.example.com") == "/run/pydra/gpu.example.com"
    assert settings.http_endpoint == ("0.0.0.0", 9464)


def test_the_kubelets_claims_are_read_below_the_hosts_root_since_a_pod_does_not_mount_their_directory() -> None:
    assert parse_settings(LEAST).kubelet_claims == "/var/lib/kubelet/dra_manager_state"
    settings = parse_settings(LEAST | {"hostRoot": "/host", "kubeletRoot": "/data/kubelet"})
    assert settings.kubelet_claims == "/host/data/kubelet/dra_manager_state"


def test_directories_follow_the_kubelet_root_unless_they_are_named() -> None:
    settings = parse_settings({**LEAST, "kubeletRoot": "/k", "pluginsDir": "/elsewhere"})
    assert settings.registry_directory == "/k/plugins_registry"
    assert settings.plugin_directory("d") == "/elsewhere/d"


def test_texts_from_flags_and_variables_become_what_they_mean() -> None:
    settings = parse_settings(
        {**LEAST, "prepareDeadline": "2.5", "verifyX509Strict": "true", "healthTaint": "NoExecute"}
    )
    assert (settings.prepare_deadline, settings.verify_x509_strict) == (2.5, True)
    assert settings.health_taint is HealthTaint.NO_EXECUTE


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        pytest.param({"backends": []}, "backends: must name at least one backend", id="no backend"),
        pytest.param({"nodeName": ""}, "nodeName: must name this node", id="no node"),
        pytest.param({"nodeNmae": "x"}, "nodeNmae: no such setting", id="misspelt key"),
        pytest.param(
            {"prepareDeadline": "soon"}, "prepareDeadline: must be a number of seconds (found 'soon')", id="no number"
        ),
        pytest.param(
            {"prepareDeadline": 45},
            "prepareDeadline: 45 s is too long: the kubelet gives up after 45 s",
            id="longer than the kubelet waits",
        ),
        pytest.param({"sweepPeriod": 0}, "sweepPeriod: must be a number of seconds > 0.0 (found 0)", id="zero period"),
        pytest.param({"healthPeriod": 30}, "healthPeriod: 30 s is too long", id="longer than the lease"),
        pytest.param({"logLevel": "loud"}, "logLevel: must be one of debug, info, warning, error", id="unknown level"),
        pytest.param({"logLevel": "\ud800"}, "logLevel has an unpaired surrogate", id="a level that is not Unicode"),
        pytest.param({"kubeletRoot": "var"}, "kubeletRoot: must be an absolute path", id="relative path"),
        pytest.param({"recordsDir": "run"}, "recordsDir: must be an absolute path", id="relative records"),
        pytest.param({"cdiDir": "/a/../b"}, "cdiDir: '/a/../b' must not contain '..'", id="path that climbs"),
        pytest.param({"backends": ["sim", "sim"]}, "backends: 'sim' is named twice", id="twice the same"),
        pytest.param(
            {"drivers": {"gpu": "a.b"}}, "drivers: 'gpu' is not among the backends sim", id="driver of nobody"
        ),
        pytest.param({"drivers": {"sim": "A_b"}}, "drivers: 'A_b' is not a driver name", id="bad driver name"),
        pytest.param({"podUid": "../x"}, "podUid: '../x' is not a pod uid", id="bad pod uid"),
        pytest.param({"podUid": "a/b"}, "podUid: 'a/b' is not a pod uid", id="pod uid with a slash"),
        pytest.param({"nodeName": "Node"}, "nodeName: 'Node' is not a node name", id="bad node name"),
        pytest.param({"httpAddress": "9464"}, "httpAddress: '9464' is not HOST:PORT", id="no port"),
        pytest.param({"httpAddress": f":{'9' * 5000}"}, "httpAddress: ':9999", id="a port of 5000 digits"),
        pytest.param({"rescanPeriod": float("inf")}, "rescanPeriod: must be a number of seconds <= ", id="for ever"),
        pytest.param({"rescanPeriod": 10**400}, "rescanPeriod: must be a smaller number (found 1000", id="too large"),
        pytest.param({"backends": 5}, "backends: must be a list (found 5)", id="a number of backends"),
        pytest.param({"drivers": ["a"]}, "drivers: must be a mapping (found ['a'])", id="a list of drivers"),
        pytest.param(
            {"backendSettings": {"sim": {"a": [2**64]}}},
            "backendSettings.sim.a[0] is an integer of more than 64 bits",
            id="a backend's setting that is too large",
        ),
        pytest.param(
            {"backendSettings": {"sim": {"a": "\ud800"}}},
            "backendSettings.sim.a has an unpaired surrogate",
            id="a backend's setting that is not Unicode",
        ),
        pytest.param(
            {"backendSettings": {"sim": {"a": {1, 2}}}},
            "backendSettings.sim.a is of type set, which is not JSON",
            id="a backend's setting of a type that only YAML has",
        ),
        pytest.param(
            {"backendProcesses": {"gpu": {}}},
            "backendProcesses: 'gpu' is not among the backends sim",
            id="the process of nobody",
        ),
        pytest.param(
            {"backendProcesses": {"sim": {"runAsGroup": 5}}},
            "backendProcesses.sim: groups have no effect without runAsUser",
            id="a group without a user",
        ),
        pytest.param(
            {"backendProcesses": {"sim": {"runAsUser": 0}}},
            "backendProcesses: must be a number >= 1 - at `$[...].runAsUser`",
            id="a process of root",
        ),
        pytest.param(
            {"backendProcesses": {"sim": {"memoryLimit": "1.5G"}}},
            "backendProcesses: must be an amount of memory such as 512Mi or 2Gi - at `$[...].memoryLimit`",
            id="an amount of memory that is none",
        ),
        pytest.param(
            {"backendProcesses": {"sim": {"seccompProfile": {"type": "Localhost"}}}},
            "backendProcesses.sim.seccompProfile: set localhostProfile if type is Localhost, and only then",
            id="a profile of the node without a name",
        ),
        pytest.param(
            {"backendProcesses": {"sim": {"seccompProfile": {"type": "Localhost", "localhostProfile": "a/../../b"}}}},
            "backendProcesses: must be a path below the directory, without '..' - at",
            id="a profile outside of the directory",
        ),
        pytest.param(
            {"backendProcesses": {"sim": {"seccompProfile": {"type": "Unconfined"}}}},
            "backendProcesses: must be RuntimeDefault or Localhost, not 'Unconfined' - at",
            id="a kind of profile that there is not",
        ),
        pytest.param(
            {"backendProcesses": {"sim": {"cpuLimit": "0.5"}}},
            "backendProcesses: must be an amount of CPU such as 500m or 2 - at",
            id="an amount of CPU that is none",
        ),
        pytest.param(
            {"backendProcesses": {"sim": {"user": 5}}},
            "backendProcesses: contains unknown field `user`",
            id="a right of a process that there is not",
        ),
        pytest.param(
            {"backendOverheads": {"sim": {"memory": {"perPod": "much"}}}},
            "backendOverheads: must be an amount such as 500m or 256Mi - at `$[...][...].perPod`",
            id="an amount of a pod's overhead that is none",
        ),
        pytest.param(
            {"backendOverheads": {"sim": {"gpu": {"perPod": 1}}}},
            "backendOverheads: must be cpu, memory or ephemeral-storage - at",
            id="an overhead of what is not the node's",
        ),
        pytest.param(
            {"backendOverheads": {"sim": {"cpu": {}}}},
            "backendOverheads.sim.cpu: set perPod or perContainer",
            id="an overhead that says nothing",
        ),
        pytest.param({"logFile": "/a\0b"}, "logFile: must not contain control characters", id="NUL in a path"),
    ],
)
def test_a_wrong_setting_is_named_with_what_is_allowed(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_settings({**LEAST, **values})
    assert any(said.startswith(problem) for said in caught.value.problems), caught.value.problems


def test_all_wrong_settings_are_reported_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        parse_settings({"backends": 3, "logLevel": "x", "typo": 1})
    assert len(caught.value.problems) == 4


@pytest.mark.parametrize(
    ("address", "endpoint"),
    [("", None), (":8080", ("0.0.0.0", 8080)), ("127.0.0.1:0", ("127.0.0.1", 0)), ("[::1]:9", ("::1", 9))],
)
def test_the_http_address_is_a_host_and_a_port(address: str, endpoint: tuple[str, int] | None) -> None:
    assert parse_settings({**LEAST, "httpAddress": address}).http_endpoint == endpoint


def test_settings_cannot_be_built_wrong_by_code_either() -> None:
    with pytest.raises(SettingsError, match="too long"):
        Settings(backends=("sim",), node_name="n", unprepare_deadline=60)
