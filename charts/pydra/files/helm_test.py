"""`helm test`: what a least-privileged pod sees of the release, and what to do about what is wrong.

Standard library only, so that every image can run it. Its argument is a JSON object: `namespace`; `agents`, the drivers
of each DaemonSet; `gates`, by driver and feature gate the setting that needs it; `classes`, the extended resource of
each DeviceClass, or nothing; `port` of the agents' metrics; and `webhooks`, the drivers of each.
"""

import json
import os
import re
import ssl
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

ACCOUNT = os.environ.get("PYDRA_TEST_ACCOUNT", "/var/run/secrets/kubernetes.io/serviceaccount")
PATIENCE = float(os.environ.get("PYDRA_TEST_PATIENCE", "90"))
DRA = "/apis/resource.k8s.io/v1"
SETTLE = float(os.environ.get("PYDRA_TEST_SETTLE", "5"))
"""Seconds in which what was just installed reaches every component; a permanent problem counts after that."""
FOUND, NOTE, PROBLEM, PERMANENT = "found", "note", "problem", "permanent problem"
"""Kinds of what is seen. A permanent problem ends the test early, since waiting does not help."""
PERMANENT_REASONS = (
    "CrashLoopBackOff",
    "CreateContainerConfigError",
    "ErrImageNeverPull",
    "ImagePullBackOff",
    "InvalidImageName",
)
"""Reasons of a waiting container that has failed already, and fails again until somebody changes something."""
NAMED = 5
"""So many pods, nodes or devices are named in a line."""
WORDS = 600
"""So many characters of a pod's last words are shown."""
MOST = 500
"""So many slices are looked at."""
PAGE = 50
"""So many objects are read at once: those of a large cluster are more than the pod's memory."""
DROPPED = re.compile(
    r'^pydra_resourceslice_fields_dropped\{driver="([^"]*)",feature="([^"]*)"\} 1(?:\.0)?$', re.MULTILINE
)


def call(path, body=None, **query):
    """Status and body of the API server's answer."""
    host = os.environ["KUBERNETES_SERVICE_HOST"]
    host = f"[{host}]" if ":" in host else host
    with open(ACCOUNT + "/token") as file:
        headers = {"Authorization": "Bearer " + file.read(), "Content-Type": "application/json"}
    path += "?" + urllib.parse.urlencode(query) if query else ""
    address = f"https://{host}:{os.environ['KUBERNETES_SERVICE_PORT']}{path}"
    request = urllib.request.Request(address, json.dumps(body).encode() if body else None, headers)
    context = ssl.create_default_context(cafile=ACCOUNT + "/ca.crt")
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # On by default since Python 3.13; the CAs of many clusters lack the extensions that it requires.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
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


def list_pages(path, **query):
    """Status and body of each page of a list."""
    while True:
        status, found = call(path, limit=PAGE, **query)
        yield status, found
        query["continue"] = found.get("metadata", {}).get("continue")
        if status != 200 or not query["continue"]:
            return


def ask_agent(pod, port, page):
    """What an agent says on one of its pages; empty when it does not answer."""
    host = pod.get("status", {}).get("podIP", "")
    host = f"[{host}]" if ":" in host else host
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://{host}:{port}/{page}", timeout=3) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.read().decode(errors="replace")
    except (OSError, ValueError):
        return ""


def look(release):
    """Everything that is seen: what kind of thing it is, and a line about it."""
    status, _ = call(DRA)
    if status == 404:
        yield (
            PERMANENT,
            (
                "the cluster does not serve resource.k8s.io/v1, which is on by default since Kubernetes 1.34: take it"
                " out of the API server's --runtime-config, and DynamicResourceAllocation out of the gates that are off"
            ),
        )
        return
    nodes = {}
    for name, drivers in release["agents"].items():
        pools = [other for other, served in release["agents"].items() if other != name and served == drivers]
        mine = set()
        yield from look_at_agents(release, name, pools, mine)
        for driver in drivers:
            nodes.setdefault(driver, set()).update(mine)
    for driver, its_nodes in nodes.items():
        yield from look_at_slices(driver, its_nodes)
    for name, resource in release["classes"].items():
        yield from look_at_class(name, resource)
    for name, drivers in release["webhooks"].items():
        for driver in drivers:
            yield from try_nonsense(release["namespace"], f"{name}.configs.pydra.dev", driver)


def look_at_agents(release, name, pools, nodes):
    """Whether there are any, all are ready and of the last upgrade, and no gate lacks; adds the nodes of ready ones.

    `pools` are the DaemonSets of the same drivers on other nodes: it is enough that one of them has nodes.
    """
    namespace = release["namespace"]
    status, found = call(f"/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}")
    if status != 200:
        yield refused(status), f"DaemonSet {name}: {found.get('message')}"
        return
    counts = found.get("status", {})
    if counts.get("observedGeneration", 0) < found.get("metadata", {}).get("generation", 0):
        yield (
            PROBLEM,
            (
                f"DaemonSet {name}: the controller manager has not acted on its last change yet; if that lasts, see"
                " whether kube-controller-manager runs"
            ),
        )
        return
    wanted, ready = counts.get("desiredNumberScheduled", 0), counts.get("numberReady", 0)
    if not wanted and any(count_nodes(namespace, other) for other in pools):
        yield NOTE, f"DaemonSet {name}: no node is in this pool"
        return
    if not wanted:
        yield (
            PERMANENT,
            (
                f"DaemonSet {name}: no node has the labels that it asks for, or the taints that it tolerates; compare"
                f" `kubectl -n {namespace} get daemonset {name} -o yaml` with `kubectl get nodes --show-labels`"
            ),
        )
        return
    pods = list_pods(namespace, name)
    updated = counts.get("updatedNumberScheduled", 0)
    on_delete = found.get("spec", {}).get("updateStrategy", {}).get("type") == "OnDelete"
    if ready < wanted or (updated < wanted and not on_delete):
        waiting = [pod for pod in pods if not is_ready(pod)]
        reasons = [explain(pod, release["port"]) for pod in waiting[:NAMED]]
        if len(pods) < wanted:
            reasons += find_refusals(namespace, name)
        text, advice = f"DaemonSet {name}: {ready} of {wanted} agents are ready", "see their logs and Events"
        if ready >= wanted:
            text = f"DaemonSet {name}: {updated} of {wanted} agents are upgraded, and the others still the old ones"
            advice = f"wait for `kubectl -n {namespace} rollout status daemonset/{name}`"
        kind = PERMANENT if any(map(is_stuck, waiting)) else PROBLEM
        yield kind, "\n  ".join([text, *reasons]) if reasons else f"{text}; {advice}"
    else:
        yield FOUND, f"DaemonSet {name}: all {wanted} agents are ready"
    if updated < wanted and on_delete:
        yield (
            NOTE,
            (
                f"DaemonSet {name}: {wanted - updated} agents are from before the last upgrade, since"
                " updateStrategy.type is OnDelete: delete their pods to replace them"
            ),
        )
    well = [pod for pod in pods if is_ready(pod)]
    nodes.update(pod["spec"]["nodeName"] for pod in well)
    dropped = {found for pod in well[:NAMED] for found in DROPPED.findall(ask_agent(pod, release["port"], "metrics"))}
    for driver, gate in sorted(dropped):
        setting = release["gates"].get(driver, {}).get(gate)
        # What is no gate is described: it needs a newer Kubernetes.
        lack = f"does not know {gate}" if " " in gate else f"has the feature gate {gate} off"
        text = f"driver {driver}: the API server {lack}"
        if setting:
            yield (
                PERMANENT,
                f"{text}, which is needed for {setting}: enable it in API server and scheduler, or turn that off",
            )
        else:
            yield NOTE, f"{text}: devices are published without what it is for, or not at all; see the nodes' Events"


def list_pods(namespace, name):
    """The pods of a DaemonSet that are not about to go, with what is asked of them."""
    pages = list_pages(f"/api/v1/namespaces/{namespace}/pods", labelSelector=f"pydra.dev/agent={name}")
    return [
        {
            "metadata": {"name": pod["metadata"]["name"]},
            "spec": {"nodeName": pod.get("spec", {}).get("nodeName")},
            "status": pod.get("status", {}),
        }
        for _, found in pages
        for pod in found.get("items", ())
        if not pod["metadata"].get("deletionTimestamp")
    ]


def refused(status):
    """The kind of problem that an answer of the API server with this status is."""
    return PERMANENT if status in (401, 403, 404) else PROBLEM


def is_ready(pod):
    """By its condition."""
    conditions = pod.get("status", {}).get("conditions", ())
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def list_containers(pod):
    """The statuses of all its containers."""
    status = pod.get("status", {})
    return (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ()))


def is_stuck(pod):
    """Whether one of its containers waits for a reason that does not pass."""
    waiting = [container.get("state", {}).get("waiting") or {} for container in list_containers(pod)]
    return any(one.get("reason") in PERMANENT_REASONS for one in waiting)


def explain(pod, port):
    """Why a pod is not ready, in a line: its scheduler, its kubelet, its last words, or the agent itself."""
    status = pod.get("status", {})
    where = pod.get("spec", {}).get("nodeName") or pod["metadata"]["name"]
    words = []
    for container in list_containers(pod):
        waiting = container.get("state", {}).get("waiting") or {}
        ended = container.get("state", {}).get("terminated") or container.get("lastState", {}).get("terminated") or {}
        if waiting.get("reason") not in (None, "PodInitializing"):
            words.append(waiting["reason"])
        if not container.get("ready"):
            said = ended.get("message") or waiting.get("message") or ""
            words += [" | ".join(line.strip() for line in said[-WORDS:].splitlines() if line.strip())]
    if not any(words):
        waits = [
            one for one in status.get("conditions", ()) if one["type"] == "PodScheduled" and one["status"] != "True"
        ]
        words = [one.get("message", "") for one in waits] or [
            ask_agent(pod, port, "readyz").strip().replace("\n", " | ")
        ]
    return f"{where}: " + (": ".join(word for word in words if word) or "it starts, or does not answer; see its log")


def find_refusals(namespace, name):
    """What the cluster says to pods that it does not let be."""
    wanted = f"involvedObject.name={name},reason=FailedCreate"
    _, listed = call(f"/api/v1/namespaces/{namespace}/events", fieldSelector=wanted)
    said = sorted({event.get("message", "") for event in listed.get("items", ())})
    return [f"no pod is made: {message}" for message in said[:1]]


def count_nodes(namespace, name):
    """How many nodes a DaemonSet is for."""
    _, found = call(f"/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}")
    return found.get("status", {}).get("desiredNumberScheduled", 0)


def look_at_slices(driver, nodes):
    """Whether the agents on these nodes publish devices, and which must not be used."""
    devices, looked, all_of_them = [], 0, True
    for status, found in list_pages(f"{DRA}/resourceslices", fieldSelector=f"spec.driver={driver}"):
        if status != 200:
            yield refused(status), f"driver {driver}: {found.get('message')}"
            return
        looked += len(found["items"])
        devices += [
            (one["spec"].get("nodeName", ""), device["name"], device.get("taints", ()))
            for one in found["items"]
            for device in one["spec"].get("devices", ())
        ]
        if looked >= MOST and found.get("metadata", {}).get("continue"):
            all_of_them = False
            break
    if not looked:
        yield (
            PROBLEM,
            f"driver {driver}: no ResourceSlice is published; see the agents' logs, and the Events of their nodes",
        )
        return
    places = {node for node, _, _ in devices}
    yield FOUND, f"driver {driver}: {'' if all_of_them else 'at least '}{len(devices)} devices on {len(places)} nodes"
    if all_of_them and (idle := sorted(nodes - places)):
        yield NOTE, f"driver {driver}: the agents on {shorten(idle)} are ready and find no device; see their logs"
    tainted = [
        f"{device} on {node} ({taint['key']})"
        for node, device, taints in devices
        for taint in taints
        if taint.get("effect") in ("NoSchedule", "NoExecute")
    ]
    if tainted:
        yield NOTE, f"driver {driver}: new pods do not get {shorten(tainted)}"


def shorten(names):
    """The first of them, and how many more there are."""
    more = [f"{len(names) - NAMED} more"] if len(names) > NAMED else []
    return ", ".join([*names[:NAMED], *more])


def look_at_class(name, resource):
    """Whether it is there, with the extended resource that should stand for it."""
    status, found = call(f"{DRA}/deviceclasses/{name}")
    if status != 200:
        yield refused(status), f"DeviceClass {name}: {found.get('message')}; `helm upgrade` makes it again"
    elif resource and found.get("spec", {}).get("extendedResourceName") != resource:
        yield (
            NOTE,
            (
                f"DeviceClass {name}: does not stand for {resource}, since the API server has the feature gate"
                " DRAExtendedResource off, or somebody has changed it; pods get devices by claims only"
            ),
        )
    else:
        yield FOUND, f"DeviceClass {name}: is there" + (f", and stands for {resource}" if resource else "")


def try_nonsense(namespace, webhook, driver):
    """Ask whether a claim with a config of a kind that nobody has could be stored; nothing is stored."""
    nonsense = {"apiVersion": "helm-test.pydra.dev/v1", "kind": "Nonsense"}
    devices = {"config": [{"opaque": {"driver": driver, "parameters": nonsense}}]}
    claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "spec": {"devices": devices}}
    claim["metadata"] = {"generateName": "helm-test-"}
    status, found = call(f"{DRA}/namespaces/{namespace}/resourceclaims", claim, dryRun="All")
    message = found.get("message", "")
    if status == 201:
        yield (
            PROBLEM,
            (
                f"webhook: a claim with a config that driver {driver} does not know was accepted; the webhook is not"
                " asked, or does not answer and webhook.failurePolicy is Ignore"
            ),
        )
    elif f'admission webhook "{webhook}" denied' in message:
        yield FOUND, f"webhook: refuses a config that driver {driver} does not know"
    elif "ValidatingAdmissionPolicy" in message:
        yield (
            NOTE,
            (
                f"webhook: was not asked about a config that driver {driver} does not know, since a policy refuses it"
                f" first ({message[:WORDS]}); see the webhook's pods"
            ),
        )
    elif "x509" in message:
        yield (
            PROBLEM,
            (
                f"webhook: {message}; renew its certificate (webhook.tls): it must be for the name in the message, and"
                " signed by the CA in the ValidatingWebhookConfiguration; the webhook's log says what it serves"
            ),
        )
    else:
        yield (
            PROBLEM,
            (
                f"webhook: {message}; see the webhook's pods, and whether the API server reaches them (a firewall may"
                " have to let it through to webhook.port)"
            ),
        )


def main():
    """Look until all is well, a problem is permanent, or patience ends."""
    release = json.loads(sys.argv[1])
    began = time.monotonic()
    while True:
        try:
            seen = list(look(release))
        except OSError as error:
            kind = PERMANENT if isinstance(getattr(error, "reason", None), ssl.SSLCertVerificationError) else PROBLEM
            seen = [(kind, f"the API server does not answer: {error}")]
        problems = [text for kind, text in seen if kind in (PROBLEM, PERMANENT)]
        patience = min(SETTLE, PATIENCE) if any(kind is PERMANENT for kind, _ in seen) else PATIENCE
        if not problems or time.monotonic() - began > patience:
            break
        time.sleep(1)
    lines = [text for kind, text in seen if kind is FOUND] + [f"note: {text}" for kind, text in seen if kind is NOTE]
    print("\n".join(lines), flush=True)
    if problems:
        print("\n".join(problems), file=sys.stderr)
        return 1
    print("all is well:", ", ".join(driver for drivers in release["agents"].values() for driver in drivers))
    return 0


if __name__ == "__main__":
    sys.exit(main())
