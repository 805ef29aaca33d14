"""What importing the client loads, seen in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from pydra.kube.lazy import EAGER_SWITCH, parse_exports

CLIENT = "import pydra.kube.client, pydra.kube.informer"
COUNT = "import json, sys; print(json.dumps([name for name in sys.modules if name.startswith('kubernetes_asyncio')]))"


def loaded(*statements: str, **environ: str) -> list[str]:
    program = "; ".join((*statements, COUNT))
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
        env={"PYTHONPATH": ":".join(filter(None, sys.path)), **environ},
    )
    names: list[str] = json.loads(run.stdout)
    return names


def test_the_client_loads_no_model_and_no_api() -> None:
    names = loaded(CLIENT)
    assert len(names) <= 9
    assert not [name for name in names if ".models." in name or ".api." in name]


def test_credentials_of_a_pod_do_not_load_what_a_kubeconfig_needs() -> None:
    names = loaded(CLIENT, "from kubernetes_asyncio.config.incluster_config import InClusterConfigLoader")
    assert len(names) <= 11
    assert "kubernetes_asyncio.config.kube_config" not in names


def test_a_kubeconfig_loads_no_model_either() -> None:
    names = loaded(CLIENT, "from kubernetes_asyncio.config.kube_config import load_kube_config")
    assert len(names) <= 20
    assert not [name for name in names if ".models." in name]


def test_the_package_still_works_as_it_is_documented() -> None:
    names = loaded(
        "import pydra.kube.lazy as lazy",
        "lazy.install()",
        "import kubernetes_asyncio",
        "from kubernetes_asyncio import client, config, watch",
        "assert client.V1Node(metadata=client.V1ObjectMeta(name='n')).metadata.name == 'n'",
        "assert client.ApiException and client.CoreV1Api and config.load_incluster_config and watch.Watch",
        "assert config.load_config.__module__ == 'kubernetes_asyncio.config'",
        "assert kubernetes_asyncio.__version__ == client.__version__",
        "assert not hasattr(client, 'V1Absent')",
    )
    models = [name for name in names if ".models." in name]
    assert 2 <= len(models) < 30


def test_what_the_configuration_hardly_uses_waits_for_its_use() -> None:
    program = (
        CLIENT,
        "assert 'urllib3' not in sys.modules and 'yaml' not in sys.modules",
        "from kubernetes_asyncio.client import Configuration",
        "assert Configuration(username='a', password='b').get_basic_auth_token() == 'Basic YTpi'",
        "import urllib3.exceptions",
        "assert urllib3.util.make_headers",
    )
    assert loaded("import sys", *program)


def test_a_switch_imports_the_package_as_it_is() -> None:
    assert len(loaded(CLIENT, **{EAGER_SWITCH: "1"})) > 500


@pytest.mark.parametrize(
    ("source", "exports"),
    [
        ("from kubernetes_asyncio.a.b import C", {"C": ("kubernetes_asyncio.a.b", "C")}),
        (
            "from kubernetes_asyncio.a import (B, C as D)",
            {"B": ("kubernetes_asyncio.a", "B"), "D": ("kubernetes_asyncio.a", "C")},
        ),
        ("import kubernetes_asyncio.client as client", {"client": ("kubernetes_asyncio.client", "")}),
        ("async def load(): ...", {"load": ("", "load")}),
        ("from __future__ import annotations\nimport warnings\nx = 1", {}),
    ],
    ids=["one", "two", "a module", "its own", "others"],
)
def test_exports_are_read_from_the_text(source: str, exports: dict[str, tuple[str, str]]) -> None:
    assert parse_exports(source) == exports
