"""What can be there only once, and is asked for twice: refused in words, or one of both and it is known which."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import helm_python
import pytest

from tests.chart.rendering import BOTH, NVIDIA, SIM, at, by_name, overlay, render

ONE_POD = overlay(BOTH, {"onePod": True})
CLASSES = "deviceClasses"
DIGEST = f"sha256:{'0' * 64}"
CONFIG_MAP = {"name": "mine", "mountPath": "/mine", "configMap": {"name": "mine"}}


def pools(**of: Mapping[str, Any]) -> dict[str, Any]:
    return at("backends.sim.nodePools", {"label": "kind", "pools": of})


def paths(*entries: Mapping[str, Any], backend: str = "sim") -> dict[str, Any]:
    return at(f"backends.{backend}.hostPaths", [*entries])


@pytest.mark.parametrize(
    ("values", "words"),
    [
        *(
            pytest.param(
                overlay(SIM, paths({"path": path})),
                f"backends.sim.hostPaths: the chart itself has something at {path.rstrip('/') or '/'} in the pod",
                id=path,
            )
            for path in (
                *("/", "/tmp/", "/host", "/etc/pydra", "/packages", "/var/run/cdi"),
                *("/var/lib/kubelet/plugins_registry", "/var/lib/kubelet/plugins/sim.pydra.dev"),
                "/run/pydra/sim.pydra.dev",
            )
        ),
        pytest.param(
            overlay(
                ONE_POD,
                paths({"path": "/run/a", "mountPropagation": "Bidirectional"}, backend="nvidia"),
                paths({"path": "/run/a/"}),
            ),
            "backends.sim.hostPaths: /run/a is mounted otherwise by backends.nvidia.hostPaths, and a pod has it once",
            id="a path in two ways",
        ),
        *(
            pytest.param(
                overlay(SIM, at("backends.sim.volumes", [*volumes])), f"backends.sim.volumes: {words}", id=words
            )
            for volumes, words in (
                (
                    [CONFIG_MAP | {"mountPath": "/tmp/"}],
                    "the pod has something else at /tmp; give mine another mountPath",
                ),
                (
                    [CONFIG_MAP | {"mountPath": "/var/run/pydra-sim"}],
                    "the pod has something else at /var/run/pydra-sim",
                ),
                (
                    [CONFIG_MAP, CONFIG_MAP | {"name": "b"}],
                    "the pod has something else at /mine; give b another mountPath",
                ),
                ([CONFIG_MAP | {"name": "token"}], "the pod has another volume token; give it another name"),
                (
                    [CONFIG_MAP | {"emptyDir": {}}],
                    "mine must have one source, such as configMap; found configMap, emptyDir",
                ),
                ([{"name": "h", "mountPath": "/h", "hostPath": {"path": "/h"}}], "h is a directory of the host"),
            )
        ),
        pytest.param(
            overlay(SIM, pools(a={"values": ["x"]}, b={"values": ["y", "x"]})),
            "backends.sim.nodePools: nodes with kind=x are in the pools a and b, and a node has one agent of a driver",
            id="a node in two pools",
        ),
        pytest.param(
            overlay(ONE_POD, pools(a={"values": ["x"]})),
            "backends.sim.nodePools: has no effect with onePod",
            id="pools in one pod",
        ),
        pytest.param(
            overlay(
                at("backends.nvidia-compute-domain.enabled", True),
                at("fullnameOverride", "x" * 32),
                at("backends.nvidia-compute-domain.nodePools.label", "kind"),
                at("backends.nvidia-compute-domain.nodePools.pools.largest-of-all.values", ["x"]),
            ),
            f"its DaemonSet would be called {'x' * 32}-nvidia-compute-domain-largest-of-all, which has 69 bytes",
            id="a pool's name that is too long",
        ),
        pytest.param(
            overlay(SIM, at("backends.sim.env", [{"name": "PYDRA_CONFIG", "value": "x"}])),
            "backends.sim.env: PYDRA_CONFIG is set by the chart, and only one of them would count",
            id="a variable of the chart",
        ),
        pytest.param(
            overlay(SIM, at("backends.sim.env", [{"name": "PYDRA_SIM_STATE", "value": "x"}])),
            "backends.sim.env: PYDRA_SIM_STATE is set by backends.sim.settings.state",
            id="a variable of a setting",
        ),
        pytest.param(
            overlay(
                ONE_POD,
                at("backends.nvidia.env", [{"name": "A", "value": "1"}]),
                at("backends.sim.env", [{"name": "A", "value": "2"}]),
            ),
            "backends.sim.env: A is set by backends.nvidia.env",
            id="a variable of another backend",
        ),
        pytest.param(
            overlay(SIM, at(f"backends.sim.{CLASSES}.names", {"sim.pydra.dev": "partition.sim.pydra.dev"})),
            "deviceClasses.names: two DeviceClasses of driver sim.pydra.dev would be called partition.sim.pydra.dev",
            id="a class with the name of another",
        ),
        pytest.param(
            overlay(BOTH, at(f"backends.sim.{CLASSES}.names", {"sim.pydra.dev": "mig.nvidia.com"})),
            "backends.nvidia and backends.sim both have a DeviceClass mig.nvidia.com: give one of them another name"
            " with backends.sim.deviceClasses.names",
            id="a class with the name of another backend's",
        ),
        pytest.param(
            overlay(BOTH, at(f"backends.sim.{CLASSES}.extendedResourceNames", {"sim.pydra.dev": "nvidia.com/gpu"})),
            "the extended resource nvidia.com/gpu stands for the DeviceClasses gpu.nvidia.com and sim.pydra.dev, and"
            " pods would get either",
            id="an extended resource for two classes",
        ),
        pytest.param(
            overlay(
                BOTH,
                at("backends.nvidia-compute-domain.enabled", True),
                at("backends.nvidia.nodePools", {"label": "l", "pools": {"compute-domain": {"values": ["a"]}}}),
            ),
            "its DaemonSet would be called pydra-nvidia-compute-domain, as that of backends.nvidia-compute-domain is",
            id="a pool of nodes with the name of a backend",
        ),
        pytest.param(
            overlay(BOTH, at("image.digest", DIGEST)),
            "image.digest: backends nvidia and sim have an image each, and a digest is of one image: set"
            " backends.NAME.image.digest",
            id="a digest for two images",
        ),
        pytest.param(
            overlay(SIM, at("updateStrategy.rollingUpdate.maxUnavailable", 1)),
            "updateStrategy.rollingUpdate: maxSurge is 1 and maxUnavailable 1; one of them is 0, and the other is not",
            id="more and fewer at once",
        ),
        pytest.param(
            overlay(SIM, at("updateStrategy.rollingUpdate.maxSurge", "0%")),
            "updateStrategy.rollingUpdate: maxSurge is 0% and maxUnavailable 0",
            id="neither more nor fewer",
        ),
        pytest.param(
            overlay(SIM, at("updateStrategy.rollingUpdate.maxUnavailable", None)),
            "updateStrategy.rollingUpdate: maxSurge is 1 and maxUnavailable 1",
            id="more, and as many fewer as Kubernetes says",
        ),
    ],
)
def test_what_can_be_there_once_is_refused_twice(values: Mapping[str, Any], words: str) -> None:
    with pytest.raises(helm_python.HelmRenderError) as caught:
        render(values)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        pytest.param({"webhook": None}, "missing property 'webhook'", id="no webhook at all"),
        pytest.param(at("image.tag", "a b"), "at '/image/tag'", id="a tag with a blank"),
        pytest.param(at("commonLabels", {"helm.sh/chart": "a"}), "invalid propertyName 'helm.sh/chart'", id="chart's"),
        pytest.param(at("fullnameOverride", "a.b"), "at '/fullnameOverride'", id="a dot in a Service's name"),
        pytest.param(at(f"backends.sim.{CLASSES}.names", {"sim.pydra.dev": "it's"}), "/names/sim.pydra.dev", id="name"),
        pytest.param(at(f"backends.sim.{CLASSES}.classes", {"A b": {}}), "invalid propertyName 'A b'", id="class"),
    ],
)
def test_the_schema_refuses_what_no_template_can_use(values: Mapping[str, Any], words: str) -> None:
    with pytest.raises(helm_python.HelmValuesError) as caught:
        render(SIM, values)
    assert words in str(caught.value)


def test_paths_of_similar_names_have_volumes_of_their_own() -> None:
    long = f"/run/{'x' * 70}"
    wanted = ["/a/b", "/a-b", "/a/B", long, f"{long}/1"]
    pod = render(SIM, paths(*({"path": path} for path in wanted), {"path": "/", "mountPath": "/rootfs"})).pod()
    volumes, mounts = by_name(pod["volumes"]), by_name(pod["containers"][0]["volumeMounts"])
    seen = {mounts[name]["mountPath"]: one["hostPath"]["path"] for name, one in volumes.items() if "hostPath" in one}
    assert {path: path for path in wanted}.items() <= seen.items()
    assert (seen["/rootfs"], seen["/host"]) == ("/", "/")
    assert all(len(name) <= 63 for name in volumes)


def test_a_path_that_two_backends_mount_alike_is_mounted_once() -> None:
    entry = {"path": "/run/a", "type": "Directory"}
    pod = render(ONE_POD, paths(entry), paths(entry, backend="nvidia")).pod()
    assert [one["hostPath"] for one in pod["volumes"] if one.get("hostPath", {}).get("path") == "/run/a"] == [entry]


def test_one_digest_is_enough_where_the_others_have_images_of_their_own() -> None:
    objects = render(BOTH, at("image.digest", DIGEST), at("backends.sim.image.tag", "2"))
    assert objects.agent("pydra-nvidia")["image"] == f"pydra-nvidia@{DIGEST}"
    assert objects.agent("pydra-sim")["image"] == "pydra-sim:2"


def test_a_class_that_is_null_is_left_out_with_its_extended_resource() -> None:
    objects = render(NVIDIA, at(f"backends.nvidia.{CLASSES}.classes", {"gpu.nvidia.com": None}))
    assert {one["metadata"]["name"] for one in objects.all("DeviceClass")} == {"mig.nvidia.com", "vfio.gpu.nvidia.com"}


def test_labels_and_annotations_of_the_chart_itself_are_kept() -> None:
    ours = ("app.kubernetes.io/component", "pydra.dev/agent", "pydra.dev/webhook", "pydra.dev/settings", "helm.sh/hook")
    mine = dict.fromkeys((*ours, "pydra.dev/certificate", "b"), "mine")
    values = overlay(SIM, {"webhook": {"enabled": True}, "podLabels": mine, "podAnnotations": mine})
    for kind, labels, annotation in (
        ("DaemonSet", {"app.kubernetes.io/component": "agent", "pydra.dev/agent": "pydra-sim"}, "pydra.dev/settings"),
        ("Deployment", {"app.kubernetes.io/component": "webhook"}, "pydra.dev/certificate"),
        ("Pod", {"app.kubernetes.io/component": "test", "pydra.dev/test": "pydra"}, "helm.sh/hook"),
    ):
        pod = render(values).one(kind)
        found = pod["spec"].get("template", pod)["metadata"]
        assert {**labels, "b": "mine"}.items() <= found["labels"].items()
        assert found["annotations"]["b"] == "mine"
        assert found["annotations"][annotation] != "mine"
