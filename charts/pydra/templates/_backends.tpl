{{- /* What is enabled, with what the chart knows of it, and what is refused in words. */ -}}

{{- /*
The enabled backends by name, as JSON. Each has `driver`, and `classes`: the specs of its DeviceClasses by name.
What the chart knows of a backend is in files/backends/, written from the backends themselves (make chart).
*/ -}}
{{- define "pydra.backends" -}}
{{- $root := . -}}
{{- $computeDomains := include "pydra.computeDomainFacts" . | fromJson -}}
{{- $enabled := dict -}}
{{- $drivers := dict -}}
{{- range $name, $values := .Values.backends -}}
{{- if and $values (not (hasKey $values "enabled")) -}}
{{- fail (printf "backends.%s: neither enabled nor disabled, and the chart does not know this backend; set backends.%s.enabled, or correct the name; it knows %s" $name $name (include "pydra.known" $root)) -}}
{{- end -}}
{{- if and $values $values.enabled -}}
{{- $known := dict -}}
{{- with $root.Files.Get (printf "files/backends/%s.json" $name) -}}{{- $known = fromJson . -}}{{- end -}}
{{- $backend := deepCopy $values -}}
{{- $driver := default $known.driver $values.driver -}}
{{- if not $driver -}}
{{- fail (printf "backends.%s.driver: the chart does not know this backend, so name its driver, as in fpga.example.com, or correct the backend's name; it knows %s" $name (include "pydra.known" $root)) -}}
{{- end -}}
{{- if hasKey $drivers $driver -}}
{{- fail (printf "backends.%s and backends.%s both serve driver %s: give one of them another name with backends.%s.driver" (get $drivers $driver) $name $driver $name) -}}
{{- end -}}
{{- $_ := set $drivers $driver $name -}}
{{- $given := default dict $values.deviceClasses -}}
{{- if and $root.Values.deviceClasses.create (not $known) (not (hasKey $given "classes")) -}}
{{- fail (printf "backends.%s.deviceClasses.classes: the chart does not know this backend, so give it a DeviceClass, such as {%s: {selectors: [{cel: {expression: \"device.driver == '%s'\"}}]}}, without which no claim can ask for its devices; or {} if its classes come from somewhere else" $name $driver $driver) -}}
{{- end -}}
{{- $_ := set $backend "driver" $driver -}}
{{- $_ := set $backend "classes" (include "pydra.classes" (dict "known" $known "driver" $driver "values" (default dict $values.deviceClasses)) | fromJson) -}}
{{- /* No claim of another namespace has a daemon: its container shares a directory with the agent. */ -}}
{{- if and $root.Values.computeDomainController.enabled (eq $name $computeDomains.backend) (not (hasKey (default dict $values.settings) "daemonNamespace")) -}}
{{- $_ := set $backend "settings" (merge (dict "daemonNamespace" (include "pydra.namespace" $root)) (default dict $backend.settings)) -}}
{{- end -}}
{{- $_ := set $enabled $name $backend -}}
{{- if $root.Values.onePod -}}
{{- range list "image" "resources" "agentSettings" -}}
{{- if get $values . -}}
{{- fail (printf "backends.%s.%s: has no effect with onePod, where all backends are in one container; set %s" $name . (get (dict "image" "image, or image.onePodRepository" "resources" "resources" "agentSettings" "settings") .)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- include "pydra.refuseMeeting" (dict "root" . "backends" $enabled) -}}
{{- if not $enabled -}}
{{- fail (printf "no backend is enabled, so there is nothing to serve: set backends.NAME.enabled=true; the chart knows %s, others are added under the name that `pydra backends` prints, with their driver" (include "pydra.known" .)) -}}
{{- end -}}
{{- toJson $enabled -}}
{{- end -}}

{{- /* Fails when enabled backends would share what each must have for itself. Args: root, backends. */ -}}
{{- define "pydra.refuseMeeting" -}}
{{- $classes := dict -}}
{{- $resources := dict -}}
{{- $digests := list -}}
{{- if and .root.Values.image.onePodRepository (not .root.Values.onePod) -}}
{{- fail "image.onePodRepository: has no effect without onePod, where each backend has an image; set onePod=true, or backends.NAME.image.repository" -}}
{{- end -}}
{{- range $name, $backend := .backends -}}
{{- range $class, $spec := $backend.classes -}}
{{- if hasKey $classes $class -}}
{{- fail (printf "backends.%s and backends.%s both have a DeviceClass %s: give one of them another name with backends.%s.deviceClasses.names" (get $classes $class) $name $class $name) -}}
{{- end -}}
{{- $_ := set $classes $class $name -}}
{{- with $spec.extendedResourceName -}}
{{- if hasKey $resources . -}}
{{- fail (printf "the extended resource %s stands for the DeviceClasses %s and %s, and pods would get either: leave it to one of them, in deviceClasses.extendedResourceNames" . (get $resources .) $class) -}}
{{- end -}}
{{- $_ := set $resources . $class -}}
{{- end -}}
{{- end -}}
{{- $own := default dict $backend.image -}}
{{- if not (or $own.tag $own.digest) -}}{{- $digests = append $digests $name -}}{{- end -}}
{{- end -}}
{{- if and .root.Values.image.digest (not .root.Values.onePod) (gt (len $digests) 1) -}}
{{- fail (printf "image.digest: backends %s have an image each, and a digest is of one image: set backends.NAME.image.digest" (join " and " $digests)) -}}
{{- end -}}
{{- end -}}

{{- /* The names of the backends that the chart knows. */ -}}
{{- define "pydra.known" -}}
{{- $names := list -}}
{{- range $path, $_ := .Files.Glob "files/backends/*.json" -}}
{{- $names = append $names (trimSuffix ".json" (base $path)) -}}
{{- end -}}
{{- join ", " (sortAlpha $names) -}}
{{- end -}}

{{- /* A backend's DeviceClasses for the driver name that it has here. Args: known, driver, values (deviceClasses). */ -}}
{{- define "pydra.classes" -}}
{{- $text := toRawJson (default dict .known.deviceClasses) -}}
{{- if .known.driver -}}
{{- /* In a class's CEL the driver is a string in quotes; without them the same text may be part of a class's name. */ -}}
{{- $text = $text | replace (printf "'%s'" .known.driver) (printf "'%s'" .driver) -}}
{{- end -}}
{{- $specs := fromJson $text -}}
{{- $left := list -}}
{{- range $name, $spec := default dict .values.classes -}}
{{- if kindIs "invalid" $spec -}}
{{- if not (hasKey $specs $name) -}}
{{- fail (printf "deviceClasses.classes: %s is null, to leave it out, but is not a DeviceClass of driver %s; allowed: %s" $name $.driver (keys $specs | sortAlpha | join ", ")) -}}
{{- end -}}
{{- $left = append $left $name -}}
{{- $_ := unset $specs $name -}}
{{- else -}}
{{- $_ := mergeOverwrite $specs (dict $name (deepCopy $spec)) -}}
{{- end -}}
{{- end -}}
{{- range $name, $resource := default dict .values.extendedResourceNames -}}
{{- if not (or (hasKey $specs $name) (has $name $left)) -}}
{{- fail (printf "deviceClasses.extendedResourceNames: %s is not a DeviceClass of driver %s; allowed: %s" $name $.driver (keys $specs | sortAlpha | join ", ")) -}}
{{- end -}}
{{- if and $resource (hasKey $specs $name) -}}{{- $_ := set (get $specs $name) "extendedResourceName" $resource -}}{{- end -}}
{{- end -}}
{{- $classes := dict -}}
{{- range $name, $spec := $specs -}}
{{- $called := default $name (get (default dict $.values.names) $name) -}}
{{- if hasKey $classes $called -}}
{{- fail (printf "deviceClasses.names: two DeviceClasses of driver %s would be called %s" $.driver $called) -}}
{{- end -}}
{{- $_ := set $classes $called $spec -}}
{{- end -}}
{{- range $name, $_ := default dict .values.names -}}
{{- if not (hasKey $specs $name) -}}
{{- fail (printf "deviceClasses.names: %s is not a DeviceClass of driver %s; allowed: %s" $name $.driver (keys $specs | sortAlpha | join ", ")) -}}
{{- end -}}
{{- end -}}
{{- toJson $classes -}}
{{- end -}}

{{- /* The backends of each DaemonSet by its name: one each, and one for each pool of nodes; or all in one. As JSON. */ -}}
{{- define "pydra.daemonSets" -}}
{{- $sets := include "pydra.sets" . | fromJson -}}
{{- range $set, $backends := include "pydra.sets" . | fromJson -}}
{{- range $name, $backend := $backends -}}
{{- with $backend.nodePools -}}
{{- if $.Values.onePod -}}
{{- fail (printf "backends.%s.nodePools: has no effect with onePod, where all backends are in one DaemonSet; set onePod=false" $name) -}}
{{- end -}}
{{- $label := .label -}}
{{- $owners := dict -}}
{{- range $pool, $own := .pools -}}
{{- range $own.values -}}
{{- if hasKey $owners . -}}
{{- fail (printf "backends.%s.nodePools: nodes with %s=%s are in the pools %s and %s, and a node has one agent of a driver; leave the value to one of them" $name $label . (get $owners .) $pool) -}}
{{- end -}}
{{- $_ := set $owners . $pool -}}
{{- end -}}
{{- $called := printf "%s-%s" $set $pool -}}
{{- if gt (len $called) 63 -}}
{{- fail (printf "backends.%s.nodePools.pools.%s: its DaemonSet would be called %s, which has %d bytes, and 63 are allowed; shorten the pool's name, or set fullnameOverride" $name $pool $called (len $called)) -}}
{{- end -}}
{{- if hasKey $sets $called -}}
{{- fail (printf "backends.%s.nodePools.pools.%s: its DaemonSet would be called %s, as that of %s is; give the pool another name" $name $pool $called (get $sets $called | keys | first | printf "backends.%s")) -}}
{{- end -}}
{{- $member := deepCopy $backend -}}
{{- $_ := set $member "pool" $pool -}}
{{- $_ := set $member "settings" (mergeOverwrite (dict) (deepCopy (default dict $backend.settings)) (deepCopy (default dict $own.settings))) -}}
{{- $_ := set $member "agentSettings" (mergeOverwrite (dict) (deepCopy (default dict $backend.agentSettings)) (deepCopy (default dict $own.agentSettings))) -}}
{{- with $own.resources -}}{{- $_ := set $member "resources" . -}}{{- end -}}
{{- $_ := set $member "nodes" (dict "key" $label "operator" "In" "values" $own.values) -}}
{{- $_ := set $sets $called (dict $name $member) -}}
{{- end -}}
{{- $_ := set $backend "nodes" (dict "key" $label "operator" "NotIn" "values" (keys $owners | sortAlpha)) -}}
{{- $_ := set $sets $set (dict $name $backend) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $sets -}}
{{- end -}}

{{- /* The backends of each webhook, and the DaemonSets without their pools: one each, or all in one. As JSON. */ -}}
{{- define "pydra.sets" -}}
{{- $backends := include "pydra.backends" . | fromJson -}}
{{- $sets := dict -}}
{{- if .Values.onePod -}}
{{- $_ := set $sets (include "pydra.fullname" .) $backends -}}
{{- else -}}
{{- range $name, $backend := $backends -}}
{{- $_ := set $sets (printf "%s-%s" (include "pydra.fullname" $) $name) (dict $name $backend) -}}
{{- end -}}
{{- end -}}
{{- toJson $sets -}}
{{- end -}}

{{- /* The settings of the agent of a set of backends: the common ones, and its own over them, as JSON. Args: root, backends. */ -}}
{{- define "pydra.agentSettings" -}}
{{- $settings := deepCopy (default dict .root.Values.settings) -}}
{{- range .backends -}}{{- $settings = mergeOverwrite $settings (default dict .agentSettings) -}}{{- end -}}
{{- toJson $settings -}}
{{- end -}}

{{- /* Whether an agent writes what claims say of their devices; empty when none does. */ -}}
{{- define "pydra.deviceStatus" -}}
{{- range include "pydra.daemonSets" . | fromJson -}}
{{- if (include "pydra.agentSettings" (dict "root" $ "backends" .) | fromJson).deviceStatus -}}true{{- end -}}
{{- end -}}
{{- end -}}

{{- /* The drivers of a set of backends, sorted, with commas. */ -}}
{{- define "pydra.drivers" -}}
{{- $drivers := list -}}
{{- range . -}}{{- $drivers = append $drivers .driver -}}{{- end -}}
{{- join "," (sortAlpha $drivers) -}}
{{- end -}}

{{- /*
Fails in words when another release serves one of the drivers, since two would fight over devices and slices, or when
a DeviceClass belongs to another release. Finds nothing without a cluster (helm template), and looks into no other namespace
for a release that has nothing outside of its own: who installs that may not be allowed to.
*/ -}}
{{- define "pydra.refuseSecond" -}}
{{- $here := printf "%s/%s" .Release.Namespace .Release.Name -}}
{{- $backends := include "pydra.backends" . | fromJson -}}
{{- $inside := or .Values.rbac.create .Values.slicePolicy.create .Values.eventPolicy.create .Values.deviceClasses.create .Values.configPolicy.create .Values.webhook.enabled .Values.openshift.enabled .Values.computeDomainController.enabled (include "pydra.deviceStatus" .) | empty -}}
{{- range (lookup "apps/v1" "DaemonSet" ($inside | ternary (include "pydra.namespace" .) "") "").items -}}
{{- $annotations := default dict .metadata.annotations -}}
{{- $owner := printf "%s/%s" (get $annotations "meta.helm.sh/release-namespace") (get $annotations "meta.helm.sh/release-name") -}}
{{- $known := ternary (printf "DaemonSet %s/%s, which belongs to no release," .metadata.namespace .metadata.name) (printf "release %s" $owner) (eq $owner "/") -}}
{{- $theirs := splitList "," (get $annotations "pydra.dev/drivers") -}}
{{- $account := .spec | default dict | dig "template" "spec" "serviceAccountName" "" -}}
{{- if and (ne $owner $here) (get $annotations "pydra.dev/drivers") $.Values.slicePolicy.create (eq .metadata.namespace (include "pydra.namespace" $)) (eq $account (include "pydra.serviceAccount" $)) -}}
{{- fail (printf "serviceAccount.name: %s has the account %s too, and by slicePolicy.create each would refuse the other's ResourceSlices: give each release an account of its own" $known $account) -}}
{{- end -}}
{{- range $name, $backend := $backends -}}
{{- if and (ne $owner $here) (has $backend.driver $theirs) -}}
{{- fail (printf "driver %s is served by %s already, and two would fight over its devices: remove that one, leave backends.%s disabled here, or give the driver another name with backends.%s.driver" $backend.driver $known $name $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if .Values.deviceClasses.create -}}
{{- range $name, $backend := $backends -}}
{{- range $class, $_ := $backend.classes -}}
{{- $found := lookup "resource.k8s.io/v1" "DeviceClass" "" $class -}}
{{- if $found -}}
{{- $annotations := default dict $found.metadata.annotations -}}
{{- $owner := printf "%s/%s" (get $annotations "meta.helm.sh/release-namespace") (get $annotations "meta.helm.sh/release-name") -}}
{{- if ne $owner $here -}}
{{- fail (printf "DeviceClass %s exists already and belongs to %s: delete it, keep it with deviceClasses.create=false, or make this one under another name with backends.%s.deviceClasses.names" $class (eq $owner "/" | ternary "no release" (printf "release %s" $owner)) $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /*
The nodes where a device plugin has devices of this resource; a JSON list. DRA never writes to a node's status.
*/ -}}
{{- define "pydra.pluginNodes" -}}
{{- $names := list -}}
{{- range $node := (lookup "v1" "Node" "" "").items -}}
{{- if ne (dig "status" "allocatable" $ "0" $node | toString) "0" -}}{{- $names = append $names $node.metadata.name -}}{{- end -}}
{{- end -}}
{{- $names | toJson -}}
{{- end -}}
