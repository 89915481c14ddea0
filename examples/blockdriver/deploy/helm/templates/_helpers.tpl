{{/* The labels of the pods of a component, "node" or "controller", and its selector. */}}
{{- define "blockdriver.labels" -}}
app.kubernetes.io/name: blockdriver
app.kubernetes.io/component: {{ . }}
{{- end }}

{{- define "blockdriver.sidecarSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- with .Values.sidecars.seLinuxOptions }}
seLinuxOptions: {{ toJson . }}
{{- end }}
{{- end }}

{{/* The probes of the driver's container, which livenessprobe answers or the driver itself. */}}
{{- define "blockdriver.probes" -}}
startupProbe:
  httpGet:
    path: /healthz
    port: healthz
  periodSeconds: 2
  timeoutSeconds: 5 # more than the prober's own
  failureThreshold: 90
livenessProbe:
  httpGet:
    path: /healthz
    port: healthz
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 5
{{- end }}

{{- define "blockdriver.livenessprobe" -}}
name: liveness-probe
image: {{ .Values.sidecars.registry }}/livenessprobe:{{ .Values.sidecars.livenessprobe.tag }}
args:
  - --csi-address=/csi/csi.sock
  - --http-endpoint=:9808
  - --probe-timeout=3s
securityContext:
  {{- include "blockdriver.sidecarSecurity" . | nindent 2 }}
resources: {{ toJson .Values.sidecars.livenessprobe.resources }}
volumeMounts:
  - name: socket-dir
    mountPath: /csi
{{- end }}

{{/* What all pods have; "component" is controller or node of the values. */}}
{{- define "blockdriver.pod" -}}
{{- $component := index .root.Values .component -}}
priorityClassName: {{ $component.priorityClassName }}
terminationGracePeriodSeconds: {{ if $component.lifecycle }}90{{ else }}30{{ end }} # more than -drain-timeout, and the preStop hook's -timeout
nodeSelector:
  kubernetes.io/os: linux
  {{- with $component.nodeSelector }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with $component.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $component.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
