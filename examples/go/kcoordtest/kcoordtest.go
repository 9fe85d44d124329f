// Package kcoordtest starts a kcoord server for tests and calls its controls.
//
// Copy this file. It needs the command kcoord and nothing but the standard library.
package kcoordtest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

const (
	startTimeout = time.Minute
	stopTimeout  = 10 * time.Second
)

// Server is a running server with its log in memory. Its methods may be called from any goroutine.
type Server struct {
	// Bootstrap is the address for clients, such as 127.0.0.1:34895.
	Bootstrap string

	url     string
	token   string
	command *exec.Cmd
	cancel  context.CancelFunc
}

// Args are the parameters of an operation.
type Args map[string]any

// Start runs the command in $KCOORD, or kcoord from $PATH, and returns when the server accepts connections.
// Further arguments go to `kcoord serve`, such as "--set", "num.partitions=3".
func Start(arguments ...string) (*Server, error) {
	name := os.Getenv("KCOORD")
	if name == "" {
		name = "kcoord"
	}
	arguments = append([]string{"serve", "--profile", "test", "--control", "127.0.0.1:0", "--exit-with-parent"}, arguments...)
	ctx, cancel := context.WithCancel(context.Background())
	command := exec.CommandContext(ctx, name, arguments...)
	command.Stderr = os.Stderr
	// Stop ends the context: SIGTERM first, and SIGKILL if the server has not ended by then.
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) }
	command.WaitDelay = stopTimeout
	output, err := command.StdoutPipe()
	if err == nil {
		err = command.Start()
	}
	if err != nil {
		cancel()
		return nil, fmt.Errorf("kcoord: %w", err)
	}
	server := &Server{command: command, cancel: cancel}
	timer := time.AfterFunc(startTimeout, cancel)
	defer timer.Stop()
	lines := bufio.NewScanner(output)
	for server.Bootstrap == "" && lines.Scan() {
		switch words := strings.Fields(lines.Text()); {
		case strings.HasPrefix(lines.Text(), "kcoord control ") && len(words) == 4:
			server.url, server.token = words[2], words[3]
		case strings.HasPrefix(lines.Text(), "kcoord ready ") && len(words) == 3:
			server.Bootstrap = words[2]
		}
	}
	if server.Bootstrap == "" {
		cancel()
		return nil, fmt.Errorf("kcoord did not start: %v", command.Wait())
	}
	return server, nil
}

// Connect returns a server that runs elsewhere, such as in a container. Stop does nothing to it.
func Connect(bootstrap, controlURL, token string) *Server {
	return &Server{Bootstrap: bootstrap, url: controlURL, token: token}
}

// Stop ends the server.
func (s *Server) Stop() error {
	if s.command == nil {
		return nil
	}
	s.cancel()
	if err := s.command.Wait(); !errors.Is(err, context.Canceled) {
		return fmt.Errorf("kcoord: %w", err)
	}
	return nil
}

// Control calls an operation, such as "wait_stable", and returns its result. A wait that fails is an error
// with what the server has seen.
func (s *Server) Control(ctx context.Context, operation string, args Args) (json.RawMessage, error) {
	if args == nil {
		args = Args{}
	}
	body, err := json.Marshal(args)
	if err != nil {
		return nil, fmt.Errorf("kcoord: %s: %w", operation, err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/v1/"+operation, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("kcoord: %s: %w", operation, err)
	}
	request.Header.Set("Authorization", "Bearer "+s.token)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, fmt.Errorf("kcoord: %s: %w", operation, err)
	}
	defer response.Body.Close()
	var answer struct {
		Result json.RawMessage `json:"result"`
		Error  string          `json:"error"`
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return nil, fmt.Errorf("kcoord: %s: %w", operation, err)
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("kcoord: %s: %s: %s", operation, response.Status, answer.Error)
	}
	return answer.Result, nil
}
