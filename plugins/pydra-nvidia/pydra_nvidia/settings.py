"""What the admin decides for this backend: variables `PYDRA_NVIDIA_...` of its process. Pure.

Every field has its variable: `dynamic_mig` is `PYDRA_NVIDIA_DYNAMIC_MIG`. A scenario may bring other defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Any

import msgspec

from pydra import PydraError

PREFIX = "PYDRA_NVIDIA_"
OUTSIDE = frozenset({"SCENARIO"})
"""Variables with the prefix that are not settings."""

AbsolutePath = Annotated[str, msgspec.Meta(pattern="^/")]
NoPathOrAbsolute = Annotated[str, msgspec.Meta(pattern="^(/|$)")]


class Shares(Enum):
    """How claims may share one GPU through the scheduler; a number stands for that many shares."""

    DISABLED = "disabled"
    MEMORY = "memory"
    UNLIMITED = "unlimited"


class Orphans(Enum):
    """What to do with partitions that nobody here made: publish them as they are, or remove what is idle."""

    ADOPT = "adopt"
    REMOVE = "remove"


class MpsLauncher(Enum):
    """Where MPS control daemons run: as processes of this one's machine view, or of the host, past a container."""

    DIRECT = "direct"
    HOST = "host"


class Signal(Enum):
    """What can be wrong with a GPU; its value is the taint's name below `gpu.nvidia.com/`."""

    XID = "xid"
    IGNORED_XID = "ignored-xid"
    GPU_LOST = "gpu-lost"
    RECOVERY_ACTION = "recovery-action"
    ROW_REMAP_FAILED = "row-remap-failed"
    ROW_REMAP_PENDING = "row-remap-pending"
    PAGE_RETIREMENT = "page-retirement"
    ECC = "ecc"
    FABRIC = "fabric"
    UNMONITORED = "unmonitored"


class Reaction(Enum):
    """What follows: the device is unhealthy with the agent's effect (`Unhealthy`), or with one of its own
    (`NoSchedule`, `NoExecute`); a taint only tells (`None`); nothing (`Ignore`).
    """

    UNHEALTHY = "Unhealthy"
    NO_SCHEDULE = "NoSchedule"
    NO_EXECUTE = "NoExecute"
    NONE = "None"
    IGNORE = "Ignore"


class SettingError(PydraError):
    """A variable has a value that is not allowed; all of them at once."""

    retryable = False
    reason = "InvalidSettings"

    def __init__(self, problems: list[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(problems))


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings. Paths are as this process sees them; `driver_root`, `dev_root` and `cdi_hook` are as the host does.

    These three empty: looked for. `xids_ignored` are added to the codes that applications cause;
    `xids_fatal` are codes that count even so. `signals` changes what follows from a signal (`xid=NoExecute`).
    `quiet_period` is how many seconds a GPU must be without a new event to be well again.
    """

    state: AbsolutePath = "/run/pydra-nvidia"
    host_root: AbsolutePath = "/"
    sys_root: AbsolutePath = "/sys"
    proc_root: AbsolutePath = "/proc"
    driver_root: NoPathOrAbsolute = ""
    dev_root: NoPathOrAbsolute = ""

    dynamic_mig: bool = False
    orphans: Orphans = Orphans.ADOPT
    time_slicing: bool = True
    mps: bool = True
    mps_launcher: MpsLauncher = MpsLauncher.DIRECT
    consumable_shares: Shares | Annotated[int, msgspec.Meta(ge=2, le=1024)] = Shares.DISABLED
    vfio: bool = False

    health: bool = True
    xids_ignored: tuple[int, ...] = ()
    xids_fatal: tuple[int, ...] = ()
    signals: Mapping[Signal, Reaction] = {}
    quiet_period: Annotated[float, msgspec.Meta(gt=0)] = 300.0

    cdi_hook: NoPathOrAbsolute = ""
    poll_period: Annotated[float, msgspec.Meta(gt=0)] = 5.0
    mps_ready_deadline: Annotated[float, msgspec.Meta(gt=0)] = 25.0
    vfio_idle_deadline: Annotated[float, msgspec.Meta(gt=0)] = 30.0


def parse_settings(environ: Mapping[str, str], defaults: Mapping[str, Any] | None = None) -> Settings:
    """Settings from the variables, over `defaults` (by field name) that a scenario brings.

    Raises:
        SettingError: unknown variables with the prefix, values out of range; all at once.
    """
    values: dict[str, Any] = {}
    if "PYDRA_HOST_ROOT" in environ:
        values["host_root"] = environ["PYDRA_HOST_ROOT"]
    values.update(defaults or {})
    origin = {name: name for name in values}
    for variable, text in sorted(environ.items()):
        name = variable.removeprefix(PREFIX).lower()
        if variable.startswith(PREFIX) and variable.removeprefix(PREFIX) not in OUTSIDE:
            values[name], origin[name] = text, variable
    fields = {field.name: field.type for field in msgspec.structs.fields(Settings)}
    problems: list[str] = []
    settings: dict[str, Any] = {}
    for name, value in values.items():
        if name not in fields:
            problems.append(f"{origin[name]}: no such setting; there are {', '.join(sorted(fields)).upper()}")
            continue
        try:
            settings[name] = msgspec.convert(_split(name, value), fields[name], strict=False)
        except msgspec.ValidationError as error:
            problems.append(f"{origin[name]}: {error} (found {value!r})")
    if problems:
        raise SettingError(problems)
    return Settings(**settings)


def _split(name: str, value: Any) -> Any:
    """What a variable's text stands for: lists are separated by commas, a number of shares is one."""
    if not isinstance(value, str):
        return value
    if name in ("xids_ignored", "xids_fatal"):
        return [part.strip() for part in value.split(",") if part.strip()]
    if name == "signals":
        pairs = (part.strip().partition("=") for part in value.split(",") if part.strip())
        return {signal: reaction for signal, _, reaction in pairs}
    if name == "consumable_shares" and value.isdecimal():
        return int(value)
    return value
