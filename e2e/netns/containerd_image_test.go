package netns

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// Media types of the OCI image format.
const (
	ociIndex    = "application/vnd.oci.image.index.v1+json"
	ociManifest = "application/vnd.oci.image.manifest.v1+json"
	ociConfig   = "application/vnd.oci.image.config.v1+json"
	ociLayer    = "application/vnd.oci.image.layer.v1.tar"
)

// ociObject names a blob by its content.
type ociObject struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// ociArchive is an archive in the layout of the OCI.
type ociArchive struct {
	t   testing.TB
	out *tar.Writer
}

// criArchive makes an archive of one image, nothing but the static program that pods run, under a name.
func criArchive(t testing.TB, name string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "image.tar")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	a := &ociArchive{t: t, out: tar.NewWriter(file)}
	rootfs := a.blob(ociLayer, guestImage(t))
	config := a.json(ociConfig, map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": []string{"/guest"}, "Cmd": []string{"serve", "0"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{rootfs.Digest}},
	})
	manifest := a.json(ociManifest, map[string]any{
		"schemaVersion": 2, "mediaType": ociManifest, "config": config, "layers": []ociObject{rootfs},
	})
	manifest.Annotations = map[string]string{"io.containerd.image.name": name}
	index, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": ociIndex, "manifests": []ociObject{manifest}})
	if err != nil {
		t.Fatal(err)
	}
	a.file("index.json", 0o644, index)
	a.file("oci-layout", 0o644, []byte(`{"imageLayoutVersion":"1.0.0"}`))
	if err := a.out.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

func (a *ociArchive) json(mediaType string, v any) ociObject {
	a.t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		a.t.Fatal(err)
	}
	return a.blob(mediaType, text)
}

func (a *ociArchive) blob(mediaType string, text []byte) ociObject {
	a.t.Helper()
	sum := fmt.Sprintf("%x", sha256.Sum256(text))
	a.file("blobs/sha256/"+sum, 0o644, text)
	return ociObject{MediaType: mediaType, Digest: "sha256:" + sum, Size: len(text)}
}

func (a *ociArchive) file(name string, mode int64, text []byte) {
	a.t.Helper()
	if err := a.out.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: int64(len(text))}); err != nil {
		a.t.Fatal(err)
	}
	if _, err := a.out.Write(text); err != nil {
		a.t.Fatal(err)
	}
}
