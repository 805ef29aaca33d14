"""What the kubelet says to a container runtime, as far as these tests need it. Source: cri-api, runtime.v1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydra_nri.protobuf import Value


class PodMetadata(Value, frozen=True, kw_only=True):
    name: Annotated[str, 1] = ""
    uid: Annotated[str, 2] = ""
    namespace: Annotated[str, 3] = ""


class PodConfig(Value, frozen=True, kw_only=True):
    metadata: Annotated[PodMetadata, 1] = PodMetadata()
    log_directory: Annotated[str, 3] = ""
    labels: Annotated[Mapping[str, str], 6] = {}


class RunPodSandboxRequest(Value, frozen=True, kw_only=True):
    config: Annotated[PodConfig, 1] = PodConfig()


class ContainerMetadata(Value, frozen=True, kw_only=True):
    name: Annotated[str, 1] = ""


class ImageSpec(Value, frozen=True, kw_only=True):
    image: Annotated[str, 1] = ""


class Variable(Value, frozen=True, kw_only=True):
    key: Annotated[str, 1] = ""
    value: Annotated[str, 2] = ""


class ContainerConfig(Value, frozen=True, kw_only=True):
    metadata: Annotated[ContainerMetadata, 1] = ContainerMetadata()
    image: Annotated[ImageSpec, 2] = ImageSpec()
    envs: Annotated[tuple[Variable, ...], 6] = ()
    log_path: Annotated[str, 11] = ""


class CreateContainerRequest(Value, frozen=True, kw_only=True):
    pod_sandbox_id: Annotated[str, 1] = ""
    config: Annotated[ContainerConfig, 2] = ContainerConfig()
    sandbox_config: Annotated[PodConfig, 3] = PodConfig()


class Resources(Value, frozen=True, kw_only=True):
    cpu_shares: Annotated[int, 3] = 0
    cpuset_cpus: Annotated[str, 6] = ""


class UpdateContainerResourcesRequest(Value, frozen=True, kw_only=True):
    container_id: Annotated[str, 1] = ""
    linux: Annotated[Resources, 2] = Resources()


class Identified(Value, frozen=True, kw_only=True):
    """A request or an answer with one ID."""

    id: Annotated[str, 1] = ""


class Empty(Value, frozen=True, kw_only=True):
    """A message without fields, or an answer that nobody reads."""
