"""Names in place of those that are of one machine only. Pure.

Each is made with a keyed hash: the same name for the same original within one recording, so that what belongs together
still does, and no way back without the salt, which is thrown away unless the user chose it.
"""

from __future__ import annotations

import hmac
import uuid

import msgspec

from pydra_nvidia.hardware_types import Fabric, Gpu, LostGpu, Mig, Reading

_NO_CLUSTER = str(uuid.UUID(int=0))
_DIGITS = 10**13


class Names:
    """What stands for the originals; `salt` is the secret."""

    def __init__(self, salt: bytes) -> None:
        self._salt = salt

    def gpu(self, original: str) -> str:
        """In place of a GPU's UUID."""
        return f"GPU-{self._uuid('gpu', original)}"

    def partition(self, original: str) -> str:
        """In place of a MIG device's UUID."""
        return f"MIG-{self._uuid('mig', original)}"

    def serial(self, original: str) -> str:
        """In place of a board's serial number; empty for none."""
        return f"{self._number('serial', original) % _DIGITS:013d}" if original else ""

    def cluster(self, original: str) -> str:
        """In place of the UUID of a multi-node fabric; that of none stays."""
        return original if original == _NO_CLUSTER else self._uuid("cluster", original)

    def seed(self) -> str:
        """What the simulated machine makes its other names from."""
        return f"{self._number('seed', '') >> 192:016x}"

    def reading(self, reading: Reading) -> Reading:
        """The whole of it, with names in place of the originals."""
        return msgspec.structs.replace(
            reading,
            gpus=tuple(self._gpu(gpu) for gpu in reading.gpus),
            lost=tuple(self._lost(one) for one in reading.lost),
        )

    def _gpu(self, gpu: Gpu) -> Gpu:
        return msgspec.structs.replace(
            gpu,
            uuid=self.gpu(gpu.uuid),
            serial=self.serial(gpu.serial),
            mig=None if gpu.mig is None else self._mig(gpu.mig),
            unread=self._words(gpu.unread),
            fabric=None if gpu.fabric is None else self._fabric(gpu.fabric),
        )

    def _mig(self, mig: Mig) -> Mig:
        replace = msgspec.structs.replace
        return replace(
            mig,
            unseen=self._words(mig.unseen),
            instances=tuple(
                replace(one, compute=tuple(replace(ci, uuid=self.partition(ci.uuid)) for ci in one.compute))
                for one in mig.instances
            ),
        )

    def _fabric(self, fabric: Fabric) -> Fabric:
        return msgspec.structs.replace(fabric, cluster=self.cluster(fabric.cluster))

    def _lost(self, lost: LostGpu) -> LostGpu:
        """What was known of it before is of the process, not of the machine."""
        return msgspec.structs.replace(lost, message=self._words(lost.message), last=None)

    def _words(self, message: str) -> str:
        """A message, which may have the UUID of a GPU."""
        return " ".join(self.gpu(word) if word.startswith("GPU-") else word for word in message.split(" "))

    def _uuid(self, kind: str, original: str) -> str:
        return str(uuid.UUID(int=self._number(kind, original) >> 128, version=4))

    def _number(self, kind: str, original: str) -> int:
        return int.from_bytes(hmac.digest(self._salt, f"{kind}\0{original}".encode(), "sha256"))
