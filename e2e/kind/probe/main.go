// Command probe is both ends of the tests' traffic, in pods, on nodes and on hosts of the fabric:
//
//	probe serve ADDR         answers HTTP: / tells who asks ("10.20.1.10"), anything else 204
//	probe get URL...         asks each URL once and prints the answers, a line each
//	probe resolve NAME       prints the addresses that DNS has for a name, sorted, a line each
//	probe hold ADDR TIME     holds one TCP connection to "probe serve" for so long, one request at a time, 5 ms apart, and prints
//	                         how many were answered and the longest wait as JSON; a broken connection is an error
//
// A request has 5 s.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"
)

const (
	timeout = 5 * time.Second
	pace    = 5 * time.Millisecond
)

var errUsage = errors.New("usage: probe serve ADDR | get URL... | resolve NAME | hold ADDR TIME")

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(1)
	}
}

func run(args []string, w io.Writer) error {
	switch {
	case len(args) == 2 && args[0] == "serve":
		return serve(args[1])
	case len(args) > 1 && args[0] == "get":
		return get(args[1:], w)
	case len(args) == 2 && args[0] == "resolve":
		return resolve(args[1], w)
	case len(args) == 3 && args[0] == "hold":
		return hold(args[1], args[2], w)
	}
	return errUsage
}

func serve(addr string) error {
	ln, err := net.Listen("tcp4", addr)
	if err != nil {
		return err
	}
	server := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(whoami)}
	return server.Serve(ln)
}

func whoami(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/" {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	fmt.Fprintln(w, host)
}

func get(urls []string, w io.Writer) error {
	client := &http.Client{Timeout: timeout, Transport: &http.Transport{DisableKeepAlives: true}}
	for _, url := range urls {
		if err := getOne(client, url, w); err != nil {
			return err
		}
	}
	return nil
}

func getOne(client *http.Client, url string, w io.Writer) error {
	resp, err := client.Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	fmt.Fprintln(w, strings.TrimSpace(string(b)))
	return nil
}

func resolve(name string, w io.Writer) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	addrs, err := net.DefaultResolver.LookupHost(ctx, name)
	if err != nil {
		return err
	}
	slices.Sort(addrs)
	fmt.Fprintln(w, strings.Join(addrs, "\n"))
	return nil
}

// held is what hold has seen.
type held struct {
	Answered int    `json:"answered"`
	Longest  string `json:"longest"`
}

func hold(addr, life string, w io.Writer) error {
	d, err := time.ParseDuration(life)
	if err != nil {
		return err
	}
	conn, err := net.DialTimeout("tcp4", addr, timeout)
	if err != nil {
		return err
	}
	defer conn.Close()
	var h held
	var longest time.Duration
	answers := bufio.NewReader(conn)
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(pace) {
		start := time.Now()
		if err := ask(conn, answers); err != nil {
			return fmt.Errorf("after %d answers: %w", h.Answered, err)
		}
		h.Answered++
		longest = max(longest, time.Since(start))
	}
	h.Longest = longest.Round(time.Millisecond).String()
	return json.NewEncoder(w).Encode(h)
}

func ask(conn net.Conn, answers *bufio.Reader) error {
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	if _, err := io.WriteString(conn, "GET /ping HTTP/1.1\r\nHost: probe\r\n\r\n"); err != nil {
		return err
	}
	resp, err := http.ReadResponse(answers, nil)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}
