package metadata

import "errors"

// What a request can end with. Each is wrapped in a text that names the URL, the last answer and the number of attempts.
var (
	// ErrUnreachable: no complete answer came: connection refused, timed out or cut.
	ErrUnreachable = errors.New("metadata service unreachable")
	// ErrUnavailable: the service answered, but 404, 410 or 5xx until there was no time left.
	ErrUnavailable = errors.New("metadata service not ready")
	// ErrThrottled: the service answered 429 until there was no time left, or asked for a longer wait than there was time.
	ErrThrottled = errors.New("metadata service throttles this machine")
	// ErrRefused: an answer that trying again doesn't change, such as 403, a redirect or an unsupported api-version.
	ErrRefused = errors.New("metadata service refused the request")
)

// What a document can be rejected with.
var (
	// ErrIncomplete: the document has no network part or no interface in it. The service shows this for a while after boot.
	ErrIncomplete = errors.New("metadata document is incomplete")
	// ErrMalformed: the answer isn't a JSON object, or is too long.
	ErrMalformed = errors.New("metadata document is malformed")
)
