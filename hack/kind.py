"""Brings up a kind cluster that the tests in tests/e2e can be run against, where docker is.

    make image ENGINE=docker IMAGE=localhost/pydra TAG=1
    docker pull busybox:1.37
    python hack/kind.py up --pods busybox:1.37 --chart localhost/pydra:1       a cluster `pydra`; prints variables
    eval "$(python hack/kind.py env)" && make e2e                              as root: agents run beside the kubelet
    python hack/kind.py down

Images are names that docker has. Without `--chart` no test installs the chart. The node shares SHARED and SCRATCH with
this machine, at the same paths, so that a process of a test and the kubelet mean the same by them: the kubelet's root,
sockets, and what pytest and the simulations write. Exit codes: 1 when a command fails, 2 when docker or kind is
missing.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

NAME = "pydra"
NODE_IMAGE = "kindest/node:v1.34.0"
SHARED = Path("/var/lib/pydra-kind")
KUBECONFIG, VARIABLES = SHARED / "kubeconfig", SHARED / "variables.json"
SCRATCH = Path("/var/pydra-e2e")
"""For the tests' files: a short path, since there are sockets below it, whose paths are of 107 bytes at most."""
CDI = Path("/var/run/cdi")
NEEDED = ("docker", "kind")
OLDEST = 34
GATES: Mapping[str, int] = {
    "DRAAdminAccess": 34,
    "DRAConsumableCapacity": 34,
    "DRADeviceBindingConditions": 34,
    "DRADeviceTaints": 34,
    "DRAExtendedResource": 34,
    "DRAPartitionableDevices": 34,
    "DRAPrioritizedList": 34,
    "DRAResourceClaimDeviceStatus": 34,
    "ResourceHealthStatus": 34,
    "DRADeviceTaintRules": 35,
    "DRAListTypeAttributes": 36,
    "DRANodeAllocatableResources": 36,
    "DRADeviceCompatibilityGroups": 37,
    "DRAPartitionableDevicesType": 37,
}
"""What the tests ask for, and the minor version that knows it first; a component does not start with one unknown."""

BACKENDS = ("amd", "cpu", "net", "nvidia", "nvidia-compute-domain", "sim", "tpu")
"""Those that tests install with the chart."""

APIS = ("v1", "v1beta1", "v1beta2", "v1alpha3")


class Trouble(Exception):
    """Why it cannot go on, and the exit code."""

    def __init__(self, said: str, code: int = 2) -> None:
        super().__init__(said)
        self.code = code


def read_minor(image: str) -> int:
    """The minor version in the tag of a node image."""
    found = re.search(r":v1\.(\d+)\.\d+", image)
    if not found:
        raise Trouble(f"--image {image}: its tag names no Kubernetes version, as in {NODE_IMAGE}")
    minor = int(found[1])
    if minor < OLDEST:
        raise Trouble(f"--image {image}: Kubernetes 1.{minor} has no resource.k8s.io/v1; 1.{OLDEST} or newer is needed")
    return minor


def build_config(minor: int) -> dict[str, Any]:
    """kind's configuration of the cluster; JSON is YAML."""
    places = {SHARED: SHARED, SCRATCH: SCRATCH, SHARED / "kubelet": Path("/var/lib/kubelet"), CDI: CDI}
    mounts = [{"hostPath": str(here), "containerPath": str(there)} for here, there in places.items()]
    return {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "featureGates": {gate: True for gate, first in GATES.items() if minor >= first},
        "runtimeConfig": {f"resource.k8s.io/{version}": "true" for version in APIS},
        "containerdConfigPatches": ['[plugins."io.containerd.grpc.v1.cri"]\n  enable_cdi = true\n'],
        "nodes": [
            {"role": "control-plane", "extraMounts": [{**mount, "propagation": "Bidirectional"} for mount in mounts]}
        ],
    }


def build_environment(name: str, pods: str, chart: str, older: str) -> dict[str, str]:
    """What the tests need to know of the cluster. Each variable is explained in tests/e2e/README.md."""
    serves = "until curl -sf http://127.0.0.1:10248/healthz; do sleep 1; done"
    restart = ["docker", "exec", f"{name}-control-plane", "sh", "-c", f"systemctl restart kubelet && {serves}"]
    return {
        "KUBECONFIG": str(KUBECONFIG),
        "PYDRA_E2E_IMAGE": pods,
        **({"PYDRA_E2E_CHART_IMAGE": chart} if chart else {}),
        **({"PYDRA_E2E_OLDER_IMAGE": older} if older else {}),
        "PYDRA_E2E_NODE": f"{name}-control-plane",
        "PYDRA_E2E_KUBELET_ROOT": f"{SHARED}/kubelet",
        "PYDRA_E2E_KUBELET_RESTART": shlex.join(restart),
        "TMPDIR": str(SCRATCH),
    }


def list_images(pods: str, chart: str, older: str) -> list[str]:
    """What the node must have: the core's image and those of BACKENDS, of older ones the simulation's."""
    parts = [(chart, ("", *BACKENDS)), (older, ("", "sim"))]
    ours = [
        f"-{name}:".join(image.rsplit(":", 1)) if name else image for image, names in parts if image for name in names
    ]
    return [pods, *ours]


def up(name: str, image: str, pods: str, chart: str, older: str) -> None:
    """Make the cluster, and have the images on its node."""
    config = build_config(read_minor(image))
    for one in (chart, older):
        if one and ":" not in one.rpartition("/")[2]:
            raise Trouble(f"{one}: found no tag; `make image IMAGE=localhost/pydra TAG=1` makes localhost/pydra:1")
    for path in (SHARED / "kubelet", SCRATCH, CDI):
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Trouble(f"{path}: {error.strerror}; the tests need root, and so does this") from error
    wanted = ["--config", "-", "--image", image, "--kubeconfig", str(KUBECONFIG), "--wait", "3m"]
    call(["kind", "create", "cluster", "--name", name, *wanted], text=json.dumps(config))
    for one in list_images(pods, chart, older):
        call(["kind", "load", "docker-image", one, "--name", name])
    VARIABLES.write_text(json.dumps(build_environment(name, pods, chart, older)))


def down(name: str) -> None:
    """Remove the cluster, and what its kubelet left."""
    call(["kind", "delete", "cluster", "--name", name, "--kubeconfig", str(KUBECONFIG)])
    for path in (SHARED, SCRATCH):
        shutil.rmtree(path, ignore_errors=True)


def tell() -> None:
    """Print what a shell takes for the variables."""
    try:
        variables = json.loads(VARIABLES.read_text())
    except OSError as error:
        raise Trouble(f"there is no cluster of this helper ({VARIABLES}: {error.strerror}); make one: up") from error
    for key, value in variables.items():
        print(f"export {key}={shlex.quote(value)}")


def call(command: Sequence[str], *, text: str = "") -> None:
    """Run it; what it says goes to stderr, since stdout is for the variables."""
    if subprocess.run(command, input=text, text=True, stdout=sys.stderr, check=False).returncode:
        raise Trouble(f"this failed, for the reason above: {shlex.join(command)}", code=1)


def require_tools() -> None:
    """All programs, and a docker that answers."""
    if missing := [tool for tool in NEEDED if not shutil.which(tool)]:
        raise Trouble(f"not on the PATH: {', '.join(missing)}; kind needs all of {', '.join(NEEDED)}")
    asked = subprocess.run(["docker", "info"], capture_output=True, text=True, check=False)
    if asked.returncode:
        raise Trouble(f"docker does not answer: {asked.stderr.strip()}")


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="kind.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=("up", "down", "env", "config"))
    parser.add_argument("--name", default=NAME, help="of the cluster (%(default)s)")
    parser.add_argument("--image", default=NODE_IMAGE, help="of the node, with its Kubernetes version (%(default)s)")
    parser.add_argument("--pods", default="busybox:1.37", metavar="IMAGE", help="for pods: one with sh (%(default)s)")
    parser.add_argument(
        "--chart", default="", metavar="IMAGE", help="pydra's, such as localhost/pydra:1; those of backends go too"
    )
    parser.add_argument("--older", default="", metavar="IMAGE", help="of an earlier version, to upgrade from")
    asked = parser.parse_args(arguments)
    try:
        if asked.what == "config":
            print(json.dumps(build_config(read_minor(asked.image)), indent=2))
            return 0
        if asked.what in ("up", "down"):
            require_tools()
        if asked.what == "up":
            up(asked.name, asked.image, asked.pods, asked.chart, asked.older)
        if asked.what == "down":
            down(asked.name)
        else:
            tell()
    except Trouble as trouble:
        print(f"kind.py: {trouble}", file=sys.stderr)
        return trouble.code
    return 0


if __name__ == "__main__":
    sys.exit(main())
