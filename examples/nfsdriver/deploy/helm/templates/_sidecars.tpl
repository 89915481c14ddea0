{{/* A sidecar of the controller, but for its arguments: list . NAME PORT */}}
{{- define "nfsdriver.sidecar" -}}
{{- $root := index . 0 -}}
{{- $name := index . 1 -}}
{{- $values := index $root.Values.sidecars $name -}}
name: csi-{{ $name }}
image: {{ $root.Values.sidecars.registry }}/csi-{{ $name }}:{{ $values.tag }}
ports:
  - name: {{ $name }}
    containerPort: {{ index . 2 }}
livenessProbe:
  httpGet:
    path: /healthz/leader-election
    port: {{ $name }}
  initialDelaySeconds: 30
  periodSeconds: 20
  timeoutSeconds: 5
  failureThreshold: 5
securityContext:
  {{- include "nfsdriver.sidecarSecurity" $root | nindent 2 }}
resources: {{ toJson $values.resources }}
volumeMounts:
  - name: socket-dir
    mountPath: /csi
{{- end }}

{{/* The sidecars of the controller. A copy may take longer than the timeout: it continues when the
call has timed out, and the retry, after at most a minute, joins it. */}}
{{- define "nfsdriver.sidecars" -}}
- {{ include "nfsdriver.sidecar" (list . "provisioner" 9810) | nindent 2 }}
  args:
    - --csi-address=/csi/csi.sock
    - --timeout={{ .Values.sidecars.timeout }}
    - --retry-interval-max=1m
    - --extra-create-metadata # for the variables of subDir
    - --leader-election
    - --http-endpoint=:9810
- {{ include "nfsdriver.sidecar" (list . "resizer" 9812) | nindent 2 }}
  args:
    - --csi-address=/csi/csi.sock
    - --timeout={{ .Values.sidecars.timeout }}
    - --retry-interval-max=1m
    - --handle-volume-inuse-error=false # volumes can grow while in use; otherwise it watches all pods
    - --feature-gates=VolumeAttributesClass=false # the driver has no mutable parameters
    - --leader-election
    - --http-endpoint=:9812
{{- if .Values.snapshots.enabled }}
- {{ include "nfsdriver.sidecar" (list . "snapshotter" 9813) | nindent 2 }}
  args:
    - --csi-address=/csi/csi.sock
    - --timeout={{ .Values.sidecars.timeout }}
    - --retry-interval-max=1m
    - --extra-create-metadata
    - --leader-election
    - --http-endpoint=:9813
{{- end }}
{{- end }}
