//go:build kind

package kind

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"
)

const (
	podImage = "nvt-kind-pod:latest"
	podPort  = 8080
)

type object = map[string]any

// podSpec says what of a pod differs from the ordinary: one container that serves on podPort.
type podSpec struct {
	name, node string
	labels     object
	ports      []object
	host       bool // hostNetwork
	command    []string
	extra      object // of the container
}

func (p podSpec) object(ns string) object {
	if p.command == nil {
		p.command = []string{"probe", "serve", fmt.Sprintf(":%d", podPort)}
	}
	container := object{
		"name": "main", "image": podImage, "imagePullPolicy": "Never", "command": p.command, "ports": p.ports,
	}
	for key, value := range p.extra {
		container[key] = value
	}
	return object{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": object{"name": p.name, "namespace": ns, "labels": p.labels},
		"spec": object{
			"nodeName": p.node, "hostNetwork": p.host, "terminationGracePeriodSeconds": 1,
			"automountServiceAccountToken": false, "tolerations": []object{{"operator": "Exists"}},
			"containers": []object{container},
		},
	}
}

// pod is one that runs.
type pod struct {
	ns, name, node string
	ip             netip.Addr
}

// start creates pods and waits until all are ready.
func start(t *testing.T, ns string, specs ...podSpec) []pod {
	t.Helper()
	var objects []any
	var names []string
	for _, s := range specs {
		objects, names = append(objects, s.object(ns)), append(names, "pod/"+s.name)
	}
	apply(t, objects...)
	kubectl(t, append([]string{"-n", ns, "wait", "--for=condition=Ready", "--timeout=" + ready.String()}, names...)...)
	byName := map[string]pod{}
	for _, p := range podsOf(t, ns) {
		byName[p.name] = p
	}
	var pods []pod
	for _, s := range specs {
		pods = append(pods, byName[s.name])
	}
	return pods
}

func podsOf(t *testing.T, ns string) []pod {
	t.Helper()
	var list struct {
		Items []struct {
			Metadata struct{ Name string }
			Spec     struct{ NodeName string }
			Status   struct{ PodIP string }
		}
	}
	get(t, &list, "pods", "-n", ns)
	var pods []pod
	for _, i := range list.Items {
		ip, err := netip.ParseAddr(i.Status.PodIP)
		if err != nil {
			t.Fatalf("pod %s/%s: address %q", ns, i.Metadata.Name, i.Status.PodIP)
		}
		pods = append(pods, pod{ns: ns, name: i.Metadata.Name, node: i.Spec.NodeName, ip: ip})
	}
	return pods
}

// try runs a program in the pod.
func (p pod) try(ctx context.Context, args ...string) (string, error) {
	return tryKubectl(ctx, "", append([]string{"exec", "-n", p.ns, p.name, "--"}, args...)...)
}

func (p pod) exec(t *testing.T, args ...string) string {
	t.Helper()
	out, err := p.try(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// url is the pod's own.
func (p pod) url() string { return url(p.ip, podPort) }

func url(host fmt.Stringer, port int) string { return fmt.Sprintf("http://%s:%d/", host, port) }

// service selects pods by app.
func service(ns, name, app string, spec object) object {
	full := object{"selector": object{"app": app}, "ports": []object{{"port": 80, "targetPort": podPort}}}
	for key, value := range spec {
		full[key] = value
	}
	return object{"apiVersion": "v1", "kind": "Service", "metadata": object{"name": name, "namespace": ns}, "spec": full}
}

// saw asks from a pod, through a fresh connection, and reports unless who was asked saw the wanted address.
func (p pod) saw(t *testing.T, url string, want netip.Addr) {
	t.Helper()
	seen(t, url, want, func() (string, error) { return p.try(t.Context(), "probe", "get", url) })
}

// seen gives rules that are being written a few seconds: kube-proxy follows the API by itself.
func seen(t *testing.T, url string, want netip.Addr, ask func() (string, error)) {
	t.Helper()
	var out string
	var err error
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(time.Second) {
		if out, err = ask(); err == nil {
			break
		}
	}
	if err != nil {
		t.Errorf("%s: %v", url, err)
		return
	}
	if got := strings.TrimSpace(out); got != want.String() {
		t.Errorf("%s saw %s, want %s", url, got, want)
	}
}
