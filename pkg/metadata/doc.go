// Package metadata asks Azure's instance metadata service (IMDS) which addresses the NICs of this machine have.
//
// # The request
//
//	GET http://169.254.169.254/metadata/instance?api-version=2021-02-01
//	Metadata: true
//
// The request never goes by a proxy, never follows a redirect and never carries X-Forwarded-For (IMDS refuses those), and the
// answer is cut off at 32 MiB. Everything a machine shares has 5 requests per second, so the first retry comes after 0.1 to 0.2 s
// and the waits double from there up to 4 s.
//
//	404 410 429 5xx, no connection, answer cut short   tried again until the deadline of the context
//	Retry-After (seconds or a date)                    waited out to the second if it fits into the deadline, else final at once
//	400 that speaks of api-version                     one older version (2019-06-01), then final
//	other answers, redirects included                  final at once
//
// One attempt may take 5 s: a hung connection must leave time for another one. A context without a deadline gets one of 30 s.
//
// # The document
//
// Parse takes the whole instance document or its "network" part. Field reports show numbers where the reference has strings,
// missing keys, null, empty lists, four spellings of a MAC and NICs in any order, so nothing but the JSON syntax is taken for
// granted and nothing depends on order. What can't be used is left out and told in Problems; it is never guessed. IMDS has no
// mark for the primary address: which one it is, and whether a document without it is complete, is decided by the caller, who
// knows the links.
//
// Sources: the reference of the service (MicrosoftDocs/azure-compute-docs instance-metadata-service.md at commit 1dc6d3b8) and
// the retries of cloud-init (sources/azure/imds.py).
package metadata
