package node

import (
	"fmt"
	"strings"
)

// nearest names the known key that was probably meant, "" when none is close.
func nearest(key string, known []string) string {
	best, bestDistance := "", len(key)/2+1
	for _, k := range known {
		if d := distance(strings.ToLower(key), strings.ToLower(k)); d < bestDistance {
			best, bestDistance = k, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", best)
}

// distance is the Levenshtein distance of two short words.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost = 1 + min(diagonal, row[j], row[j+1])
			}
			diagonal, row[j+1] = row[j+1], cost
		}
	}
	return row[len(b)]
}
