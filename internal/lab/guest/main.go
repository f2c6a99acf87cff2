// Command guest is all that is inside the image of tests that start real containers: a static program that a runtime can keep as
// its first process and call a second time.
//
//	guest serve PORT    echoes TCP until SIGTERM
//	guest dial IP:PORT  sends a line to such a server, prints the connection's own address
package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"
)

const (
	// lifetime bounds a container that outlives its test, which was killed.
	lifetime = 10 * time.Minute
	patience = 5 * time.Second
	greeting = "hello\n"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 2 {
		switch args[0] {
		case "serve":
			return serve(args[1])
		case "dial":
			return dial(args[1])
		}
	}
	return errors.New("usage: guest serve PORT | guest dial IP:PORT")
}

// serve is the first process of its container: the kernel delivers it no signal that it doesn't handle, and it gets children
// that it never started.
func serve(port string) error {
	end, child := make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM, syscall.SIGINT)
	signal.Notify(child, syscall.SIGCHLD)
	l, err := net.Listen("tcp4", ":"+port)
	if err != nil {
		return err
	}
	go accept(l)
	for over := time.After(lifetime); ; {
		select {
		case <-end:
			return nil
		case <-over:
			return errors.New("nobody ended this container")
		case <-child:
			for pid := 1; pid > 0; {
				pid, _ = syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
			}
		}
	}
}

func accept(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			_, _ = io.Copy(c, c)
		}()
	}
}

func dial(to string) error {
	c, err := net.DialTimeout("tcp4", to, patience)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := io.WriteString(c, greeting); err != nil {
		return err
	}
	answer := make([]byte, len(greeting))
	if _, err := io.ReadFull(c, answer); err != nil {
		return err
	}
	if string(answer) != greeting {
		return fmt.Errorf("%s answered %q", to, answer)
	}
	fmt.Println(c.LocalAddr())
	return nil
}
