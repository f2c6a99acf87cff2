// Package plugin is what the two CNI plugins share: one JSON document on stdout whatever happens, error codes, CNI_ARGS and
// the log.
package plugin
