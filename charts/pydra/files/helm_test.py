"""`helm test`: what a least-privileged pod sees of the release. Standard library only, so that every image can run it.

Its argument is a JSON object: `namespace`, `daemonSets`, `drivers`, `classes`, and `webhook`, whether there is one.
"""

import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request

ACCOUNT = os.environ.get("PYDRA_TEST_ACCOUNT", "/var/run/secrets/kubernetes.io/serviceaccount")
PATIENCE = float(os.environ.get("PYDRA_TEST_PATIENCE", "90"))
DRA = "/apis/resource.k8s.io/v1"


def call(path, body=None):
    """Status and body of the API server's answer."""
    host = os.environ["KUBERNETES_SERVICE_HOST"]
    host = f"[{host}]" if ":" in host else host
    with open(ACCOUNT + "/token") as file:
        headers = {"Authorization": "Bearer " + file.read(), "Content-Type": "application/json"}
    address = f"https://{host}:{os.environ['KUBERNETES_SERVICE_PORT']}{path}"
    request = urllib.request.Request(address, json.dumps(body).encode() if body else None, headers)
    context = ssl.create_default_context(cafile=ACCOUNT + "/ca.crt")
    try:
        with urllib.request.urlopen(request, timeout=10, context=context) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            text = error.read().decode(errors="replace")
        try:
            return error.code, json.loads(text)
        except ValueError:  # of something between, which speaks no JSON
            return error.code, {"message": f"status {error.code}: {text[:200]}"}


def find_problems(release):
    """What is not as it should be, in words."""
    for name in release["daemonSets"]:
        yield from look_at_agents(release["namespace"], name)
    for driver in release["drivers"]:
        status, found = call(f"{DRA}/resourceslices?limit=1&fieldSelector=spec.driver={driver}")
        if status != 200:
            yield f"driver {driver}: {found.get('message')}"
        elif not found["items"]:
            yield f"driver {driver}: no ResourceSlice is published; see the agents' logs"
    for name in release["classes"]:
        status, found = call(f"{DRA}/deviceclasses/{name}")
        if status != 200:
            yield f"DeviceClass {name}: {found.get('message')}"
    for driver in release["drivers"] if release["webhook"] else ():
        yield from try_nonsense(release["namespace"], driver)


def look_at_agents(namespace, name):
    """Whether there are any, and all are ready."""
    status, found = call(f"/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}")
    if status != 200:
        yield f"DaemonSet {name}: {found.get('message')}"
        return
    counts = found.get("status", {})
    wanted, ready = counts.get("desiredNumberScheduled", 0), counts.get("numberReady", 0)
    if not wanted:
        yield f"DaemonSet {name}: no node has the labels that it asks for, or the taints that it tolerates"
    elif ready < wanted:
        yield f"DaemonSet {name}: {ready} of {wanted} agents are ready; see their logs and Events"


def try_nonsense(namespace, driver):
    """Ask whether a claim with a config of a kind that nobody has could be stored; nothing is stored."""
    nonsense = {"apiVersion": "helm-test.pydra.dev/v1", "kind": "Nonsense"}
    devices = {"config": [{"opaque": {"driver": driver, "parameters": nonsense}}]}
    claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "spec": {"devices": devices}}
    claim["metadata"] = {"generateName": "helm-test-"}
    status, found = call(f"{DRA}/namespaces/{namespace}/resourceclaims?dryRun=All", claim)
    if status == 201:
        yield f"webhook: a claim with a config that driver {driver} does not know was accepted"
    elif "opaque.parameters" not in found.get("message", ""):
        yield f"webhook: {found.get('message')}"


def main():
    """Look until all is well, or for so long."""
    release = json.loads(sys.argv[1])
    until = time.monotonic() + PATIENCE
    while True:
        try:
            problems = list(find_problems(release))
        except OSError as error:
            problems = [f"the API server does not answer: {error}"]
        if not problems:
            print("all is well:", ", ".join(release["drivers"]))
            return 0
        if time.monotonic() > until:
            print("\n".join(problems), file=sys.stderr)
            return 1
        time.sleep(1)


if __name__ == "__main__":
    sys.exit(main())
