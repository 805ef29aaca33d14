"""What the chart hands to the agent and its backends is read there as it was meant."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

import pydra_sim
from pydra.backends.backend_settings import read_settings as read_backend_settings
from pydra.cli.agent import build_parser, read_settings
from pydra.settings import LogLevel, Overhead, Settings
from pydra_cpu.kubelet_policy import find_static_manager
from pydra_cpu.settings import Settings as CpuSettings
from pydra_nvidia import settings as nvidia
from pydra_pci import Reaction, Roots, Tree
from tests.chart.rendering import (
    BOTH,
    CHART,
    KNOWN,
    NVIDIA,
    SIM,
    Objects,
    at,
    by_name,
    overlay,
    render,
    settings_file,
    variables,
)


def read_by_agent(objects: Objects, tmp_path: Path, name: str = "") -> Settings:
    """The settings that the pod's agent would have."""
    config = tmp_path / "agent.yaml"
    config.write_text(settings_file(objects, name))
    container = objects.agent(name)
    environ = {
        **variables(container),
        "PYDRA_CONFIG": str(config),
        "PYDRA_NODE_NAME": "node-1",
        "PYDRA_POD_UID": "0f0f",
    }
    arguments: argparse.Namespace = build_parser().parse_args(container["args"])
    return read_settings(arguments, environ)


def test_the_agent_reads_what_the_chart_writes(tmp_path: Path) -> None:
    objects = render(
        SIM,
        {
            "kubelet": {"root": "/k"},
            "records": {"path": "/state"},
            "cdi": {"path": "/etc/cdi"},
            "http": {"host": "::", "port": 8080},
        },
        {"settings": {"logLevel": "debug", "drainGrace": 7.5, "verifyX509Strict": True, "prepareDeadline": 30}},
        at("backends.sim.agentSettings", {"prepareDeadline": 20, "numaNodeLists": True}),
        at("backends.sim.overheads", {"memory": {"perPod": "256Mi"}}),
    )
    settings = read_by_agent(objects, tmp_path)
    assert settings.numa_node_lists
    assert settings.backend_overheads == {"sim": {"memory": Overhead(per_pod="256Mi")}}
    assert settings.backends == ("sim",)
    assert settings.drivers == {"sim": "sim.pydra.dev"}
    assert settings.records_directory("sim.pydra.dev") == "/state/sim.pydra.dev"
    assert (settings.kubelet_root, settings.cdi_dir, settings.host_root) == ("/k", "/etc/cdi", "/host")
    assert settings.http_endpoint == ("::", 8080)
    assert (settings.log_level, settings.verify_x509_strict) == (LogLevel.DEBUG, True)
    assert (settings.prepare_deadline, settings.drain_grace) == (20, 7.5)
    assert settings.pod_uid == "0f0f"


def test_the_kubelets_claims_are_read_through_the_mount_of_the_hosts_root(tmp_path: Path) -> None:
    objects = render(SIM, at("kubelet.root", "/data/kubelet"))
    assert read_by_agent(objects, tmp_path).kubelet_claims == "/host/data/kubelet/dra_manager_state"
    mounts, volumes = by_name(objects.agent()["volumeMounts"]), by_name(objects.pod()["volumes"])
    assert volumes["host"]["hostPath"]["path"] == "/"
    assert (mounts["host"]["mountPath"], mounts["host"]["readOnly"]) == ("/host", True)


def test_the_managers_of_a_kubelet_in_another_directory_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as that of k0s or MicroK8s: one that restricts containers to CPUs gives those of claims to others."""
    state = tmp_path / "data/kubelet/cpu_manager_state"
    state.parent.mkdir(parents=True)
    state.write_text('{"policyName": "static"}')
    objects = render(at("backends.cpu.enabled", True), at("kubelet.root", "/data/kubelet"))
    for name, value in variables(objects.agent()).items():
        monkeypatch.setenv(name, value)
    tree = Tree(Roots(host=str(tmp_path)))
    assert find_static_manager(tree, CpuSettings().kubelet_root).startswith("CPU manager policy static")


def test_a_backend_that_the_image_lacks_is_in_the_last_words_of_the_pod(tmp_path: Path) -> None:
    container = render(at("backends.fpga", {**OF_A_VENDOR, "driver": "fpga.example.com"})).agent("pydra-fpga")
    assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"
    config = tmp_path / "agent.yaml"
    config.write_text("{}")
    done = subprocess.run(
        [sys.executable, "-m", "pydra.cli.agent", *container["args"]],
        env={**os.environ, **variables(container), "PYDRA_CONFIG": str(config), "PYDRA_NODE_NAME": "node-1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    shown = done.stderr[-2048:]  # so much the kubelet takes of a log
    for words in ("fpga", "not installed", KNOWN):
        assert words in shown


def test_one_agent_of_all_backends_reads_what_the_chart_writes(tmp_path: Path) -> None:
    settings = read_by_agent(render(overlay(BOTH, {"onePod": True})), tmp_path)
    assert settings.backends == ("nvidia", "sim")
    assert settings.drivers == {"nvidia": "gpu.nvidia.com", "sim": "sim.pydra.dev"}


def test_the_pod_has_the_time_that_the_agent_takes_to_leave(tmp_path: Path) -> None:
    for grace in (None, 0.5, 33.2, 120):
        objects = render(SIM, {"settings": {} if grace is None else {"drainGrace": grace}})
        drain = read_by_agent(objects, tmp_path).drain_grace
        assert drain + 15 <= objects.pod()["terminationGracePeriodSeconds"] <= drain + 25


def test_a_pod_is_replaced_when_its_settings_change_and_keeps_its_own_until_then() -> None:
    def template(**settings: Any) -> Any:
        objects = render(SIM, {"settings": settings})
        pod = objects.pod()
        # What is not in the template, such as a ConfigMap, an old pod would read of the new revision.
        read_later = [one["name"] for one in pod["volumes"] if {"configMap", "secret", "projected"} & set(one)]
        assert read_later == ["token"]
        assert "ConfigMap" not in {one["kind"] for one in objects}
        (mount,) = [one for one in objects.agent()["volumeMounts"] if one["name"] == "config"]
        assert mount == {"name": "config", "mountPath": "/etc/pydra", "readOnly": True}
        return objects.one("DaemonSet")["spec"]["template"]

    assert template() == template()
    assert template() != template(logLevel="debug")


def test_no_setting_is_a_text_of_any_length_that_an_annotation_would_not_hold() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())["$defs"]["agentSettings"]["properties"]
    unlimited = {key for key, one in schema.items() if "enum" not in one and one["type"] not in ("number", "boolean")}
    assert unlimited == set(), "Kubernetes allows 256 KiB for all annotations of a pod: refuse longer ones in words"
    longest: dict[str, list[Any]] = {"number": [29.123456789], "boolean": [False]}
    most = {
        key: max(one.get("enum") or longest[one["type"]], key=lambda value: len(str(value)))
        for key, one in schema.items()
    }
    assert len(settings_file(render(SIM, {"settings": most}))) < 4096


EXAMPLES: dict[str, Any] = {
    "scenario": "hgx-h100",
    "state": "/run/other",
    "driver_root": "/run/nvidia/driver",
    "dev_root": "/run/nvidia/driver",
    "dynamic_mig": True,
    "orphans": nvidia.Orphans.REMOVE,
    "time_slicing": False,
    "mps": False,
    "mps_launcher": nvidia.MpsLauncher.DIRECT,
    "consumable_shares": 16,
    "vfio": True,
    "health": False,
    "xids_ignored": (31, 43),
    "xids_fatal": (1000000,),
    "signals": {nvidia.Signal.XID: Reaction.NO_EXECUTE, nvidia.Signal.ECC: Reaction.IGNORE},
    "quiet_period": 1000000.0,
    "cdi_hook": "/usr/bin/nvidia-cdi-hook",
    "poll_period": 2.5,
    "mps_shared_memory": "2Gi",
    "mps_ready_deadline": 1.0,
    "vfio_idle_deadline": 90.0,
    "fabric_partitions": True,
    "fabric_manager_socket": "/run/other/socket",
}


def camel(name: str) -> str:
    return re.sub(r"_(\w)", lambda match: match[1].upper(), name)


def nvidia_settings(objects: Objects) -> nvidia.Settings:
    """As the agent reads them."""
    own = yaml.safe_load(settings_file(objects)).get("backendSettings", {}).get("nvidia", {})
    settings = read_backend_settings(nvidia.Settings, "nvidia", nvidia.PREFIX, {}, own)
    assert isinstance(settings, nvidia.Settings)
    return msgspec.structs.replace(settings, host_root=variables(objects.agent())["PYDRA_HOST_ROOT"])


@pytest.mark.parametrize(
    "field",
    [one for one in msgspec.structs.fields(nvidia.Settings) if one.name not in ("host_root", "sys_root", "proc_root")],
    ids=lambda field: field.name,
)
def test_each_setting_of_the_nvidia_backend_arrives(field: msgspec.structs.FieldInfo) -> None:
    wanted = EXAMPLES[field.name]
    objects = render(
        NVIDIA, at(f"backends.nvidia.settings.{camel(field.name)}", msgspec.to_builtins(wanted, str_keys=True))
    )
    settings = nvidia_settings(objects)
    assert getattr(settings, field.name) == wanted
    assert getattr(nvidia.parse_settings({}), field.name) != wanted or field.name == "mps_launcher"
    assert settings.host_root == "/host"


OF_A_VENDOR = {"enabled": True, "driver": "x.dev", "deviceClasses": {"classes": {}}}
OWN_SETTINGS = {
    "aValue": [1, 2],
    "other": True,
    "ratio": 0.5,
    "many": 1000000,
    "path": "/<a>&b",
    "words": {"x": "yes"},
    "text": "1e3",
}
DIRECT = at("backends.nvidia.settings.mpsLauncher", "direct")


@pytest.mark.parametrize(("vfio", "seen"), [(True, True), (False, None)])
def test_passthrough_sees_all_who_might_use_a_gpu(*, vfio: bool, seen: bool | None) -> None:
    objects = render(NVIDIA, DIRECT, at("backends.nvidia.settings.vfio", vfio), at("openshift.enabled", True))
    assert objects.pod().get("hostPID") is seen
    assert objects.one("SecurityContextConstraints")["allowHostPID"] is vfio


def test_by_default_mps_daemons_are_where_they_outlive_the_pod() -> None:
    objects = render(NVIDIA)
    assert nvidia_settings(objects).mps_launcher is nvidia.MpsLauncher.HOST
    assert objects.pod()["hostPID"] is True
    assert "hostPID" not in render(NVIDIA, DIRECT).pod()
    mounts = {one["mountPath"]: one for one in objects.agent()["volumeMounts"]}
    assert mounts[nvidia.Settings().state]["mountPropagation"] == "Bidirectional"


@pytest.mark.parametrize(
    "values",
    [
        pytest.param(at("backends.my-fpga", {**OF_A_VENDOR, "settings": OWN_SETTINGS}), id="one of a vendor"),
        pytest.param(
            overlay(
                SIM,
                at("onePod", True),
                at("backends.my-fpga", OF_A_VENDOR),
                at("backends.sim.settings.scenario", "shared"),
            ),
            id="all in one pod",
        ),
    ],
)
def test_the_agent_hands_a_backend_its_settings_as_the_values_have_them(
    values: Mapping[str, Any], tmp_path: Path
) -> None:
    found = read_by_agent(render(values), tmp_path).backend_settings
    for name, backend in overlay(yaml.safe_load((CHART / "values.yaml").read_text()), values)["backends"].items():
        if backend["enabled"]:
            assert found.get(name, {}) == backend.get("settings", {})


def test_settings_of_a_backend_are_read_as_its_type(tmp_path: Path) -> None:
    objects = render(SIM, at("backends.sim.settings.scenario", "shared"))
    given = read_by_agent(objects, tmp_path).backend_settings["sim"]
    read = read_backend_settings(pydra_sim.SETTINGS_TYPE, "sim", "PYDRA_SIM_", variables(objects.agent()), given)
    assert read == pydra_sim.Settings(scenario="shared", state="/var/run/pydra-sim")


def test_the_agents_settings_in_the_schema_are_all_but_those_that_follow_from_others() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())["$defs"]["agentSettings"]
    written = set(yaml.safe_load(settings_file(render(SIM))))
    left = {one.encode_name for one in msgspec.structs.fields(Settings)} - set(schema["properties"])
    assert left == written - {"logFormat"} | {
        # arguments and variables of the pod
        *("backends", "drivers", "nodeName", "podUid", "kubeconfig", "hostRoot", "kubeletRoot"),
        *("registryDir", "pluginsDir", "bootIdFile", "logFile"),  # have their places in a pod
        *(
            "backendSettings",
            "backendProcesses",
            "backendOverheads",
        ),  # from backends.NAME.settings, .process, .overheads
    }
