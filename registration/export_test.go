package registration

import (
	"log/slog"
	"time"
)

var discard = slog.New(slog.DiscardHandler)

// SetIntervals replaces the interval of reconciliation and the timeout of probes.
func (r *Registrar) SetIntervals(interval, answer time.Duration) {
	r.interval, r.answerTimeout = interval, answer
}

// KubeletSilence is kubeletSilence.
const KubeletSilence = kubeletSilence

// SunPathMax is the limit of paths that kubelet connects to.
const SunPathMax = sunPathMax
