// Package export shows what pods and the node have sent and got as Prometheus metrics.
//
// A scrape asks the source once. Whatever pods are called, the page parses, has each series once and is bounded: names are cleaned
// and cut (label.go), sandboxes of one name are summed, and beyond a number of pods and namespaces the rest is one series (sum.go).
// What isn't known has no series: a pod that isn't counted now is absent, not zero.
//
// A source that fails costs no scrape: the page has the values of the last one that didn't, native_vmss_accounting_stale is 1
// and native_vmss_scrape_errors_total goes up.
package export
