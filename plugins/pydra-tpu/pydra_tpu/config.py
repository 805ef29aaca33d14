"""What claims and DeviceClasses may configure: Google's kind `TpuConfig`, field for field, and more.

    apiVersion: tpu.resource.google.com/v1alpha1
    kind: TpuConfig
    logging: {level: 2, stderrLevel: 3}

Decoded strictly, in the backend and in the webhook alike. Absent and null mean the same.
Source: kubernetes-sigs/dra-driver-google-tpu, api/google.com/resource/tpu/v1alpha1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

GROUP_VERSION = "tpu.resource.google.com/v1alpha1"

LogLevel = Annotated[int, msgspec.Meta(ge=0, le=3)]
"""0 for INFO, 1 for WARNING, 2 for ERROR, 3 for FATAL."""


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel", omit_defaults=True):
    """Unknown fields are refused everywhere."""


class LoggingConfig(_Part, frozen=True):
    """From which level on libtpu writes to its log files, and to standard error: `stderr_level`, or the same."""

    level: LogLevel | None = None
    stderr_level: LogLevel | None = None


class TpuConfig(_Part, frozen=True):
    """For the containers of a claim, whatever it has."""

    logging: LoggingConfig | None = None


CONFIG_TYPES = {f"{GROUP_VERSION}/TpuConfig": TpuConfig}


def build_config_environment(config: TpuConfig) -> Mapping[str, str]:
    """The variables of libtpu that a config sets."""
    logging = config.logging or LoggingConfig()
    stderr_level = logging.level if logging.stderr_level is None else logging.stderr_level
    levels = {"TPU_MIN_LOG_LEVEL": logging.level, "TPU_STDERR_LOG_LEVEL": stderr_level}
    return {name: str(level) for name, level in levels.items() if level is not None}
