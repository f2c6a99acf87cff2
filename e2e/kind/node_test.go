//go:build kind

package kind

import (
	"strings"
	"testing"
	"time"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// TestKindCluster: the plugins are all that gives pods a network. No other network, no agent, the mode of kube-proxy that was
// asked for, and the fake metadata service knows each node.
func TestKindCluster(t *testing.T) {
	for _, node := range []string{controlPlane, worker} {
		t.Run(node, func(t *testing.T) {
			if got := onNode(t, node, "ls", "/etc/cni/net.d"); got != "portmap.conflist" {
				t.Errorf("conflists: %q", got)
			}
			doc := onNode(t, node, "curl", "-sS", "--max-time", "5", "-H", "Metadata: true",
				"http://169.254.169.254/metadata/instance/compute/osProfile/computerName?api-version=2021-02-01&format=text")
			if doc != node {
				t.Errorf("metadata says this is %q", doc)
			}
			if mode := onNode(t, node, "curl", "-sS", "http://127.0.0.1:10249/proxyMode"); mode != fromEnv("MODE", mode) {
				t.Errorf("kube-proxy's mode is %q", mode)
			}
		})
	}
	var sets struct {
		Items []struct{ Metadata struct{ Name string } }
	}
	get(t, &sets, "daemonsets", "-A")
	if len(sets.Items) != 1 || sets.Items[0].Metadata.Name != "kube-proxy" {
		t.Errorf("DaemonSets: %v, want kube-proxy alone", sets.Items)
	}
}

// TestKindProbes: kubelet's probes reach pods, and a failing one restarts the container.
func TestKindProbes(t *testing.T) {
	ns := namespace(t, "nvt-probes")
	check := func(port int) object {
		return object{"httpGet": object{"path": "/ping", "port": port}, "periodSeconds": 1, "failureThreshold": 2, "timeoutSeconds": 5}
	}
	start(
		t, ns,
		podSpec{name: "http", node: worker, extra: object{"readinessProbe": check(podPort), "livenessProbe": check(podPort)}},
		podSpec{name: "tcp", node: controlPlane, extra: object{"readinessProbe": object{"tcpSocket": object{"port": podPort}}}},
		podSpec{name: "dead", node: worker, extra: object{"livenessProbe": check(podPort + 1)}},
	)
	restarts := func(pod string) string {
		return kubectl(t, "-n", ns, "get", "pod", pod, "-o", "jsonpath={.status.containerStatuses[0].restartCount}")
	}
	waitFor(t, "the dead one is restarted", time.Minute, func() (bool, string) { n := restarts("dead"); return n != "0", n })
	if n := restarts("http"); n != "0" {
		t.Errorf("the live one was restarted %s times", n)
	}
}

// TestKindPlatform: pods resolve names by Azure's resolver, and get no word from metadata service and wireserver.
func TestKindPlatform(t *testing.T) {
	ns := namespace(t, "nvt-platform")
	for _, p := range start(t, ns, podSpec{name: "pod-0", node: controlPlane}, podSpec{name: "pod-1", node: worker}) {
		t.Run(p.node, func(t *testing.T) {
			if got := p.exec(t, "probe", "resolve", "hub.example"); got != lab.CloudHub.String() {
				t.Errorf("hub.example is %s", got)
			}
			for _, url := range []string{"http://169.254.169.254/metadata/versions", "http://168.63.129.16/", "http://168.63.129.16:32526/"} {
				out, err := p.try(t.Context(), "curl", "-sS", "--max-time", "3", "-H", "Metadata: true", url)
				// curl: 7 refused, 28 timed out. Any other failure is one of the test.
				if err == nil || !strings.Contains(err.Error(), "curl: (7)") && !strings.Contains(err.Error(), "curl: (28)") {
					t.Errorf("%s: %q, %v; want refused or no answer", url, out, err)
				}
			}
		})
	}
}
