"""How pydra names things in CDI: kind, device, qualified id, file. Pure.

Every name holds the claim's uid, so no name is ever used again with other content; runtimes cache
specs and would serve the old one. Source: CDI specification 1.1.0.
"""

from __future__ import annotations

from pydra.claim import PreparedDevice, is_file_name

CLASS = "claim"
SUFFIX = ".json"


def cdi_vendor(driver: str) -> str:
    """The vendor part of the kind: the driver's name, behind `k8s.` where CDI would refuse its leading digit."""
    return driver if driver[:1].isalpha() else f"k8s.{driver}"


def cdi_kind(driver: str) -> str:
    """The kind of every spec of a driver, such as `gpu.example.com/claim`."""
    return f"{cdi_vendor(driver)}/{CLASS}"


def cdi_device_name(uid: str, device: PreparedDevice) -> str:
    """`<claim uid>:<base request>:<device>[:<share id>]`."""
    request = device.request.partition("/")[0]
    parts = (uid, request, device.device, device.share_id)
    return ":".join(part for part in parts if part is not None)


def cdi_id(driver: str, uid: str, device: PreparedDevice) -> str:
    """The qualified id that the kubelet hands to the runtime: `<kind>=<device name>`."""
    return f"{cdi_kind(driver)}={cdi_device_name(uid, device)}"


def cdi_ids(driver: str, uid: str, device: PreparedDevice) -> tuple[str, ...]:
    """The ids to answer the kubelet with: none for a device that edits nothing, since CDI has no empty device."""
    return () if device.edits.is_empty else (cdi_id(driver, uid, device),)


def cdi_file_name(driver: str, uid: str) -> str:
    """The claim's file, `<vendor>-claim_<uid>.json`.

    Raises:
        ValueError: the uid cannot be part of a file name.
    """
    if not is_file_name(uid):
        raise ValueError(f"{uid[:64]!r} cannot name a CDI file")
    return f"{cdi_vendor(driver)}-{CLASS}_{uid}{SUFFIX}"


def parse_file_name(driver: str, name: str) -> str | None:
    """The claim's uid of a file of this driver, or None for any other file."""
    prefix = f"{cdi_vendor(driver)}-{CLASS}_"
    if not (name.startswith(prefix) and name.endswith(SUFFIX)):
        return None
    uid = name[len(prefix) : -len(SUFFIX)]
    return uid if is_file_name(uid) else None
