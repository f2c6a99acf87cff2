package export

import (
	"bytes"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
)

// Page returns the whole page of a collector in the text format, or an error and nothing.
func Page(c prometheus.Collector) ([]byte, error) {
	r := prometheus.NewRegistry()
	if err := r.Register(c); err != nil {
		return nil, fmt.Errorf("make the metrics: %w", err)
	}
	families, err := r.Gather()
	if err != nil {
		return nil, fmt.Errorf("make the metrics: %w", err)
	}
	var page bytes.Buffer
	enc := expfmt.NewEncoder(&page, expfmt.NewFormat(expfmt.TypeTextPlain))
	for _, f := range families {
		if err := enc.Encode(f); err != nil {
			return nil, fmt.Errorf("make the metrics: %w", err)
		}
	}
	return page.Bytes(), nil
}
