package registration

import (
	"log/slog"
	"time"
)

var discard = slog.New(slog.DiscardHandler)

// Hasten makes a Registrar look more often than twice a second, and give up on a
// silent socket sooner.
func (r *Registrar) Hasten(interval, answer time.Duration) {
	r.interval, r.answerTimeout = interval, answer
}

// KubeletSilence is when Status begins to doubt that kubelet sees the socket.
const KubeletSilence = kubeletSilence

// SunPathMax is the limit of paths that kubelet connects to.
const SunPathMax = sunPathMax
