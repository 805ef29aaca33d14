"""The library, by AMD's Python package amdsmi: loads it, or says in words why not, and makes every call of it.

amdsmi is ctypes over libamd_smi.so of the node's ROCm, which it must match: it looks every function up at import, and
has the layout of structures of one release. It prints, and its own mistakes are exceptions of any type.
"""

from __future__ import annotations

import contextlib
import importlib
import io
from collections.abc import Callable, Iterator
from typing import Any

NATIVE = "libamd_smi.so"

_NATIVE_MAJORS = {6: (24, 25), 7: (26,), 10: (27,)}
"""The major versions of the native library that go with those of the package on PyPI, which has ROCm's version; the
package that comes with ROCm has the same as its library.

Source: the changelogs of ROCm, section AMD SMI: 24.7.1 in 6.3, 25.3.0 in 6.4.0, 26.1.0 in 7.1.0, 27.0.0 in 10.0.0
(rocm.docs.amd.com/en/docs-6.4.0/release/changelog.html and so on).
"""

_ADVICE = "install the amdsmi of the ROCm that the node has"

_NO_DATA, _TIMEOUT = 40, 8
_CLOSED = frozenset({32, 34})
"""Not initialised, driver not loaded: everything has to be opened again."""


class AmdsmiError(Exception):
    """A call failed, or there is no library; `code` is amdsmi's, None where it is none of the library's own errors."""

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code

    @property
    def is_quiet(self) -> bool:
        """Whether there was just nothing to report."""
        return self.code in {_NO_DATA, _TIMEOUT}

    @property
    def is_closed(self) -> bool:
        """Whether no call will work until the library is initialised again."""
        return self.code in _CLOSED


class AmdsmiMissing(AmdsmiError):
    """The library cannot be used; trying again would not help."""


def import_amdsmi() -> Any:
    """The package, as it is installed."""
    return importlib.import_module("amdsmi")


class Amdsmi:
    """The library, initialised. `importer` gives the package."""

    def __init__(self, importer: Callable[[], Any]) -> None:
        """Load and initialise it.

        Raises:
            AmdsmiMissing: it is not installed, or does not match its native library.
            AmdsmiError: it cannot be initialised now.
        """
        self.module = _load(importer)
        self.call("amdsmi_init", self.module.AmdSmiInitFlags.INIT_AMD_GPUS)
        try:
            self.version = self._check_version()
        except AmdsmiError:
            self.close()
            raise

    def call(self, name: str, *arguments: Any) -> Any:
        """What the function gives. Raises AmdsmiError, whatever amdsmi raised."""
        with self.attempt(name):
            return getattr(self.module, name)(*arguments)

    @contextlib.contextmanager
    def attempt(self, what: str) -> Iterator[None]:
        """Around calls of amdsmi: what they raise is an AmdsmiError."""
        try:
            yield
        except Exception as error:
            code = getattr(error, "err_code", None)
            text = getattr(error, "err_info", "") or f"{type(error).__name__}: {error}"
            raise AmdsmiError(f"{what} failed: {text}", code) from error

    def close(self) -> None:
        """End it; it holds nothing of the GPUs any more."""
        with contextlib.suppress(AmdsmiError):
            self.call("amdsmi_shut_down")

    def _check_version(self) -> str:
        package = str(getattr(self.module, "__version__", ""))
        version_parts = self.call("amdsmi_get_lib_version")
        native = ".".join(str(version_parts[part]) for part in ("major", "minor", "release"))
        major = package.partition(".")[0]
        if major.isdecimal() and version_parts["major"] not in _NATIVE_MAJORS.get(int(major), (int(major),)):
            raise AmdsmiMissing(f"amdsmi {package} does not go with {NATIVE} {native} of this node; {_ADVICE}")
        return f"amdsmi {package} over {NATIVE} {native}"


def _load(importer: Callable[[], Any]) -> Any:
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            return importer()
    except ModuleNotFoundError as error:
        if error.name != "amdsmi":
            raise AmdsmiMissing(f"amdsmi cannot be imported: {error}") from error
        raise AmdsmiMissing("amdsmi is not installed") from error
    except KeyError as error:
        raise AmdsmiMissing(
            f"amdsmi is installed, and {NATIVE} of ROCm is not found: it must be in the linker's path, in "
            "$ROCM_PATH/lib or in /opt/rocm/lib"
        ) from error
    except AttributeError as error:
        raise AmdsmiMissing(f"amdsmi does not go with {NATIVE} of this node ({error}); {_ADVICE}") from error
    except Exception as error:
        raise AmdsmiMissing(
            f"amdsmi cannot be imported: {type(error).__name__}: {error}; {printed.getvalue()}"
        ) from error
