"""From the checkpoint of NVIDIA's ComputeDomain plugin to claims as ours. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from pydra import AllocatedDevice, Claim, StepStage, describe_step
from pydra_nvidia.compute_domain.claim_config import KINDS, ComputeDomainDaemonConfig
from pydra_nvidia.compute_domain.steps import MakeDomainDirectory
from pydra_nvidia.takeover.vendor_checkpoint import VendorCheckpoint


def convert_claims(checkpoint: VendorCheckpoint) -> Iterator[Claim]:
    """The claims that were prepared whole; what was begun, the kubelet has prepared again."""
    for vendor in checkpoint.claims:
        configs = {one.device: KINDS[one.kind](domain=one.domain) for one in vendor.devices if one.kind in KINDS}
        if not vendor.completed or not configs:
            continue
        devices = [
            AllocatedDevice(
                request=one.request, pool=one.pool, device=one.device, configs=(configs[one.device],), explicit=(True,)
            )
            for one in vendor.devices
            if one.device in configs
        ]
        steps = [
            describe_step(MakeDomainDirectory(domain=config.domain), stage=StepStage.DONE)
            for config in configs.values()
            if isinstance(config, ComputeDomainDaemonConfig)
        ]
        yield Claim(
            uid=vendor.uid, namespace=vendor.namespace, name=vendor.name, devices=tuple(devices), steps=tuple(steps)
        )
