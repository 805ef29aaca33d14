"""The id of the running boot, which every record holds.

Partitions, driver bindings, daemons and the CDI files on tmpfs are gone after a reboot, but the
kubelet asks for the same claims again; `pydra.claims.lifecycle` decides what that means for a record.
"""

from __future__ import annotations

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
