package csiserver_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csikit/csikit/csiserver"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// FuzzNoSecretGetsOut plants a secret wherever a request may carry one, lets the
// handler fail in every way that echoes it, and looks for it in what the caller and
// the log get.
func FuzzNoSecretGetsOut(f *testing.F) {
	f.Add("hunter2!", uint8(0))
	f.Add("p=q,r", uint8(1))
	f.Add("äöü€", uint8(2))
	f.Add("a b", uint8(3))
	f.Fuzz(func(t *testing.T, text string, way uint8) {
		const mark = "s3cr3t-"
		secret := mark + strings.Map(func(r rune) rune {
			if r <= ' ' || r == 0x7f || r == 0xfffd || r == ',' { // what ends a mount flag, or is escaped
				return 'x'
			}
			return r
		}, text)
		req := publishRequest()
		req.Secrets = map[string]string{"password": secret}
		req.VolumeContext = map[string]string{"csi.storage.k8s.io/serviceAccount.tokens": secret, "mine": secret}
		req.VolumeCapability.GetMount().MountFlags = []string{"noatime", "password=" + secret}
		echo := fmt.Sprintf("cannot mount %v with %v, %v (%s)", req.GetVolumeContext(), req.GetSecrets(), req.GetVolumeCapability().GetMount().GetMountFlags(), secret)

		book := &logBook{}
		logger := book.logger(slog.LevelDebug)
		keys := csiserver.WithRedactedKeys("mine")
		call := csiserver.Chain([]csiserver.Interceptor{
			csiserver.RequestIDs(), csiserver.Logging(logger, keys), csiserver.StatusNormalization(keys),
			csiserver.Recovery(logger, keys), csiserver.Validation(logger, keys),
		})
		_, err := call(t.Context(), req, publishInfo, func(context.Context, any) (any, error) {
			switch way % 5 {
			case 0:
				return nil, errors.New(echo)
			case 1:
				return nil, status.Error(codes.NotFound, echo)
			case 2:
				return nil, fmt.Errorf("%s: %w", echo, status.Error(codes.Aborted, echo))
			case 3:
				panic(echo)
			}
			return &csi.NodePublishVolumeResponse{}, nil
		})
		if strings.Contains(fmt.Sprint(err), mark) {
			t.Errorf("the caller gets %v", err)
		}
		if strings.Contains(book.String(), mark) {
			t.Errorf("the log has %s", book)
		}
	})
}
