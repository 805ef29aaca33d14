"""The CDI spec of a claim, from what a backend prepared: merged, validated, in the lowest sufficient version. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from pydra.cdi.document import Spec, SpecDevice, parse_document
from pydra.cdi.merge import find_conflicts, normal_edits, share_edits
from pydra.cdi.names import cdi_device_name, cdi_kind
from pydra.cdi.validate import find_edit_problems, find_problems
from pydra.cdi.version import EARLIEST, minimum_version
from pydra.claim import PreparedDevice
from pydra.errors import CdiError, ContractError, EditConflict


def build_spec(driver: str, uid: str, prepared: Sequence[PreparedDevice]) -> Spec | None:
    """The claim's spec, one CDI device for each device that edits anything; None when none does.

    Order of `prepared` does not matter. `prepared` has passed `pydra.cdi.host_paths`, so that nothing
    optional is in it that the host lacks.

    Raises:
        EditConflict: two devices want different things of one container; names both.
        ContractError: the backend's edits break CDI's rules; all violations.
    """
    editing = sorted((one for one in prepared if not one.edits.is_empty), key=lambda one: cdi_device_name(uid, one))
    if not editing:
        return None
    owners = [f"device {one.device} (request {one.request})" for one in editing]
    violations = tuple(
        f"{owner}: {problem}"
        for owner, one in zip(owners, editing, strict=True)
        for problem in find_edit_problems(one.edits)
    )
    if violations:
        raise ContractError(driver, violations)
    normal = [normal_edits(one.edits) for one in editing]
    if conflicts := find_conflicts(zip(owners, normal, strict=True)):
        raise EditConflict(*conflicts)
    shared, kept = share_edits(normal)
    devices = tuple(
        SpecDevice(name=cdi_device_name(uid, one), edits=edits) for one, edits in zip(editing, kept, strict=True)
    )
    spec = Spec(version=EARLIEST, kind=cdi_kind(driver), devices=devices, edits=shared)
    spec = replace(spec, version=minimum_version(spec))
    if problems := find_problems(spec):
        raise ContractError(driver, problems)
    return spec


def parse_spec(content: bytes) -> Spec:
    """A valid spec from the bytes of a CDI file in JSON.

    Raises:
        CdiError: it is not a CDI spec, or breaks CDI's rules; all problems that can be told at once.
    """
    spec = parse_document(content)
    if problems := find_problems(spec):
        raise CdiError(*problems)
    return spec
