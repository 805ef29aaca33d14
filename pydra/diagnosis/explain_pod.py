"""Explains the claims of one pod; `pydra explain pod`."""

from __future__ import annotations

import msgspec

from pydra.diagnosis.cluster_reader import Reader
from pydra.diagnosis.explain_claim import ClaimReport, Review, explain_claim, find_claim_names
from pydra.diagnosis.findings import Finding, Level
from pydra.errors import KubeError, NotFound
from pydra.kube.api_resources import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, JsonObject
from pydra.kube.client import KubeClient
from pydra.message_text import suggest
from pydra.settings import Settings

_ENDED = ("Succeeded", "Failed")
"""Phases in which kube-controller-manager has deleted, or will not make, the claims of a pod from templates."""


class PodReport(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with the pod's claims as a whole, and how each of them is."""

    pod: str
    findings: tuple[Finding, ...]
    claims: tuple[ClaimReport, ...] = ()


async def explain_pod(
    settings: Settings, client: KubeClient, *, namespace: str, name: str, review: Review | None = None
) -> PodReport:
    """Find out how the claims of a pod are, and why one is not there; `review` as of `explain_claim`."""
    reader = Reader(client)
    try:
        pod = await client.get(PODS, name, namespace=namespace)
    except KubeError as error:
        findings = [await _miss(reader, namespace, name, error), *reader.findings]
        return PodReport(pod=f"{namespace}/{name}", findings=tuple(findings))
    names, phase = find_claim_names(pod), (pod.get("status") or {}).get("phase") or ""
    if phase in _ENDED:
        names &= {one["metadata"]["name"] for one in await reader.list(RESOURCE_CLAIMS, namespace=namespace)}
        found = f"has ended ({phase}), and needs no claims any more: those made from templates are deleted"
        findings = [Finding(subject="pod", level=Level.NOTE, found=found)]
    else:
        findings = await _judge_templates(reader, pod, namespace)
    if not names and not findings:
        advice = (
            "name claims in spec.resourceClaims and in resources.claims of containers; that of an extended resource "
            "is made when the pod is scheduled"
        )
        findings.append(Finding(subject="claims", level=Level.NOTE, found="none, so it gets no device", advice=advice))
    claims = [
        await explain_claim(settings, client, namespace=namespace, name=one, review=review) for one in sorted(names)
    ]
    return PodReport(pod=f"{namespace}/{name}", findings=(*findings, *reader.findings), claims=tuple(claims))


async def _miss(reader: Reader, namespace: str, name: str, error: KubeError) -> Finding:
    if not isinstance(error, NotFound) or not error.is_of_object:
        return Finding(subject="pod", level=Level.UNKNOWN, found=str(error))
    known = [one["metadata"]["name"] for one in await reader.list(PODS, namespace=namespace)]
    found = f"there is no pod {name} in namespace {namespace}{suggest(name, known)}"
    return Finding(subject="pod", level=Level.PROBLEM, found=found, advice=f"kubectl -n {namespace} get pods")


async def _judge_templates(reader: Reader, pod: JsonObject, namespace: str) -> list[Finding]:
    """Find claims that have not been made from their templates."""
    made = {one["name"] for one in (pod.get("status") or {}).get("resourceClaimStatuses") or ()}
    entries = pod["spec"].get("resourceClaims") or ()
    missing = [one for one in entries if one.get("resourceClaimTemplateName") and one["name"] not in made]
    findings: list[Finding] = []
    if not missing:
        return findings
    known = [one["metadata"]["name"] for one in await reader.list(RESOURCE_CLAIM_TEMPLATES, namespace=namespace)]
    for one in missing:
        template = one["resourceClaimTemplateName"]
        if template in known or not reader.may_list(RESOURCE_CLAIM_TEMPLATES):
            found = f"claim {one['name']} has not been made yet from template {template}"
            advice = "kube-controller-manager makes it within seconds: see the Events of the pod"
        else:
            missed = f"{template} in namespace {namespace}{suggest(template, known)}"
            found = f"claim {one['name']}: there is no ResourceClaimTemplate {missed}"
            advice = "create it, or correct resourceClaimTemplateName and create the pod again"
        findings.append(Finding(subject="claims", level=Level.PROBLEM, found=found, advice=advice))
    return findings
