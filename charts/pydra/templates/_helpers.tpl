{{- /* Names, labels, images: what several templates need. */ -}}

{{- define "pydra.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 32 | trimSuffix "-" -}}
{{- end -}}

{{- /* At most 32 bytes, so that a Service called <this>-<backend>-webhook has at most 63; without the dots that it may not
have. A Service begins with a letter, other objects need not. */ -}}
{{- define "pydra.fullname" -}}
{{- $name := .Values.fullnameOverride -}}
{{- if not $name -}}
{{- $chart := include "pydra.name" . -}}
{{- $name = contains $chart .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $chart) -}}
{{- end -}}
{{- $name = $name | replace "." "-" | trunc 32 | trimSuffix "-" -}}
{{- if and (regexMatch "^[0-9]" $name) (or .Values.webhook.enabled (and .Values.monitor.create (eq .Values.monitor.kind "ServiceMonitor"))) -}}
{{- fail (printf "a Service's name begins with a letter, and %s-... does not: set fullnameOverride, or choose another name for the release" $name) -}}
{{- end -}}
{{- $name -}}
{{- end -}}

{{- define "pydra.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride -}}
{{- end -}}

{{- /* Of an object that belongs to no namespace: releases of one name in two namespaces are two. Args: root, part. */ -}}
{{- define "pydra.clusterName" -}}
{{- printf "%s-%s.%s" (include "pydra.fullname" .root) .part (include "pydra.namespace" .root) -}}
{{- end -}}

{{- define "pydra.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "pydra.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.create is false: name the account to use in serviceAccount.name" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "pydra.selectorLabels" -}}
app.kubernetes.io/name: {{ include "pydra.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- /* A version may have a `+` and the revision of its source, as Flux appends it; a label may not. */ -}}
{{- define "pydra.chartLabels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimAll "-_." | quote }}
{{ include "pydra.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | replace "+" "_" | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
{{- end -}}

{{- define "pydra.labels" -}}
{{- include "pydra.moreLabels" (dict "root" . "more" dict) -}}
{{- end -}}

{{- /* With more, those of the chart over those over commonLabels. Args: root, more. */ -}}
{{- define "pydra.moreLabels" -}}
{{- merge (include "pydra.chartLabels" .root | fromYaml) (default dict .more) (default dict .root.Values.commonLabels) | toYaml -}}
{{- end -}}

{{- /* Of pods: without the chart's version, since another revision of the same chart is no reason to replace them. Args: root, own. */ -}}
{{- define "pydra.podLabels" -}}
{{- merge .own (omit (include "pydra.moreLabels" (dict "root" .root "more" .root.Values.podLabels) | fromYaml) "helm.sh/chart") | toYaml -}}
{{- end -}}

{{- /* Labels that a pod's nodes must have: the images are for Linux, and not all nodes of other systems have taints. */ -}}
{{- define "pydra.nodeSelector" -}}
{{- merge (deepCopy (default dict .)) (dict "kubernetes.io/os" "linux") | toYaml -}}
{{- end -}}

{{- /* The image of a set of backends: of all, or of the one. Args: root, backends. */ -}}
{{- define "pydra.image" -}}
{{- $image := deepCopy .root.Values.image -}}
{{- if .root.Values.onePod -}}
{{- /* As `make image BACKENDS=a+b` calls it; what pip brings when the pod starts is in no image. */ -}}
{{- $names := list -}}
{{- range $name, $backend := .backends -}}{{- if not $backend.packages -}}{{- $names = append $names $name -}}{{- end -}}{{- end -}}
{{- $_ := set $image "repository" (default (prepend (sortAlpha $names) $image.repository | join "-") $image.onePodRepository) -}}
{{- else -}}
{{- $name := first (keys .backends | sortAlpha) -}}
{{- $own := default dict (get .backends $name).image -}}
{{- $_ := set $image "repository" (printf "%s-%s" $image.repository $name) -}}
{{- if or $own.tag $own.digest -}}{{- $_ := set $image "tag" "" -}}{{- $_ := set $image "digest" "" -}}{{- end -}}
{{- $image = mergeOverwrite $image $own -}}
{{- end -}}
{{- $path := $image.repository -}}
{{- if $image.registry -}}{{- $path = printf "%s/%s" (trimSuffix "/" $image.registry) $path -}}{{- end -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $path $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $path (default .root.Chart.AppVersion $image.tag) -}}
{{- end -}}
{{- end -}}

{{- /* Args: root, backends. */ -}}
{{- define "pydra.pullPolicy" -}}
{{- $own := dict -}}
{{- if not .root.Values.onePod -}}{{- $own = default dict (get .backends (first (keys .backends))).image -}}{{- end -}}
{{- default .root.Values.image.pullPolicy $own.pullPolicy -}}
{{- end -}}

{{- /* The variable that would override a backend's setting: PYDRA_FPGA_MAX_CLOCK for maxClock of fpga. Args: name, key. */ -}}
{{- define "pydra.variable" -}}
{{- printf "PYDRA_%s_%s" (.name | replace "-" "_" | trimPrefix "pydra_" | upper) (.key | snakecase | upper) -}}
{{- end -}}

{{- /* The name of the volume that is mounted at a path: readable, and of this path only. */ -}}
{{- define "pydra.volume" -}}
{{- printf "%s-%s" (printf "host-%s" (regexReplaceAll "[^a-z0-9]+" (lower .) "-" | trimAll "-") | trunc 54 | trimSuffix "-") (sha256sum . | trunc 8) -}}
{{- end -}}

{{- /*
An expression for the names of the pods of DaemonSets or Deployments, which Kubernetes cuts after 58 characters before it adds
the last five. Args: names, rest (of a pod's name, after a dash), room (as long a name is not cut).
*/ -}}
{{- define "pydra.podsOf" -}}
{{- $found := list -}}
{{- range .names -}}
{{- $found = append $found (le (len .) $.room | ternary (printf "%s-%s" . $.rest) (printf "%s.*" (trunc $.room .))) -}}
{{- end -}}
{{- join "|" $found -}}
{{- end -}}

{{- /* The probes of a container that serves /healthz and /readyz at its port `metrics`, with these times. */ -}}
{{- define "pydra.probes" -}}
startupProbe: {{ merge (dict "httpGet" (dict "path" "/healthz" "port" "metrics")) (default dict .startup) | toJson }}
livenessProbe: {{ merge (dict "httpGet" (dict "path" "/healthz" "port" "metrics")) (default dict .liveness) | toJson }}
readinessProbe: {{ merge (dict "httpGet" (dict "path" "/readyz" "port" "metrics")) (default dict .readiness) | toJson }}
{{- end -}}

{{- /* Where an agent's pod has something of the chart itself, as a JSON list. Args: root, backends. */ -}}
{{- define "pydra.takenPlaces" -}}
{{- $kubelet := .root.Values.kubelet.root -}}
{{- $records := .root.Values.records.path -}}
{{- $taken := list "/" "/etc/pydra" "/tmp" "/host" "/packages" "/var/run/secrets/kubernetes.io/serviceaccount" (clean .root.Values.cdi.path) (clean (printf "%s/plugins_registry" $kubelet)) -}}
{{- range .backends -}}{{- $taken = concat $taken (list (clean (printf "%s/plugins/%s" $kubelet .driver)) (clean (printf "%s/%s" $records .driver))) -}}{{- end -}}
{{- toJson $taken -}}
{{- end -}}

{{- /* The volumes of a set of backends, as a JSON list. Args: root, backends, paths (of hostPaths). */ -}}
{{- define "pydra.extraVolumes" -}}
{{- $taken := include "pydra.takenPlaces" . | fromJsonArray -}}
{{- $owners := dict -}}
{{- $names := dict "config" "" "token" "" "tmp" "" "registry" "" "cdi" "" "host" "" "packages" "" -}}
{{- range $name, $_ := .backends -}}{{- $_ := set $names (printf "plugin-%s" $name) "" -}}{{- $_ := set $names (printf "records-%s" $name) "" -}}{{- end -}}
{{- range $place, $_ := .paths -}}{{- $_ := set $owners $place "hostPaths" -}}{{- $_ := set $names (include "pydra.volume" $place) "" -}}{{- end -}}
{{- $volumes := list -}}
{{- range $name, $backend := .backends -}}
{{- range default list $backend.volumes -}}
{{- $place := clean .mountPath -}}
{{- if or (has $place $taken) (hasKey $owners $place) -}}
{{- fail (printf "backends.%s.volumes: the pod has something else at %s; give %s another mountPath" $name $place .name) -}}
{{- end -}}
{{- if hasKey $names .name -}}
{{- fail (printf "backends.%s.volumes: the pod has another volume %s; give it another name" $name .name) -}}
{{- end -}}
{{- if ne (len (omit . "name" "mountPath" "subPath" "readOnly")) 1 -}}
{{- fail (printf "backends.%s.volumes: %s must have one source, such as configMap; found %s" $name .name (omit . "name" "mountPath" "subPath" "readOnly" | keys | sortAlpha | join ", " | default "none")) -}}
{{- end -}}
{{- if hasKey . "hostPath" -}}
{{- fail (printf "backends.%s.volumes: %s is a directory of the host, which belongs in backends.%s.hostPaths" $name .name $name) -}}
{{- end -}}
{{- $_ := set $owners $place "volumes" -}}
{{- $_ := set $names .name "" -}}
{{- $volumes = append $volumes . -}}
{{- end -}}
{{- end -}}
{{- toJson $volumes -}}
{{- end -}}

{{- /* The hostPaths of a set of backends by where they are mounted, as JSON. Args: root, backends. */ -}}
{{- define "pydra.hostPaths" -}}
{{- $taken := include "pydra.takenPlaces" . | fromJsonArray -}}
{{- $paths := dict -}}
{{- $owners := dict -}}
{{- range $name, $backend := .backends -}}
{{- $own := default list $backend.hostPaths -}}
{{- /* Below the host's root, which is read-only, for what is to be written alone. */ -}}
{{- with include "pydra.writableSys" $backend -}}
{{- $own = append $own (dict "path" . "mountPath" (print "/host" .) "type" "Directory") -}}
{{- end -}}
{{- range $own -}}
{{- $place := clean (default .path .mountPath) -}}
{{- $entry := merge (dict "path" (clean .path)) (omit . "mountPath") -}}
{{- if has $place $taken -}}
{{- fail (printf "backends.%s.hostPaths: the chart itself has something at %s in the pod; leave it out, or give it another mountPath" $name $place) -}}
{{- end -}}
{{- if and (hasKey $paths $place) (not (deepEqual $entry (get $paths $place))) -}}
{{- fail (printf "backends.%s.hostPaths: %s is mounted otherwise by backends.%s.hostPaths, and a pod has it once: make both the same, or give one of them another mountPath" $name $place (get $owners $place)) -}}
{{- end -}}
{{- $_ := set $paths $place $entry -}}
{{- $_ := set $owners $place $name -}}
{{- end -}}
{{- end -}}
{{- toJson $paths -}}
{{- end -}}

{{- /* Fails when a backend's env has what the pod has already. Args: root, backends. */ -}}
{{- define "pydra.refuseTakenVariables" -}}
{{- $taken := dict "PYDRA_NODE_NAME" "the chart" "PYDRA_POD_UID" "the chart" "PYDRA_CONFIG" "the chart" "PYDRA_HOST_ROOT" "the chart" "PYDRA_KUBELET_ROOT" "the chart" "PYTHONPATH" "the chart" -}}
{{- range $name, $backend := .backends -}}
{{- range $key, $_ := default dict $backend.settings -}}
{{- $_ := set $taken (include "pydra.variable" (dict "name" $name "key" $key)) (printf "backends.%s.settings.%s" $name $key) -}}
{{- end -}}
{{- end -}}
{{- range $name, $backend := .backends -}}
{{- range default list $backend.env -}}
{{- if hasKey $taken .name -}}
{{- fail (printf "backends.%s.env: %s is set by %s, and only one of them would count; leave it out here" $name .name (get $taken .name)) -}}
{{- end -}}
{{- $_ := set $taken .name (printf "backends.%s.env" $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
