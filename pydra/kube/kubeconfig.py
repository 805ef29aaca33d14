"""Loads a kubeconfig through kubernetes-asyncio, keeping the key material that it carries in a private directory.

The loader of its own would write every certificate and key that stands in the file to the shared temporary
directory and leave the descriptors open.
"""

from __future__ import annotations

import base64
import os
import shutil
import tempfile
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

from pydra.kube import lazy

lazy.install()

from kubernetes_asyncio.client.configuration import Configuration  # noqa: E402
from kubernetes_asyncio.config.config_exception import ConfigException  # noqa: E402

INLINE = ("certificate-authority", "client-certificate", "client-key")
"""Fields that name a file, or with `-data` behind carry it in base64."""


def kubeconfig_loader(path: str, context: str) -> Callable[[Configuration], Awaitable[None]]:
    """A coroutine function that fills in a Configuration; called again, it gets fresh tokens.

    It raises ConfigException, and whatever the loader raises for a file that it does not expect.
    """
    loader: Any = None

    async def load(configuration: Configuration) -> None:
        nonlocal loader
        if loader is None:
            loader = _build_loader(path, context, load)
        # Again, an exec plugin's token is kept until it expires, and a token file is read anew.
        await loader.load_and_set(configuration)

    return load


def _build_loader(path: str, context: str, owner: object) -> Any:
    import yaml  # noqa: PLC0415 - as the next import, 5 MiB that a pod does not need
    from kubernetes_asyncio.config.kube_config import KubeConfigLoader, KubeConfigMerger  # noqa: PLC0415

    for part in filter(None, path.split(os.pathsep)):
        if not os.path.isfile(os.path.expanduser(part)):
            raise ConfigException(f"there is no file {part}")
    try:
        config = KubeConfigMerger(path).config
    except yaml.YAMLError as error:
        raise ConfigException(str(error)) from error
    if config is None:
        raise ConfigException("it is empty")
    entries = [entry.value.get(kind[:-1]) for kind in ("clusters", "users") for entry in config.value.get(kind) or ()]
    inline = [entry for entry in entries if isinstance(entry, dict) and any(f"{name}-data" in entry for name in INLINE)]
    if inline:
        directory = tempfile.mkdtemp(prefix="pydra-kubeconfig-")  # readable by this user only
        weakref.finalize(owner, shutil.rmtree, directory, ignore_errors=True)
        for number, entry in enumerate(inline):
            _move_to_files(entry, os.path.join(directory, str(number)))
    return KubeConfigLoader(config_dict=config, active_context=context or None, config_base_path=None)


def _move_to_files(entry: dict[str, Any], prefix: str) -> None:
    for name in INLINE:
        if data := entry.pop(f"{name}-data", None):  # preferred to a file of the same name
            entry[name] = f"{prefix}-{name}"
            with open(entry[name], "wb") as file:
                file.write(base64.b64decode(data))
