{{/* The labels of the pods of a component, "node" or "controller", and its selector. */}}
{{- define "nfsdriver.labels" -}}
app.kubernetes.io/name: nfsdriver
app.kubernetes.io/component: {{ . }}
{{- end }}

{{- define "nfsdriver.image" -}}
{{ with .Values.image.registry }}{{ . }}/{{ end }}nfsdriver:{{ .Values.image.tag }}
{{- end }}

{{- define "nfsdriver.sidecarSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- with .Values.sidecars.seLinuxOptions }}
seLinuxOptions: {{ toJson . }}
{{- end }}
{{- end }}

{{/* The probes of the driver's container, which livenessprobe answers or the driver itself: of
the host's network if the value is true. */}}
{{- define "nfsdriver.probes" -}}
startupProbe:
  httpGet:
    {{- if . }}
    host: 127.0.0.1
    {{- end }}
    path: /healthz
    port: healthz
  periodSeconds: 2
  timeoutSeconds: 5 # more than -probe-timeout of livenessprobe
  failureThreshold: 90
livenessProbe:
  httpGet:
    {{- if . }}
    host: 127.0.0.1
    {{- end }}
    path: /healthz
    port: healthz
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 5
{{- end }}

{{/* livenessprobe, at an address: list . ADDRESS */}}
{{- define "nfsdriver.livenessprobe" -}}
{{- $root := index . 0 -}}
name: liveness-probe
image: {{ $root.Values.sidecars.registry }}/livenessprobe:{{ $root.Values.sidecars.livenessprobe.tag }}
args:
  - --csi-address=/csi/csi.sock
  - --http-endpoint={{ index . 1 }}
  - --probe-timeout=3s
securityContext:
  {{- include "nfsdriver.sidecarSecurity" $root | nindent 2 }}
resources: {{ toJson $root.Values.sidecars.livenessprobe.resources }}
volumeMounts:
  - name: socket-dir
    mountPath: /csi
{{- end }}

{{/* What all pods have; "component" is controller or node of the values. */}}
{{- define "nfsdriver.pod" -}}
{{- $component := index .root.Values .component -}}
dnsPolicy: {{ $component.dnsPolicy }}
priorityClassName: {{ $component.priorityClassName }}
terminationGracePeriodSeconds: 30 # more than -drain-timeout
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
