{{/* A sidecar of the controller, but for its arguments: list . NAME PORT */}}
{{- define "blockdriver.sidecar" -}}
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
  {{- include "blockdriver.sidecarSecurity" $root | nindent 2 }}
resources: {{ toJson $values.resources }}
volumeMounts:
  - name: socket-dir
    mountPath: /csi
{{- end }}

{{/* The sidecars of the controller. A copy that takes longer than the timeout continues, and the
retry, which comes after a minute at the latest, finds it. */}}
{{- define "blockdriver.sidecars" -}}
- {{ include "blockdriver.sidecar" (list . "provisioner" 9810) | nindent 2 }}
  args:
    - --csi-address=/csi/csi.sock
    - --timeout={{ .Values.sidecars.timeout }}
    - --retry-interval-max=1m
    - --default-fstype=ext4
    - --extra-create-metadata
    - --strict-topology
    - --immediate-topology=false
    - --enable-capacity
    # Each create and delete refreshes the capacity of every class; at the default
    # of 1 request per second, new pods wait minutes for it.
    - --kube-api-capacity-qps=50
    - --kube-api-capacity-burst=100
    - --leader-election
    - --http-endpoint=:9810
  env:
    - name: NAMESPACE # --enable-capacity finds the owner of its objects by these
      valueFrom:
        fieldRef:
          fieldPath: metadata.namespace
    - name: POD_NAME
      valueFrom:
        fieldRef:
          fieldPath: metadata.name
- {{ include "blockdriver.sidecar" (list . "attacher" 9811) | nindent 2 }}
  args:
    - --csi-address=/csi/csi.sock
    - --timeout={{ .Values.sidecars.timeout }}
    - --retry-interval-max=1m
    - --default-fstype=ext4
    - --leader-election
    - --http-endpoint=:9811
- {{ include "blockdriver.sidecar" (list . "resizer" 9812) | nindent 2 }}
  args:
    - --csi-address=/csi/csi.sock
    - --timeout={{ .Values.sidecars.timeout }}
    - --retry-interval-max=1m
    - --handle-volume-inuse-error=false # volumes grow in use; else it watches all pods
    - --leader-election
    - --http-endpoint=:9812
{{- if .Values.snapshots.enabled }}
- {{ include "blockdriver.sidecar" (list . "snapshotter" 9813) | nindent 2 }}
  args:
    - --csi-address=/csi/csi.sock
    - --timeout={{ .Values.sidecars.timeout }}
    - --retry-interval-max=1m
    - --extra-create-metadata
    {{- if .Values.snapshots.groups }}
    - --feature-gates=CSIVolumeGroupSnapshot=true
    {{- end }}
    - --leader-election
    - --http-endpoint=:9813
{{- end }}
{{- if and .Values.snapshots.enabled .Values.snapshots.metadata }}
- name: csi-snapshot-metadata
  image: {{ .Values.sidecars.registry }}/csi-snapshot-metadata:{{ .Values.sidecars.snapshotMetadata.tag }}
  args:
    - --csi-address=/csi/csi.sock
    - --timeout={{ .Values.sidecars.timeout }}
    - --port=50051
    - --tls-cert=/tls/tls.crt
    - --tls-key=/tls/tls.key
    - --http-endpoint=:9815
  ports:
    - name: metadata
      containerPort: 50051
    - name: metadata-health
      containerPort: 9815
  livenessProbe:
    httpGet:
      path: /health
      port: metadata-health
    initialDelaySeconds: 30 # it waits for the driver
    periodSeconds: 20
    timeoutSeconds: 5
    failureThreshold: 5
  securityContext:
    {{- include "blockdriver.sidecarSecurity" . | nindent 4 }}
  resources: {{ toJson .Values.sidecars.snapshotMetadata.resources }}
  volumeMounts:
    - name: socket-dir
      mountPath: /csi
    - name: snapshot-metadata-tls
      mountPath: /tls
      readOnly: true
{{- end }}
{{- end }}
