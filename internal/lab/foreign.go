package lab

import "os"

// Foreign is a network namespace of somebody else, a container's or the machine's: a lab works in it, and neither owns nor ends it.
type Foreign struct{ space }

// OpenForeign opens the namespace behind a path such as /proc/<pid>/ns/net; the lab's Close lets go of it.
func (l *Lab) OpenForeign(path string) (*Foreign, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	f := &Foreign{space{name: path, file: file}}
	l.Defer(f.close)
	return f, nil
}

func (n *Foreign) close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.handle != nil {
		n.handle.Close()
	}
	return n.file.Close()
}
