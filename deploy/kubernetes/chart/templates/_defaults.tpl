{{- /*
Fills in what .Values lacks: `helm upgrade --reuse-values` gives the values of the release before, in the place of
values.yaml, and keys that its chart did not have are absent. defaults.yaml has the values of values.yaml.
*/}}
{{- define "tidegate.defaults" }}
{{- include "tidegate.fill" (list .Values (.Files.Get "defaults.yaml" | fromYaml)) }}
{{- end }}

{{- define "tidegate.fill" }}
{{- $values := index . 0 }}
{{- range $key, $default := index . 1 }}
{{- if not (hasKey $values $key) }}
{{- $_ := set $values $key $default }}
{{- else if and (kindIs "map" $default) (ne $key "resources") }}
{{- include "tidegate.fill" (list (index $values $key) $default) }}
{{- end }}
{{- end }}
{{- end }}
