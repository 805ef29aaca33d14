{{- /* The agent's pod. Args: root, backends (by name), settings. */ -}}
{{- define "pydra.pod" -}}
{{- $root := .root -}}
{{- $values := $root.Values -}}
{{- $names := keys .backends | sortAlpha -}}
{{- $one := get .backends (first $names) -}}
{{- $privileged := false -}}
{{- $hostPID := false -}}
{{- $hostNetwork := include "pydra.hostNetwork" .backends -}}
{{- $capabilities := list -}}
{{- $paths := include "pydra.hostPaths" (dict "root" .root "backends" .backends) | fromJson -}}
{{- $extra := include "pydra.extraVolumes" (dict "root" .root "backends" .backends "paths" $paths) | fromJsonArray -}}
{{- include "pydra.refuseTakenVariables" (dict "backends" .backends) -}}
{{- $tolerations := default list $values.tolerations -}}
{{- $terms := list -}}
{{- $everywhere := false -}}
{{- $runtimeClasses := list -}}
{{- $packages := default list $values.packages.names -}}
{{- range $name := $names -}}
{{- $backend := get $.backends $name -}}
{{- if $backend.privileged -}}{{- $privileged = true -}}{{- end -}}
{{- if include "pydra.hostPID" $backend -}}{{- $hostPID = true -}}{{- end -}}
{{- with $backend.runtimeClassName -}}{{- $runtimeClasses = append $runtimeClasses . | uniq -}}{{- end -}}
{{- $capabilities = concat $capabilities (include "pydra.capabilities" $backend | fromJsonArray) -}}
{{- $tolerations = concat $tolerations (default list $backend.tolerations) -}}
{{- $packages = concat $packages (default list $backend.packages) -}}
{{- /* A backend's nodes are those of any of its expressions that have all labels of its selector. */ -}}
{{- $all := list -}}
{{- range $key, $value := default dict $backend.nodeSelector -}}
{{- $all = append $all (dict "key" $key "operator" "In" "values" (list $value)) -}}
{{- end -}}
{{- with $backend.nodes -}}{{- $all = append $all . -}}{{- end -}}
{{- range default list $backend.nodeAffinity -}}{{- $terms = append $terms (dict "matchExpressions" (prepend $all .)) -}}{{- end -}}
{{- if not $backend.nodeAffinity -}}
{{- if $all -}}{{- $terms = append $terms (dict "matchExpressions" $all) -}}{{- else -}}{{- $everywhere = true -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- if gt (len $runtimeClasses) 1 -}}
{{- fail (printf "with onePod all backends have one runtimeClassName; found %s" (join ", " $runtimeClasses)) -}}
{{- end -}}
{{- range $name := $names -}}
{{- range $key := list "cpuLimit" "pidsLimit" -}}
{{- if and (hasKey (default dict (get $.backends $name).process) $key) (not $privileged) -}}
{{- fail (printf "backends.%s.process.%s: only privileged containers may make the cgroup that it needs; set backends.%s.privileged, leave it out, or limit the container with resources" $name $key $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
serviceAccountName: {{ include "pydra.serviceAccount" $root | quote }}
# Of all containers only the agent's has the token; what pip installs runs code too.
automountServiceAccountToken: false
{{- with $values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
terminationGracePeriodSeconds: {{ add (ceil (default 20 .settings.drainGrace)) 20 }}
enableServiceLinks: false
{{- if $hostPID }}
hostPID: true
{{- end }}
{{- if $hostNetwork }}
hostNetwork: true
# Else the node's name servers would be asked, which know no Service.
dnsPolicy: ClusterFirstWithHostNet
{{- end }}
{{- with $runtimeClasses }}
runtimeClassName: {{ first . | quote }}
{{- end }}
{{- with $values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
nodeSelector:
  {{- include "pydra.nodeSelector" $values.nodeSelector | nindent 2 }}
{{- if and $terms (not $everywhere) }}
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
        {{- toYaml $terms | nindent 8 }}
{{- end }}
{{- with $tolerations }}
tolerations:
  {{- toYaml (uniq .) | nindent 2 }}
{{- end }}
securityContext:
  runAsUser: 0
  runAsGroup: 0
  {{- if not $privileged }}
  seccompProfile: {{ $values.seccompProfile | toJson }}
  {{- end }}
{{- if $packages }}
initContainers:
  - name: packages
    {{- include "pydra.installPackages" (dict "root" $root "backends" .backends "packages" $packages "user" true) | nindent 4 }}
{{- end }}
containers:
  - name: agent
    image: {{ include "pydra.image" . | quote }}
    imagePullPolicy: {{ include "pydra.pullPolicy" . }}
    command: [pydra-agent]
    args:
      {{- range $names }}
      - --backend={{ . }}
      {{- end }}
      {{- range $names }}
      - --driver={{ . }}={{ (get $.backends .).driver }}
      {{- end }}
    env:
      - {name: PYDRA_NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
      - {name: PYDRA_POD_UID, valueFrom: {fieldRef: {fieldPath: metadata.uid}}}
      - {name: PYDRA_CONFIG, value: /etc/pydra/agent.yaml}
      # Variables, because backends read them too.
      - {name: PYDRA_HOST_ROOT, value: /host}
      - {name: PYDRA_KUBELET_ROOT, value: {{ $values.kubelet.root | quote }}}
      {{- if $packages }}
      - {name: PYTHONPATH, value: /packages/start}
      {{- end }}
      {{- range $name := $names }}
      {{- if include "pydra.writableSys" (get $.backends $name) }}
      - {name: {{ include "pydra.variable" (dict "name" $name "key" "sysRoot") }}, value: /host/sys}
      {{- end }}
      {{- with (get $.backends $name).env }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
      {{- end }}
    ports:
      - {name: metrics, containerPort: {{ $values.http.port }}}
    {{- include "pydra.probes" $values.probes | nindent 4 }}
    # Not below /dev, which may be the host's.
    terminationMessagePath: /tmp/termination-log
    terminationMessagePolicy: FallbackToLogsOnError
    securityContext:
      {{- if $privileged }}
      privileged: true
      {{- else }}
      allowPrivilegeEscalation: false
      capabilities:
        drop: [ALL]
        {{- with $capabilities }}
        add:
          {{- toYaml (uniq .) | nindent 10 }}
        {{- end }}
      {{- end }}
      readOnlyRootFilesystem: true
      {{- with merge (deepCopy (default dict $values.seLinuxOptions)) (and $values.openshift.enabled (not $privileged) | ternary (dict "type" "spc_t") dict) }}
      seLinuxOptions:
        {{- toYaml . | nindent 8 }}
      {{- end }}
    {{- with $values.onePod | ternary $values.resources (default $values.resources $one.resources) }}
    resources:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    volumeMounts:
      - {name: config, mountPath: /etc/pydra, readOnly: true}
      - {name: token, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
      - {name: tmp, mountPath: /tmp}
      - {name: registry, mountPath: {{ $values.kubelet.root }}/plugins_registry}
      {{- range $name := $names }}
      - {name: plugin-{{ $name }}, mountPath: {{ $values.kubelet.root }}/plugins/{{ (get $.backends $name).driver }}}
      - {name: records-{{ $name }}, mountPath: {{ printf "%s/%s" $values.records.path (get $.backends $name).driver | quote }}}
      {{- end }}
      - {name: cdi, mountPath: {{ $values.cdi.path | quote }}}
      # What the host unmounts is unmounted here too: else the agent would keep the volumes of other pods in use.
      - name: host
        mountPath: /host
        readOnly: true
        mountPropagation: {{ $values.host.mountPropagation }}
        {{- if and (eq $values.host.mountPropagation "None") (not $privileged) }}
        # Kubernetes has this for mounts that are not propagated only.
        recursiveReadOnly: IfPossible
        {{- end }}
      {{- if $packages }}
      - {name: packages, mountPath: /packages, readOnly: true}
      {{- end }}
      {{- range $extra }}
      - {{ pick . "name" "mountPath" "subPath" "readOnly" | toJson }}
      {{- end }}
      {{- range $place, $host := $paths }}
      - name: {{ include "pydra.volume" $place }}
        mountPath: {{ $place | quote }}
        {{- if $host.readOnly }}
        readOnly: true
        {{- end }}
        {{- with $host.mountPropagation }}
        mountPropagation: {{ . }}
        {{- end }}
      {{- end }}
volumes:
  - name: config
    downwardAPI:
      items:
        - {path: agent.yaml, fieldRef: {fieldPath: "metadata.annotations['pydra.dev/settings']"}}
  - name: token
    projected:
      # With an installer of another user, Kubernetes would let every user of the container read it.
      defaultMode: 0400
      sources:
        # As Kubernetes mounts it by itself, with the lifetime that API servers extend while a kubelet cannot renew it.
        - serviceAccountToken: {path: token, expirationSeconds: 3607}
        - configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}
  - {name: tmp, emptyDir: {}}
  - {name: registry, hostPath: {path: {{ $values.kubelet.root }}/plugins_registry, type: DirectoryOrCreate}}
  {{- range $name := $names }}
  - {name: plugin-{{ $name }}, hostPath: {path: {{ $values.kubelet.root }}/plugins/{{ (get $.backends $name).driver }}, type: DirectoryOrCreate}}
  - {name: records-{{ $name }}, hostPath: {path: {{ printf "%s/%s" $values.records.path (get $.backends $name).driver | quote }}, type: DirectoryOrCreate}}
  {{- end }}
  - {name: cdi, hostPath: {path: {{ $values.cdi.path | quote }}, type: DirectoryOrCreate}}
  - {name: host, hostPath: {path: /, type: Directory}}
  {{- if $packages }}
  - {name: packages, emptyDir: {}}
  {{- end }}
  {{- range $extra }}
  - {{ omit . "mountPath" "subPath" "readOnly" | toJson }}
  {{- end }}
  {{- range $place, $host := $paths }}
  - name: {{ include "pydra.volume" $place }}
    hostPath:
      path: {{ $host.path | quote }}
      {{- with $host.type }}
      type: {{ . }}
      {{- end }}
  {{- end }}
{{- end -}}

{{- /*
Which of these settings of a backend are given and not as here, where they need nothing more; sorted, a JSON list.
Args: settings, unless (setting to the value with which it needs nothing).
*/ -}}
{{- define "pydra.needing" -}}
{{- $settings := default dict .settings -}}
{{- $needing := list -}}
{{- range $key, $idle := default dict .unless -}}
{{- if and (hasKey $settings $key) (ne (toString (get $settings $key)) (toString $idle)) -}}{{- $needing = append $needing $key -}}{{- end -}}
{{- end -}}
{{- sortAlpha $needing | toJson -}}
{{- end -}}

{{- /* The capabilities of a backend's agent, which needs three to run it as another user, as a JSON list. */ -}}
{{- define "pydra.capabilities" -}}
{{- $another := dig "runAsUser" 0 (default dict .process) | empty | not | ternary (list "KILL" "SETGID" "SETUID") list -}}
{{- concat (default list .capabilities) $another | toJson -}}
{{- end -}}

{{- /* Whether a backend needs the host's process ids; empty when not. */ -}}
{{- define "pydra.hostPID" -}}
{{- $unless := dig "hostPID" dict (default dict .settingsNeed) -}}
{{- if or .hostPID (include "pydra.needing" (dict "settings" .settings "unless" $unless) | fromJsonArray) -}}true{{- end -}}
{{- end -}}

{{- /* What of the host's /sys a backend needs to write to: /sys, /sys/devices, or empty, as where its settings or env name a place. */ -}}
{{- define "pydra.writableSys" -}}
{{- $need := hasKey (default dict .settings) "sysRoot" | ternary dict (default dict .settingsNeed) -}}
{{- range default list .env -}}{{- if hasSuffix "_SYS_ROOT" .name -}}{{- $need = dict -}}{{- end -}}{{- end -}}
{{- if include "pydra.needing" (dict "settings" .settings "unless" (dig "sys" dict $need)) | fromJsonArray -}}/sys
{{- else if include "pydra.needing" (dict "settings" .settings "unless" (dig "sysDevices" dict $need)) | fromJsonArray -}}/sys/devices
{{- end -}}
{{- end -}}

{{- /* Whether any of these backends is to share the host's network, as its pod then does; empty when not. */ -}}
{{- define "pydra.hostNetwork" -}}
{{- range . -}}{{- if .hostNetwork -}}true{{- end -}}{{- end -}}
{{- end -}}

{{- /*
How the pods of a set are replaced. On the host's network two agents of a node would want the same port, so that the old
one goes first. Args: strategy, backends.
*/ -}}
{{- define "pydra.updateStrategy" -}}
{{- $strategy := deepCopy .strategy -}}
{{- $rolling := default dict $strategy.rollingUpdate -}}
{{- if and (include "pydra.hostNetwork" .backends) (hasKey $rolling "maxSurge") (not (has (toString $rolling.maxSurge) (list "0" "0%"))) -}}
{{- $_ := set $strategy "rollingUpdate" (dict "maxSurge" 0 "maxUnavailable" $rolling.maxSurge) -}}
{{- end -}}
{{- toYaml $strategy -}}
{{- end -}}
