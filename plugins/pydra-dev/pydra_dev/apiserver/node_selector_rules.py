"""What the API server demands of node selectors. Pure.

Source: `ValidateNodeSelector` of `pkg/apis/core/validation`, Kubernetes 1.36.
"""

from __future__ import annotations

from pydra_dev.api import schema
from pydra_dev.api.errors import forbidden, invalid, required
from pydra_dev.apiserver.name_and_list_validation import (
    Errors,
    check_label_key,
    check_label_value,
    check_subdomain,
)


def check_node_selector(path: str, selector: schema.NodeSelector, *, one_term: bool) -> Errors:
    """Everything wrong with a node selector, which may have to have exactly `one_term`."""
    path = f"{path}.nodeSelectorTerms"
    terms = selector.node_selector_terms
    if not terms:
        yield required(path, "must have at least one node selector term")
    for index, term in enumerate(terms):
        for place, requirement in enumerate(term.match_expressions):
            yield from _check_expression(f"{path}[{index}].matchExpressions[{place}]", requirement)
        for place, requirement in enumerate(term.match_fields):
            yield from _check_field(f"{path}[{index}].matchFields[{place}]", requirement)
    if one_term and len(terms) != 1:
        yield invalid(
            path, schema.build_fields(selector).get("nodeSelectorTerms"), "must have exactly one node selector term"
        )


def _check_expression(path: str, requirement: schema.Requirement) -> Errors:
    values = requirement.values
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


def _check_field(path: str, requirement: schema.Requirement) -> Errors:
    values = requirement.values
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
