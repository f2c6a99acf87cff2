package export

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// unit is said of each number of bytes: nobody should have to guess why it isn't what a switch counted.
const unit = "IP bytes of packets as the kernel handles them: without link headers, and a GSO or GRO super-packet counts once, " +
	"so they are up to 3.5 % below the wire's."

const packetUnit = "Packets as the kernel handles them: a GSO or GRO super-packet is one, so they are up to 7 times fewer than the wire's."

type descs struct {
	podBytes, mark, nsBytes, nsPackets, unknown, node, resets, on, marksOn, stale, errors *prometheus.Desc
}

func newDescs(opt Options) descs {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("native_vmss_"+name, help, labels, nil)
	}
	pods := fmt.Sprintf("Above %d pods those that come last by name are summed as %s, which falls when one of them ends.", opt.MaxPods, other)
	namespaces := fmt.Sprintf("Above %d namespaces those that come last by name are summed as %s.", opt.MaxNamespaces, other)
	return descs{
		podBytes: desc("pod_network_bytes_total", "What a pod that runs now has sent (tx) and got (rx) since it began, by class of its "+
			"real peer. "+unit+" Sandboxes of one name are summed; a pod that isn't counted now has no series. "+pods,
			"namespace", "pod", "direction", "class"),
		mark: desc("pod_mark", "Mark that packets carry which a pod sends, from prerouting to postrouting, inside markMask. None where "+
			"two sandboxes of one name have different ones.", "namespace", "pod"),
		nsBytes: desc("namespace_network_bytes_total", "What all pods of a namespace have sent and got on this node, ended ones included, "+
			"since the node booted or its store was lost. "+unit+" "+namespaces, "namespace", "direction", "class"),
		nsPackets: desc("namespace_network_packets_total", "What all pods of a namespace have sent and got on this node, ended ones "+
			"included, since the node booted or its store was lost. "+packetUnit+" "+namespaces, "namespace", "direction", "class"),
		unknown: desc("accounting_unknown_seconds_total", "How long pods of a namespace went uncounted, in pod-seconds: two pods make two a "+
			"second. "+namespaces,
			"namespace"),
		node: desc("node_network_bytes_total", "What the node itself has sent and got by its NICs since the node booted or its store was "+
			"lost; its traffic with its pods is theirs. "+unit, "direction", "class"),
		resets: desc("accounting_resets_total", "How often bytes since the last reading were in doubt. store: the store was lost, and "+
			"the totals with it; counters: some were lower than before or could not be read, bytes are missing; rules: others had removed or "+
			"doubled ours, bytes are missing or count twice.", "reason"),
		on:      desc("accounting_on", "1 while traffic is counted, 0 while it isn't.", "backend"),
		marksOn: desc("accounting_marks_on", "1 while packets carry their pod's mark, 0 while they don't or nothing is counted."),
		stale: desc("accounting_stale", "1 if the counters could not be read: the values are older ones, or there are none. "+
			"0 if they are those of this scrape."),
		errors: desc("scrape_errors_total", "How many scrapes of this process could not read the traffic."),
	}
}

func (d descs) all() []*prometheus.Desc {
	return []*prometheus.Desc{
		d.podBytes, d.mark, d.nsBytes, d.nsPackets, d.unknown, d.node, d.resets, d.on, d.marksOn, d.stale, d.errors,
	}
}
