package csiserver

import (
	"net"
	"sync"
)

// greeting is the length of what a client of HTTP/2 sends first: the preface and the header
// of its settings.
const greeting = 24 + 9

// handshakes is a listener that knows which of its connections have not sent their greeting.
// gRPC waits for them when it stops, although no call can be lost on them.
type handshakes struct {
	net.Listener
	mu       sync.Mutex
	silent   map[*greetedConn]bool
	stopping bool
}

func (h *handshakes) Accept() (net.Conn, error) {
	conn, err := h.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &greetedConn{Conn: conn, handshakes: h, left: greeting}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stopping {
		conn.Close()
	} else {
		h.silent[c] = true
	}
	return c, nil
}

// stop closes the connections that have not sent their greeting.
func (h *handshakes) stop() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stopping = true
	for c := range h.silent {
		c.Conn.Close()
	}
	h.silent = nil
}

func (h *handshakes) forget(c *greetedConn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.silent, c)
}

// greetedConn is a connection of handshakes.
type greetedConn struct {
	net.Conn
	handshakes *handshakes
	left       int // of the greeting; only the reader uses it
}

func (c *greetedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.left > 0 {
		if c.left -= n; c.left <= 0 {
			c.handshakes.forget(c)
		}
	}
	return n, err
}

func (c *greetedConn) Close() error {
	c.handshakes.forget(c)
	return c.Conn.Close()
}
