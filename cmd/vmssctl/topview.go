package main

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// view is how frames are shown: on a terminal, as tables one after another, or as JSON.
type view interface {
	open(first frame) error // it has no rates yet
	show(f frame) error
	failed(err error, errs io.Writer) error
	// wait returns false when ctx ended before the tick.
	wait(ctx context.Context, tick <-chan time.Time) bool
	close()
}

func viewFor(w io.Writer, opt topOptions) view {
	if opt.output == "json" {
		return jsonView{stream{w}}
	}
	if f, is := w.(*os.File); is && os.Getenv("TERM") != "dumb" {
		if _, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil {
			return &screen{tty: f, sort: opt.sort}
		}
	}
	return &tables{stream: stream{w}, sort: opt.sort}
}

// stream is what both have that print one thing after another.
type stream struct{ w io.Writer }

func (stream) open(frame) error { return nil }

func (stream) close() {}

func (stream) failed(err error, errs io.Writer) error {
	printError(errs, err)
	return nil
}

func (stream) wait(ctx context.Context, tick <-chan time.Time) bool {
	select {
	case <-ctx.Done():
		return false
	case <-tick:
		return true
	}
}

type jsonView struct{ stream }

func (v jsonView) show(f frame) error { return json.NewEncoder(v.w).Encode(topDocumentOf(f)) }

// tables has an empty line between two frames.
type tables struct {
	stream
	sort  string
	shown bool
}

func (v *tables) show(f frame) error {
	text := strings.Join(layout(f, v.sort, 0, 0), "\n") + "\n"
	if v.shown {
		text = "\n" + text
	}
	v.shown = true
	_, err := io.WriteString(v.w, text)
	return err
}

// What is sent to a terminal: xterm's sequences, which all others know. Lines that are too long end at the edge instead of
// going on in the next line, where they would push the rest down.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l\x1b[?7l" // the other screen, without a cursor and without wrapping
	leaveScreen = "\x1b[?7h\x1b[?25h\x1b[?1049l"
	cursorHome  = "\x1b[H"
	clearLine   = "\x1b[2K"
	clearBelow  = "\x1b[J"
)

// screen shows each frame in the place of the one before.
type screen struct {
	tty     *os.File
	sort    string
	on      bool
	frame   frame
	err     error // why there is none that is newer
	resized chan os.Signal
}

func (s *screen) open(first frame) error {
	s.resized = make(chan os.Signal, 1)
	signal.Notify(s.resized, syscall.SIGWINCH)
	s.on = true
	if _, err := s.tty.WriteString(enterScreen); err != nil {
		return err
	}
	return s.show(first)
}

func (s *screen) close() {
	if !s.on {
		return
	}
	signal.Stop(s.resized)
	_, _ = s.tty.WriteString(leaveScreen) // a terminal that is gone needs nothing
}

func (s *screen) show(f frame) error {
	s.frame, s.err = f, nil
	return s.draw()
}

// failed leaves the last frame, under the reason why there is no newer one.
func (s *screen) failed(err error, _ io.Writer) error {
	s.err = err
	return s.draw()
}

func (s *screen) wait(ctx context.Context, tick <-chan time.Time) bool {
	for {
		select {
		case <-ctx.Done():
			return false
		case <-tick:
			return true
		case <-s.resized:
			if s.draw() != nil {
				return false
			}
		}
	}
}

func (s *screen) draw() error {
	width, height := s.size()
	var lines []string
	if s.err != nil {
		lines = append(lines, "vmssctl: "+dash(s.err.Error()))
	}
	lines = append(lines, layout(s.frame, s.sort, width, height-len(lines))...)
	var b strings.Builder
	b.WriteString(cursorHome)
	for i, line := range lines[:min(len(lines), height)] {
		if i > 0 {
			b.WriteString("\r\n")
		}
		b.WriteString(clearLine + clip(line, width))
	}
	if len(lines) < height { // what a clear begins with is where the cursor is, so not at the end of a full line
		b.WriteString("\r\n" + clearBelow)
	}
	_, err := s.tty.WriteString(b.String())
	return err
}

// size of a terminal that doesn't say is that of a VT100.
func (s *screen) size() (width, height int) {
	size, err := unix.IoctlGetWinsize(int(s.tty.Fd()), unix.TIOCGWINSZ)
	if err != nil || size.Col == 0 || size.Row == 0 {
		return 80, 24
	}
	return int(size.Col), int(size.Row)
}

func clip(line string, width int) string {
	if r := []rune(line); len(r) > width {
		return string(r[:width])
	}
	return line
}

// topDocument is a frame for scripts; its keys are part of the interface. Rates that aren't known are null.
type topDocument struct {
	Time       string       `json:"time"`
	Seconds    float64      `json:"seconds"`
	Backend    string       `json:"backend"`
	Off        string       `json:"off,omitempty"`
	MarksOff   string       `json:"marksOff,omitempty"`
	Node       []rateDoc    `json:"node"`
	Namespaces []rateRowDoc `json:"namespaces"`
	Pods       []rateRowDoc `json:"pods"`
}

type rateRowDoc struct {
	Namespace string    `json:"namespace"`
	Pod       string    `json:"pod,omitempty"`
	Address   string    `json:"address,omitempty"`
	Rates     []rateDoc `json:"rates"`
}

type rateDoc struct {
	Direction        string  `json:"direction"`
	Class            string  `json:"class"`
	BitsPerSecond    float64 `json:"bitsPerSecond"`
	PacketsPerSecond float64 `json:"packetsPerSecond"`
}

func topDocumentOf(f frame) topDocument {
	rows := func(from []rateRow) []rateRowDoc {
		out := make([]rateRowDoc, 0, len(from))
		for _, r := range from {
			out = append(out, rateRowDoc{r.namespace, r.pod, r.address, rateDocs(r.rates, f.classes)})
		}
		return out
	}
	return topDocument{
		Time: f.at.UTC().Format(time.RFC3339), Seconds: f.seconds, Backend: f.backend, Off: f.off, MarksOff: f.marksOff,
		Node: rateDocs(f.node, f.classes), Namespaces: rows(f.namespaces), Pods: rows(f.pods),
	}
}

// rateDocs has each direction of each class, also where nothing was sent.
func rateDocs(r rates, classes []string) []rateDoc {
	if r == nil {
		return nil
	}
	var out []rateDoc
	for _, class := range classes {
		for _, direction := range directions {
			v := r[flow{direction, class}]
			out = append(out, rateDoc{direction, class, v.bits, v.packets})
		}
	}
	return out
}
