{{- /* The controller of ComputeDomains: what it needs to know, its pod, and what is refused in words. */ -}}

{{- /* What the chart knows of ComputeDomains, from the code (make chart), as JSON. */ -}}
{{- define "pydra.computeDomainFacts" -}}
{{- .Files.Get "files/compute-domains.json" -}}
{{- end -}}

{{- define "pydra.computeDomainController" -}}
{{- include "pydra.fullname" . }}-compute-domains
{{- end -}}

{{- /* The account of the daemons. */ -}}
{{- define "pydra.computeDomainDaemon" -}}
{{- include "pydra.fullname" . }}-compute-domain-daemon
{{- end -}}

{{- /* Labels by which the controller's pods are found. */ -}}
{{- define "pydra.computeDomainSelector" -}}
{{ include "pydra.selectorLabels" . }}
app.kubernetes.io/component: compute-domain-controller
{{- end -}}

{{- /*
The backend that serves ComputeDomains on nodes, as JSON, with `hostManaged`: whether the hosts run IMEX, and there are no
daemons. Fails where other values contradict the controller.
*/ -}}
{{- define "pydra.computeDomainBackend" -}}
{{- $facts := include "pydra.computeDomainFacts" . | fromJson -}}
{{- $name := $facts.backend -}}
{{- $backend := get (include "pydra.backends" . | fromJson) $name -}}
{{- if not $backend -}}
{{- fail (printf "computeDomainController.enabled: no node would serve what it creates; set backends.%s.enabled=true, or leave it out" $name) -}}
{{- end -}}
{{- if ne $backend.driver $facts.driver -}}
{{- fail (printf "backends.%s.driver: the controller knows %s only, and found %s; leave it out, or set computeDomainController.enabled=false" $name $facts.driver $backend.driver) -}}
{{- end -}}
{{- if $backend.packages -}}
{{- fail (printf "backends.%s.packages: the controller and its daemons run in the backend's image, and nothing is installed there; choose an image that has the backend, or set computeDomainController.enabled=false" $name) -}}
{{- end -}}
{{- range $facts.classes -}}
{{- if and $.Values.deviceClasses.create (not (hasKey $backend.classes .)) -}}
{{- fail (printf "backends.%s.deviceClasses: the controller's claims ask for the DeviceClass %s, which is renamed or left out here; leave that out, or keep the classes of somebody else with deviceClasses.create=false" $name .) -}}
{{- end -}}
{{- end -}}
{{- $variable := include "pydra.variable" (dict "name" $name "key" "imex") -}}
{{- range default list $backend.env -}}
{{- if eq .name $variable -}}
{{- fail (printf "backends.%s.env: %s would not be known to the controller; set backends.%s.settings.imex" $name $variable $name) -}}
{{- end -}}
{{- end -}}
{{- $mode := dig "settings" "imex" "driverManaged" $backend -}}
{{- range $pool, $own := dig "nodePools" "pools" dict $backend -}}
{{- $other := dig "settings" "imex" $mode (default dict $own) -}}
{{- if ne $other $mode -}}
{{- fail (printf "backends.%s.nodePools.pools.%s.settings.imex: found %s, and %s elsewhere, but the controller has one mode for the cluster; set backends.%s.settings.imex only" $name $pool $other $mode $name) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.computeDomainController.tlsSecret (eq $mode "hostManaged") -}}
{{- fail (printf "computeDomainController.tlsSecret: has no effect with backends.%s.settings.imex=hostManaged, where the hosts configure IMEX; leave it out" $name) -}}
{{- end -}}
{{- include "pydra.refuseForeignDomains" (dict "root" . "facts" $facts) -}}
{{- set $backend "hostManaged" (eq $mode "hostManaged") | toJson -}}
{{- end -}}

{{- /* Fails when the cluster has another controller, or CRDs that are not this release's. Args: root, facts. */ -}}
{{- define "pydra.refuseForeignDomains" -}}
{{- range (lookup "apps/v1" "Deployment" "" "").items -}}
{{- $where := printf "%s/%s" .metadata.namespace .metadata.name -}}
{{- range dig "spec" "template" "spec" "containers" list . -}}
{{- if contains "compute-domain-controller" (concat (default list .command) (default list .args) | join " ") -}}
{{- fail (printf "computeDomainController.enabled: Deployment %s is a controller of ComputeDomains already, and two would undo each other's work; remove that one, or leave this out" $where) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $release := .root.Release -}}
{{- range .facts.definitions -}}
{{- $name := .metadata.name -}}
{{- with lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" $name -}}
{{- $annotations := default dict .metadata.annotations -}}
{{- $owner := printf "%s/%s" (get $annotations "meta.helm.sh/release-namespace") (get $annotations "meta.helm.sh/release-name") -}}
{{- if or (ne $owner (printf "%s/%s" $release.Namespace $release.Name)) (ne (get (default dict .metadata.labels) "app.kubernetes.io/managed-by") "Helm") -}}
{{- fail (printf "CustomResourceDefinition %s exists already and belongs to %s; this release takes it over, with all ComputeDomains, after: kubectl annotate crd %s --overwrite meta.helm.sh/release-name=%s meta.helm.sh/release-namespace=%s && kubectl label crd %s --overwrite app.kubernetes.io/managed-by=Helm" $name (eq $owner "/" | ternary "no release" (printf "release %s" $owner)) $name $release.Name $release.Namespace $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* The controller's pod. Args: root, backend (from pydra.computeDomainBackend), name. */ -}}
{{- define "pydra.computeDomainPod" -}}
{{- $values := .root.Values -}}
{{- $controller := $values.computeDomainController -}}
{{- $backends := $values.onePod | ternary (include "pydra.backends" .root | fromJson) (dict .name .backend) -}}
{{- $image := dict "root" .root "backends" $backends -}}
{{- $host := contains ":" $values.http.host | ternary (printf "[%s]" $values.http.host) $values.http.host -}}
{{- $secrets := list -}}
{{- range $values.imagePullSecrets -}}{{- $secrets = append $secrets .name -}}{{- end -}}
serviceAccountName: {{ include "pydra.computeDomainController" .root | quote }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with $controller.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with $values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
nodeSelector:
  {{- include "pydra.nodeSelector" $controller.nodeSelector | nindent 2 }}
{{- with $controller.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $controller.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "pydra.computeDomainSelector" .root | nindent 8 }}
securityContext:
  runAsNonRoot: true
  {{- if not $values.openshift.enabled }}
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  {{- end }}
  seccompProfile: {type: RuntimeDefault}
containers:
  - name: controller
    image: {{ include "pydra.image" $image | quote }}
    imagePullPolicy: {{ include "pydra.pullPolicy" $image }}
    command: [pydra-compute-domain, controller]
    args:
      - --namespace={{ include "pydra.namespace" .root }}
      - --imex={{ .backend.hostManaged | ternary "hostManaged" "driverManaged" }}
      {{- if not .backend.hostManaged }}
      - --daemon-image={{ include "pydra.image" $image }}
      - --image-pull-policy={{ include "pydra.pullPolicy" $image }}
      {{- with $secrets }}
      - --image-pull-secrets={{ join "," . }}
      {{- end }}
      - --service-account={{ include "pydra.computeDomainDaemon" .root }}
      {{- with $values.priorityClassName }}
      - --priority-class={{ . }}
      {{- end }}
      - --max-nodes={{ $controller.maxNodes }}
      {{- with $values.openshift.enabled | ternary "spc_t" (dig "type" "" (default dict $values.seLinuxOptions)) }}
      - --selinux-type={{ . }}
      {{- end }}
      {{- with $controller.tlsSecret }}
      - --tls-secret={{ . }}
      {{- end }}
      {{- end }}
      - --http-address={{ $host }}:{{ $values.http.port }}
      - --log-format={{ dig "logFormat" "json" (default dict $values.settings) }}
      {{- with (default dict $values.settings).logLevel }}
      - --log-level={{ . }}
      {{- end }}
    env:
      - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
    ports:
      - {name: metrics, containerPort: {{ $values.http.port }}}
    {{- include "pydra.probes" $values.probes | nindent 4 }}
    terminationMessagePolicy: FallbackToLogsOnError
    securityContext:
      allowPrivilegeEscalation: false
      capabilities: {drop: [ALL]}
      readOnlyRootFilesystem: true
    {{- with $controller.resources }}
    resources:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    volumeMounts:
      - {name: token, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
      - {name: tmp, mountPath: /tmp}
volumes:
  - name: token
    projected:
      # With fsGroup, Kubernetes lets the group read it.
      defaultMode: 0400
      sources:
        - serviceAccountToken: {path: token, expirationSeconds: 3607}
        - configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}
  - {name: tmp, emptyDir: {}}
{{- end -}}
