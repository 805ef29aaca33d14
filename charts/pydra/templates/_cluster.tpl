{{- /* What the cluster must serve for what the values ask, refused in words where it does not. */ -}}

{{- /*
Fails when the cluster lacks an API. Only a cluster lists kinds: `helm template` knows versions of groups at most, and
those of its own Kubernetes, so that nothing is refused there; with --api-versions it is.
*/ -}}
{{- define "pydra.requireServed" -}}
{{- $served := .Capabilities.APIVersions -}}
{{- if $served.Has "apps/v1/DaemonSet" -}}
{{- if not ($served.Has "resource.k8s.io/v1/ResourceSlice") -}}
{{- fail (printf "this cluster (Kubernetes %s) does not serve resource.k8s.io/v1, which Dynamic Resource Allocation needs; it is on by default since 1.34: take resource.k8s.io/v1=false out of the API server's --runtime-config, and DynamicResourceAllocation=false out of the feature gates of API server, scheduler, controller manager and kubelets" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- $asked := list -}}
{{- if .Values.slicePolicy.create -}}
{{- $asked = append $asked (list "slicePolicy.create" "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy" "leave it to RBAC with slicePolicy.create=false, which cannot keep an agent to its own node") -}}
{{- end -}}
{{- if .Values.eventPolicy.create -}}
{{- $asked = append $asked (list "eventPolicy.create" "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy" "leave it to RBAC with eventPolicy.create=false, which cannot keep an agent to Events of its own") -}}
{{- end -}}
{{- if include "pydra.deviceStatus" . -}}
{{- $asked = append $asked (list "settings.deviceStatus" "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy" "without it a node could change allocations of others; leave it out") -}}
{{- end -}}
{{- if .Values.configPolicy.create -}}
{{- $asked = append $asked (list "configPolicy.create" "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy" "leave it out, and judge configs with webhook.enabled=true") -}}
{{- end -}}
{{- if .Values.computeDomainController.enabled -}}
{{- $asked = append $asked (list "computeDomainController.enabled" "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy" "without it daemons could write the status of each other's pods; leave the controller out") -}}
{{- end -}}
{{- if .Values.monitor.create -}}
{{- $asked = append $asked (list "monitor.create" (printf "monitoring.coreos.com/v1/%s" .Values.monitor.kind) "install the Prometheus operator first, or leave it out") -}}
{{- end -}}
{{- if .Values.alerts.create -}}
{{- $asked = append $asked (list "alerts.create" "monitoring.coreos.com/v1/PrometheusRule" "install the Prometheus operator first, or leave it out") -}}
{{- end -}}
{{- if and .Values.webhook.enabled (eq .Values.webhook.tls.mode "certManager") -}}
{{- $asked = append $asked (list "webhook.tls.mode" "cert-manager.io/v1/Certificate" "install cert-manager first, or choose generated or secret") -}}
{{- end -}}
{{- if .Values.openshift.enabled -}}
{{- $asked = append $asked (list "openshift.enabled" "security.openshift.io/v1/SecurityContextConstraints" "it is for OpenShift only") -}}
{{- end -}}
{{- range $asked -}}
{{- if not ($served.Has (index . 1)) -}}
{{- fail (printf "%s: this cluster does not serve %s; %s" (index . 0) (index . 1) (index . 2)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /*
The feature gates without which a setting of a backend, or its overheads, do not work, as JSON: by gate, what needs it. A
cluster that has one of them off drops the fields that carry it, and says nothing. Takes a backend, with the pools of its nodes.
*/ -}}
{{- define "pydra.gates" -}}
{{- $gates := dict -}}
{{- $overheads := .overheads | empty | ternary dict (dict "DRANodeAllocatableResources" (list "overheads")) -}}
{{- range $gate, $unless := merge (deepCopy (dig "featureGates" dict (default dict .settingsNeed))) (dict "DRANodeAllocatableResources" dict) -}}
{{- $needing := concat (dig $gate list $overheads) (include "pydra.needing" (dict "settings" $.settings "unless" $unless) | fromJsonArray) -}}
{{- range dig "nodePools" "pools" dict $ -}}
{{- $needing = concat $needing (include "pydra.needing" (dict "settings" .settings "unless" $unless) | fromJsonArray) -}}
{{- end -}}
{{- with uniq $needing | sortAlpha -}}
{{- $_ := set $gates $gate (join " and " .) -}}
{{- end -}}
{{- end -}}
{{- toJson $gates -}}
{{- end -}}
