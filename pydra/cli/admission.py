"""`pydra policy` and `pydra schema`: what a backend's types say about its configs, for the cluster and for editors."""

from __future__ import annotations

import argparse

_BACKEND = "an installed backend, or MODULE:ATTRIBUTE (MODULE: for the module itself)"


def add_admission(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The subcommands."""
    policy = commands.add_parser(
        "policy", help="a ValidatingAdmissionPolicy that refuses wrong configs without a webhook"
    )
    policy.add_argument("--backend", required=True, metavar="NAME", help=_BACKEND)
    policy.add_argument("--driver", default="", metavar="DRIVER", help="the driver's name, if not the backend's own")
    policy.set_defaults(command=_policy)

    schema = commands.add_parser("schema", help="JSON Schema of a backend's configs, for editors")
    schema.add_argument("--backend", required=True, metavar="NAME", help=_BACKEND)
    schema.add_argument(
        "--kind", default="", metavar="KIND", help="one of them, such as GpuConfig; default: any of all"
    )
    schema.set_defaults(command=_schema)


def _policy(parsed: argparse.Namespace) -> int:
    from pydra.admission.cel.policy import build_policy, write_policy  # noqa: PLC0415 - for this command only
    from pydra.admission.known import read_backend  # noqa: PLC0415

    policy = build_policy(read_backend(parsed.backend, driver=parsed.driver))
    driver = f" --driver {parsed.driver}" if parsed.driver else ""
    print(write_policy(policy, command=f"pydra policy --backend {parsed.backend}{driver}"), end="")
    return 0


def _schema(parsed: argparse.Namespace) -> int:
    import json  # noqa: PLC0415

    from pydra.admission.known import read_types  # noqa: PLC0415
    from pydra.admission.schema import build_schema  # noqa: PLC0415

    schema = build_schema(read_types(parsed.backend), kind=parsed.kind)
    print(json.dumps(schema, indent=2, ensure_ascii=False))
    return 0
