"""What the API server demands of node selectors in ResourceSlices. Pure.

Source: `ValidateNodeSelector` of `pkg/apis/core/validation`, Kubernetes 1.36.
"""

from __future__ import annotations

import msgspec

from pydra_dev.api.errors import JsonObject, forbidden, invalid, required
from pydra_dev.api.schema import parse_fields
from pydra_dev.apiserver.name_and_list_validation import (
    Errors,
    check_label_key,
    check_label_value,
    check_subdomain,
)


class _Requirement(msgspec.Struct, frozen=True):
    key: str = ""
    operator: str = ""
    values: tuple[str, ...] | None = None


class _Term(msgspec.Struct, frozen=True, rename="camel"):
    match_expressions: tuple[_Requirement, ...] | None = None
    match_fields: tuple[_Requirement, ...] | None = None


class _NodeSelector(msgspec.Struct, frozen=True, rename="camel"):
    node_selector_terms: tuple[_Term, ...] | None = None


def check_node_selector(path: str, selector: JsonObject, *, one_term: bool) -> Errors:
    """Everything wrong with a node selector, which may have to have exactly `one_term`."""
    path = f"{path}.nodeSelectorTerms"
    terms = parse_fields("ResourceSlice", _NodeSelector, selector).node_selector_terms or ()
    if not terms:
        yield required(path, "must have at least one node selector term")
    for index, term in enumerate(terms):
        for place, requirement in enumerate(term.match_expressions or ()):
            yield from _check_expression(f"{path}[{index}].matchExpressions[{place}]", requirement)
        for place, requirement in enumerate(term.match_fields or ()):
            yield from _check_field(f"{path}[{index}].matchFields[{place}]", requirement)
    if one_term and len(terms) != 1:
        yield invalid(path, selector.get("nodeSelectorTerms"), "must have exactly one node selector term")


def _check_expression(path: str, requirement: _Requirement) -> Errors:
    values = requirement.values or ()
    if requirement.operator in {"In", "NotIn"}:
        if not values:
            yield required(f"{path}.values", "must be specified when `operator` is 'In' or 'NotIn'")
    elif requirement.operator in {"Exists", "DoesNotExist"}:
        if values:
            detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            yield forbidden(f"{path}.values", detail)
    elif requirement.operator in {"Gt", "Lt"}:
        if len(values) != 1:
            yield required(f"{path}.values", "must be specified single value when `operator` is 'Lt' or 'Gt'")
    else:
        yield invalid(f"{path}.operator", requirement.operator, "not a valid selector operator")
    yield from check_label_key(f"{path}.key", requirement.key)
    for index, value in enumerate(values):
        yield from check_label_value(f"{path}.values[{index}]", value)


def _check_field(path: str, requirement: _Requirement) -> Errors:
    values = requirement.values or ()
    if requirement.operator not in {"In", "NotIn"}:
        yield invalid(f"{path}.operator", requirement.operator, "not a valid selector operator")
    elif len(values) != 1:
        detail = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
        yield required(f"{path}.values", detail)
    if requirement.key != "metadata.name":
        yield invalid(f"{path}.key", requirement.key, "not a valid field selector key")
        return
    for index, value in enumerate(values):
        yield from check_subdomain(f"{path}.values[{index}]", value)
