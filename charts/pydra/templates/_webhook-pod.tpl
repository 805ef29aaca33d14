{{- /* The webhook's pod. It talks to nobody, so it has no token. Args: root, backends, secret, settings (of the backends, by name), labels. */ -}}
{{- define "pydra.webhookPod" -}}
{{- $values := .root.Values -}}
{{- $webhook := $values.webhook -}}
{{- $names := keys .backends | sortAlpha -}}
{{- $packages := default list $values.packages.names -}}
{{- range $names -}}{{- $packages = concat $packages (default list (get $.backends .).packages) -}}{{- end -}}
{{- $host := contains ":" $values.http.host | ternary (printf "[%s]" $values.http.host) $values.http.host -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with $webhook.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with $values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
nodeSelector:
  {{- include "pydra.nodeSelector" $webhook.nodeSelector | nindent 2 }}
{{- with $webhook.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $webhook.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- toYaml .labels | nindent 8 }}
securityContext:
  runAsNonRoot: true
  {{- if not $values.openshift.enabled }}
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  {{- end }}
  seccompProfile: {type: RuntimeDefault}
{{- if $packages }}
initContainers:
  - name: packages
    {{- include "pydra.installPackages" (dict "root" .root "backends" .backends "packages" $packages) | nindent 4 }}
{{- end }}
containers:
  - name: webhook
    image: {{ include "pydra.image" . | quote }}
    imagePullPolicy: {{ include "pydra.pullPolicy" . }}
    command: [pydra, webhook]
    args:
      {{- range $names }}
      - --backend={{ . }}
      {{- end }}
      {{- range $names }}
      - --driver={{ . }}={{ (get $.backends .).driver }}
      {{- end }}
      # The API server connects from outside the pod, whatever http.host allows for metrics.
      - --address={{ contains ":" $values.http.host | ternary "[::]" "0.0.0.0" }}:{{ $webhook.port }}
      - --http-address={{ $host }}:{{ $values.http.port }}
      {{- if .settings }}
      - --config=/etc/pydra/webhook.yaml
      {{- end }}
      - --tls-cert=/tls/tls.crt
      - --tls-key=/tls/tls.key
      - --log-format={{ dig "logFormat" "json" (default dict $values.settings) }}
      {{- with (default dict $values.settings).logLevel }}
      - --log-level={{ . }}
      {{- end }}
    {{- if $packages }}
    env:
      - {name: PYTHONPATH, value: /packages/start}
    {{- end }}
    ports:
      - {name: webhook, containerPort: {{ $webhook.port }}}
      - {name: metrics, containerPort: {{ $values.http.port }}}
    {{- include "pydra.probes" $webhook.probes | nindent 4 }}
    terminationMessagePolicy: FallbackToLogsOnError
    securityContext:
      allowPrivilegeEscalation: false
      capabilities: {drop: [ALL]}
      readOnlyRootFilesystem: true
    {{- with $webhook.resources }}
    resources:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    volumeMounts:
      - {name: tls, mountPath: /tls, readOnly: true}
      {{- if .settings }}
      - {name: config, mountPath: /etc/pydra, readOnly: true}
      {{- end }}
      - {name: tmp, mountPath: /tmp}
      {{- if $packages }}
      - {name: packages, mountPath: /packages, readOnly: true}
      {{- end }}
volumes:
  - {name: tls, secret: {secretName: {{ .secret | quote }}, defaultMode: 0440}}
  {{- if .settings }}
  - name: config
    downwardAPI:
      items:
        - {path: webhook.yaml, fieldRef: {fieldPath: "metadata.annotations['pydra.dev/settings']"}}
  {{- end }}
  - {name: tmp, emptyDir: {}}
  {{- if $packages }}
  - {name: packages, emptyDir: {}}
  {{- end }}
{{- end -}}

{{- /* The init container that installs packages into a folder of the pod. In an agent's pod it has a user
of its own (`user`): what is installed runs code, and user 0 may send signals to the host's processes where they are seen.
Args: root, backends, packages, user. */ -}}
{{- define "pydra.installPackages" -}}
image: {{ include "pydra.image" . | quote }}
imagePullPolicy: {{ include "pydra.pullPolicy" . }}
command:
  - python
  - -c
  - |
    {{- .root.Files.Get "files/install_packages.py" | nindent 4 }}
  - /packages
args:
  {{- toYaml (concat (default list .root.Values.packages.pipArguments) (uniq .packages)) | nindent 2 }}
env:
  - {name: HOME, value: /tmp}
  {{- with .root.Values.packages.env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
terminationMessagePolicy: FallbackToLogsOnError
securityContext:
  {{- if .user }}
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  {{- end }}
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  seccompProfile: {type: RuntimeDefault}
  capabilities: {drop: [ALL]}
{{- with .root.Values.packages.resources }}
resources:
  {{- toYaml . | nindent 2 }}
{{- end }}
volumeMounts:
  - {name: packages, mountPath: /packages}
  - {name: tmp, mountPath: /tmp}
{{- end -}}
