package nodelifecycle

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
)

const (
	// requestTimeout bounds one request: an API server that accepts and does not answer.
	requestTimeout = 10 * time.Second
	// maxRetryAfter bounds what a server's Retry-After makes this package wait.
	maxRetryAfter = 2 * time.Minute
	// maxBody is more than etcd stores of one object, or a page of attachments has.
	maxBody = 32 << 20
	// pageSize is the number of VolumeAttachments that one request returns. They have no
	// field selector for the node, so all of the cluster's have to be read.
	pageSize = 500
)

// The objects of Kubernetes' API, with only the fields that this package reads.
type (
	nodeObject struct {
		Metadata struct {
			DeletionTimestamp *string `json:"deletionTimestamp"`
		} `json:"metadata"`
		Spec struct {
			Unschedulable bool    `json:"unschedulable"`
			Taints        []taint `json:"taints"`
		} `json:"spec"`
	}
	taint struct {
		Key    string `json:"key"`
		Effect string `json:"effect"`
	}
	csiNodeObject struct {
		Spec struct {
			Drivers []struct {
				Name string `json:"name"`
			} `json:"drivers"`
		} `json:"spec"`
	}
	attachmentList struct {
		Metadata struct {
			Continue string `json:"continue"`
		} `json:"metadata"`
		Items []struct {
			Metadata struct {
				Name string `json:"name"`
			} `json:"metadata"`
			Spec struct {
				Attacher string `json:"attacher"`
				NodeName string `json:"nodeName"`
				Source   struct {
					PersistentVolumeName string `json:"persistentVolumeName"`
				} `json:"source"`
			} `json:"spec"`
		} `json:"items"`
	}
	// status is what the API server answers instead of an object.
	status struct {
		Message string `json:"message"`
	}
)

func (n *Node) node(ctx context.Context) (nodeObject, error) {
	var o nodeObject
	return o, n.do(ctx, "get", "nodes/"+n.cfg.NodeName, request{method: http.MethodGet, path: "/api/v1/nodes/" + n.cfg.NodeName}, &o)
}

// registered says whether CSINode lists the driver. Without the object it does not.
func (n *Node) registered(ctx context.Context) (bool, error) {
	var o csiNodeObject
	err := n.do(ctx, "get", "csinodes/"+n.cfg.NodeName, request{method: http.MethodGet, path: "/apis/storage.k8s.io/v1/csinodes/" + n.cfg.NodeName}, &o)
	if statusOf(err) == http.StatusNotFound {
		return false, nil
	} else if err != nil {
		return false, err
	}
	for _, d := range o.Spec.Drivers {
		if d.Name == n.cfg.DriverName {
			return true, nil
		}
	}
	return false, nil
}

// attachments returns volumes of the driver that are attached to the node: those of the
// first page that has any, which is all that a waiting caller needs to know.
func (n *Node) attachments(ctx context.Context) (volumes []string, err error) {
	for next := ""; ; {
		query := url.Values{"limit": {strconv.Itoa(pageSize)}}
		if next != "" {
			query.Set("continue", next)
		}
		var l attachmentList
		if err := n.do(ctx, "list", "volumeattachments", request{method: http.MethodGet, path: "/apis/storage.k8s.io/v1/volumeattachments", query: query}, &l); err != nil {
			return nil, err
		}
		for _, a := range l.Items {
			if a.Spec.NodeName == n.cfg.NodeName && a.Spec.Attacher == n.cfg.DriverName {
				name := a.Spec.Source.PersistentVolumeName
				if name == "" {
					name = a.Metadata.Name
				}
				volumes = append(volumes, name)
			}
		}
		if next = l.Metadata.Continue; len(volumes) > 0 || next == "" {
			return volumes, nil
		}
	}
}

// A request to the API server; patch is a JSON Patch.
type request struct {
	method, path string
	query        url.Values
	patch        []byte
}

// do sends a request and decodes the answer, unless into is nil. Its error is an *Error.
func (n *Node) do(ctx context.Context, op, object string, r request, into any) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	fail := func(status int, err error) *Error { return &Error{Op: op, Object: object, Status: status, Err: err} }

	token, err := os.ReadFile(n.cfg.TokenFile)
	if err == nil && len(bytes.TrimSpace(token)) == 0 {
		err = fmt.Errorf("the token in %s is empty", n.cfg.TokenFile)
	}
	if err != nil {
		return fail(0, err)
	}
	transport, err := n.transport()
	if err != nil {
		return fail(0, err)
	}
	u := n.base.JoinPath(r.path)
	u.RawQuery = r.query.Encode()
	req, err := http.NewRequestWithContext(ctx, r.method, u.String(), bytes.NewReader(r.patch))
	if err != nil {
		return fail(0, err)
	}
	req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", n.cfg.DriverName+" (csikit nodelifecycle)")
	if r.patch != nil {
		req.Header.Set("Content-Type", "application/json-patch+json")
	}
	// A transport follows no redirect, which could take the token elsewhere.
	res, err := transport.RoundTrip(req)
	if err != nil {
		return fail(0, err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxBody+1))
	if res.StatusCode < 200 || res.StatusCode > 299 {
		e := fail(res.StatusCode, errors.New(reason(body, res.Status)))
		e.retryAfter = retryAfter(res.Header.Get("Retry-After"))
		return e
	}
	if err == nil && len(body) > maxBody {
		err = fmt.Errorf("the response has more than %d bytes", maxBody)
	}
	if err == nil && into != nil {
		err = json.Unmarshal(body, into)
	}
	if err != nil {
		return fail(0, err)
	}
	return nil
}

// trusting returns a transport for the certificates that CAFile has now.
func (n *Node) trusting() (http.RoundTripper, error) {
	ca, err := os.ReadFile(n.cfg.CAFile)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.rt != nil && bytes.Equal(ca, n.ca) {
		return n.rt, nil
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("%s has no certificate", n.cfg.CAFile)
	}
	if n.rt != nil {
		n.rt.CloseIdleConnections()
	}
	// No proxy, which is for what is outside the cluster. HTTP/1.1, because a request that
	// times out then closes its connection: one to a dead API server is not used again.
	n.ca, n.rt = ca, &http.Transport{
		DialContext:         (&net.Dialer{Timeout: requestTimeout / 2}).DialContext,
		TLSClientConfig:     &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout: requestTimeout / 2,
		IdleConnTimeout:     time.Minute,
		MaxIdleConns:        2,
	}
	return n.rt, nil
}

// reason is the message of an API server's answer, or else its HTTP status.
func reason(body []byte, httpStatus string) string {
	var s status
	if err := json.Unmarshal(body, &s); err != nil || s.Message == "" {
		return httpStatus
	}
	const most = 500 // for a log
	if len(s.Message) > most {
		return strings.ToValidUTF8(s.Message[:most], "") + "..."
	}
	return s.Message
}

// retryAfter reads the header, which API servers send in seconds.
func retryAfter(header string) time.Duration {
	seconds, err := strconv.ParseUint(header, 10, 31)
	if err != nil {
		return 0
	}
	return min(time.Duration(seconds)*time.Second, maxRetryAfter)
}

func statusOf(err error) int {
	var e *Error
	if errors.As(err, &e) {
		return e.Status
	}
	return 0
}

// A backoff doubles from a second.
type backoff struct{ next time.Duration }

// wait sleeps for the next interval, at most most, or for as long as the server asks in err if that
// is longer. It returns false when ctx ends first. The interval is random by a fifth,
// because the nodes of a cluster may have started simultaneously.
func (b *backoff) wait(ctx context.Context, most time.Duration, err error) bool {
	b.next = min(max(2*b.next, time.Second), most)
	d := b.next + time.Duration((rand.Float64()-0.5)*0.4*float64(b.next))
	var e *Error
	if errors.As(err, &e) {
		d = max(d, e.retryAfter)
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
