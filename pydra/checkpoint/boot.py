"""What a reboot means for the records: the boot id, and the decision.

Partitions, driver bindings, daemons and the CDI files on tmpfs are gone after a reboot, but the
kubelet asks for the same claims again. Source: /proc/sys/kernel/random/boot_id, one UUID per boot.
"""

from __future__ import annotations

from msgspec.structs import replace

from pydra.checkpoint.record import Record, Stage
from pydra.errors import CheckpointError

BOOT_ID_FILE = "/proc/sys/kernel/random/boot_id"


def read_boot_id(path: str = BOOT_ID_FILE) -> str:
    """The id of the running boot.

    Raises:
        CheckpointError: the file cannot be read, or is empty.
    """
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            boot_id = file.read(256).strip()
    except OSError as error:
        raise CheckpointError(
            f"the boot id cannot be read from {path} ({error.strerror}); without it a reboot would go unnoticed: "
            "mount the host's /proc, or set the boot id file"
        ) from error
    if not boot_id:
        raise CheckpointError(f"{path} is empty; it should hold the id of the running boot")
    return boot_id


def after_boot(record: Record, boot_id: str) -> Record:
    """What the record says under this boot id: itself, or, since the node has rebooted, a claim to prepare again. Pure.

    The claim keeps its devices: its pods come back and ask for them, or the kubelet unprepares it. What
    was prepared is kept too, for a backend that must undo what outlives a reboot.
    """
    if record.boot_id == boot_id:
        return record
    return replace(record, stage=Stage.STARTED, boot_id=boot_id)
