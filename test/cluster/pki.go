//go:build linux

package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// An authority signs the certificates of a cluster, which live for a day.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(dir string) (*authority, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	a := &authority{dir: dir}
	return a, a.issue("ca", &x509.Certificate{
		Subject: pkix.Name{CommonName: "csikit"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	})
}

func (a *authority) crt(name string) string { return filepath.Join(a.dir, name+".crt") }
func (a *authority) pem(name string) string { return filepath.Join(a.dir, name+".key") }

// issue writes NAME.crt and NAME.key. The first certificate is the authority's own.
func (a *authority) issue(name string, c *x509.Certificate) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	if c.SerialNumber, err = rand.Int(rand.Reader, big.NewInt(1<<62)); err != nil {
		return err
	}
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	if a.cert == nil {
		a.cert, a.key = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, a.cert, &key.PublicKey, a.key)
	if err != nil {
		return err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	if err := writePEM(a.crt(name), "CERTIFICATE", der); err != nil {
		return err
	}
	return writePEM(a.pem(name), "PRIVATE KEY", keyDER)
}

func writePEM(name, kind string, der []byte) error {
	return os.WriteFile(name, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}

// server issues the certificate of the API server, or a kubelet.
func (a *authority) server(name string, addresses ...string) error {
	c := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:    []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc"},
	}
	for _, s := range addresses {
		c.IPAddresses = append(c.IPAddresses, net.ParseIP(s))
	}
	return a.issue(name, c)
}

// client issues a certificate for a user of the API server, and writes NAME.conf, the
// kubeconfig with it.
func (a *authority) client(name, user string, groups ...string) error {
	err := a.issue(name, &x509.Certificate{
		Subject: pkix.Name{CommonName: user, Organization: groups}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return err
	}
	return os.WriteFile(a.kubeconfig(name), fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://%s", certificate-authority: %q}}]
users: [{name: u, user: {client-certificate: %q, client-key: %q}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
current-context: c
`, apiAddress, a.crt("ca"), a.crt(name), a.pem(name)), 0o600)
}

func (a *authority) kubeconfig(name string) string { return filepath.Join(a.dir, name+".conf") }
