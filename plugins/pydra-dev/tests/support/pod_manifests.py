"""Manifests that several tests of `pydra dev` apply."""

TWO_PODS = """
kind: List
apiVersion: v1
items:
- {apiVersion: resource.k8s.io/v1, kind: ResourceClaimTemplate, metadata: {name: t}, spec: {spec: {devices: {requests: [
    {name: r, exactly: {deviceClassName: mine.example.com}}]}}}}
- &pod {apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {
    resourceClaims: [{name: c, resourceClaimTemplateName: t}], containers: [{name: m, image: i}]}}
- {<<: *pod, metadata: {name: b}}
"""
"""Two pods, each with a device of its own."""
