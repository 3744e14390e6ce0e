// Makes certificates for one run of a suite, in the directory that the first argument names: an authority in ca.pem, and for
// each further argument NAME a certificate in NAME.pem with its key in NAME.key.
package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"time"
)

func main() {
	directory := os.Args[1]
	authority, key := newAuthority()
	write(filepath.Join(directory, "ca.pem"), "CERTIFICATE", authority.Raw)
	for _, name := range os.Args[2:] {
		issue(directory, name, authority, key)
	}
}

func newAuthority() (*x509.Certificate, *ecdsa.PrivateKey) {
	template := &x509.Certificate{
		SerialNumber:          serial(),
		Subject:               pkix.Name{CommonName: "authority of the suite"},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(24 * time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	key := newKey()
	return sign(template, template, key, key), key
}

func issue(directory, name string, authority *x509.Certificate, authorityKey *ecdsa.PrivateKey) {
	id, err := url.Parse("spiffe://mesh.test/" + name)
	if err != nil {
		log.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: serial(),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(24 * time.Hour),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		DNSNames:     []string{name + ".mesh.test"},
		URIs:         []*url.URL{id},
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	key := newKey()
	certificate := sign(template, authority, key, authorityKey)
	write(filepath.Join(directory, name+".pem"), "CERTIFICATE", certificate.Raw)
	encoded, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		log.Fatal(err)
	}
	write(filepath.Join(directory, name+".key"), "PRIVATE KEY", encoded)
}

func sign(template, parent *x509.Certificate, key, parentKey *ecdsa.PrivateKey) *x509.Certificate {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, parentKey)
	if err != nil {
		log.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		log.Fatal(err)
	}
	return certificate
}

func newKey() *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		log.Fatal(err)
	}
	return key
}

func serial() *big.Int {
	number, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		log.Fatal(err)
	}
	return number
}

func write(path, kind string, der []byte) {
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		log.Fatal(err)
	}
}
