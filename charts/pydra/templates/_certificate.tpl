{{- /*
A webhook's own certificate and the CA that signed it, as JSON: crt, key, ca, trusted (PEM), until (epoch), host. What the
cluster has is kept until 30 days before its end, so that an upgrade changes nothing, unless it lasts longer than the
values say. A new CA is trusted beside the old until the next upgrade, since pods serve the old for a while.
Args: root, secret, host.
*/ -}}
{{- define "pydra.certificate" -}}
{{- $now := now | unixEpoch | int64 -}}
{{- $days := int .root.Values.webhook.tls.days -}}
{{- $found := lookup "v1" "Secret" (include "pydra.namespace" .root) .secret -}}
{{- $noted := default dict (default dict $found.metadata).annotations -}}
{{- $data := default dict $found.data -}}
{{- $until := get $noted "pydra.dev/certificate-until" | int64 -}}
{{- $whole := and (get $data "tls.crt") (get $data "tls.key") (get $data "ca.crt") -}}
{{- if and $whole (eq (get $noted "pydra.dev/certificate-host") .host) (gt (sub $until $now) 2592000) (le (sub $until $now) (mul (add $days 1) 86400)) -}}
{{- $ca := get $data "ca.crt" | b64dec -}}
{{- dict "crt" (get $data "tls.crt" | b64dec) "key" (get $data "tls.key" | b64dec) "ca" $ca "trusted" $ca "until" $until "host" .host | toJson -}}
{{- else -}}
{{- $ca := genPrivateKey "ecdsa" | genCAWithKey (printf "%s ca" .secret) $days -}}
{{- $short := splitList "." .host | first -}}
{{- $made := genSignedCertWithKey .host nil (list .host (printf "%s.%s" $short (include "pydra.namespace" .root))) $days $ca (genPrivateKey "ecdsa") -}}
{{- $before := get $data "ca.crt" | b64dec -}}
{{- $trusted := contains "-----BEGIN CERTIFICATE-----" $before | ternary (printf "%s%s" $ca.Cert $before) $ca.Cert -}}
{{- dict "crt" $made.Cert "key" $made.Key "ca" $ca.Cert "trusted" $trusted "until" (add $now (mul $days 86400)) "host" .host | toJson -}}
{{- end -}}
{{- end -}}
