"""Brings up a kind cluster that the tests in tests/e2e can be run against, where docker is.

    python hack/kind.py up --load busybox:1.37 pydra-sim.tar     a cluster `pydra`, with these images; prints variables
    eval "$(python hack/kind.py env)" && make e2e                as root: agents run beside the node's kubelet
    python hack/kind.py down

An image is a name that docker has, or a tar file. The node shares SHARED with this machine, at the same path, so that a
process of a test and the kubelet mean the same by it: the kubelet's root, sockets, and what pytest and the simulations
write. Exit codes: 1 when a command fails, 2 when docker or kind is missing.
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
}
"""What the tests ask for, and the minor version that knows it first; a component does not start with one unknown."""

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
    places = {SHARED: SHARED, SHARED / "kubelet": Path("/var/lib/kubelet"), CDI: CDI}
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


def build_environment(name: str) -> dict[str, str]:
    """What the tests need to know of the cluster."""
    serves = "until curl -sf http://127.0.0.1:10248/healthz; do sleep 1; done"
    restart = ["docker", "exec", f"{name}-control-plane", "sh", "-c", f"systemctl restart kubelet && {serves}"]
    return {
        "KUBECONFIG": f"{SHARED}/kubeconfig",
        "PYDRA_E2E_NODE": f"{name}-control-plane",
        "PYDRA_E2E_KUBELET_ROOT": f"{SHARED}/kubelet",
        "PYDRA_E2E_KUBELET_RESTART": shlex.join(restart),
        "TMPDIR": f"{SHARED}/tmp",
    }


def load_command(name: str, image: str) -> list[str]:
    """How an image gets to the node."""
    kind = "image-archive" if image.endswith(".tar") else "docker-image"
    return ["kind", "load", kind, image, "--name", name]


def up(name: str, image: str, images: Sequence[str]) -> None:
    """Make the cluster, and have the images on its node."""
    config = build_config(read_minor(image))
    environment = build_environment(name)
    for path in (SHARED / "kubelet", SHARED / "tmp", CDI):
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Trouble(f"{path}: {error.strerror}; the tests need root, and so does this") from error
    wanted = ["--config", "-", "--image", image, "--kubeconfig", environment["KUBECONFIG"], "--wait", "3m"]
    call(["kind", "create", "cluster", "--name", name, *wanted], text=json.dumps(config))
    for one in images:
        call(load_command(name, one))


def down(name: str) -> None:
    """Remove the cluster, and what its kubelet left."""
    call(["kind", "delete", "cluster", "--name", name, "--kubeconfig", build_environment(name)["KUBECONFIG"]])
    shutil.rmtree(SHARED, ignore_errors=True)


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
    parser.add_argument("--load", nargs="*", default=[], metavar="IMAGE", help="for the node: of docker, or a tar file")
    asked = parser.parse_args(arguments)
    try:
        if asked.what == "config":
            print(json.dumps(build_config(read_minor(asked.image)), indent=2))
            return 0
        if asked.what in ("up", "down"):
            require_tools()
        if asked.what == "up":
            up(asked.name, asked.image, asked.load)
        if asked.what == "down":
            down(asked.name)
        else:
            for key, value in build_environment(asked.name).items():
                print(f"export {key}={shlex.quote(value)}")
    except Trouble as trouble:
        print(f"kind.py: {trouble}", file=sys.stderr)
        return trouble.code
    return 0


if __name__ == "__main__":
    sys.exit(main())
