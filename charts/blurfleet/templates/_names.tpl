{{- define "blurfleet.labels" -}}
app.kubernetes.io/name: blurfleet
app.kubernetes.io/part-of: blurfleet
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- define "blurfleet.selector" -}}
app.kubernetes.io/name: blurfleet
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "blurfleet.image" -}}
{{- $name := .repository -}}
{{- if .registry }}{{ $name = printf "%s/%s" .registry .repository }}{{ end -}}
{{- if .digest }}{{ printf "%s@%s" $name .digest }}{{ else }}{{ printf "%s:%s" $name .tag }}{{ end -}}
{{- end }}

{{- define "blurfleet.keySecret" -}}
{{ .Values.triton.keySecret | default "blurfleet-triton-key" }}
{{- end }}

{{- define "blurfleet.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ .Values.user }}
runAsGroup: {{ .Values.user }}
fsGroup: {{ .Values.user }}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "blurfleet.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "blurfleet.prepareFolder" -}}
{{- if .root.Values.nodeFolder.prepare }}
initContainers:
  - name: prepare-folder
    image: {{ include "blurfleet.image" .image | quote }}
    imagePullPolicy: {{ .root.Values.images.pullPolicy }}
    command: [install, -d, -m, "0750", -o, {{ .root.Values.user | quote }}, -g, {{ .root.Values.user | quote }}, /node, /node/models]
    securityContext:
      runAsNonRoot: false
      runAsUser: 0
      runAsGroup: 0
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
      capabilities: {drop: [ALL], add: [CHOWN, FOWNER, DAC_OVERRIDE]}
    resources:
      limits: {memory: 64Mi}
      requests: {cpu: 10m, memory: 16Mi}
    volumeMounts:
      - {name: node, mountPath: /node}
{{- end }}
{{- end }}
