package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/native-vmss/native-vmss/internal/version"
	"github.com/native-vmss/native-vmss/pkg/metadata"
	"github.com/native-vmss/native-vmss/pkg/node"
)

// settings are the flags that every command has.
type settings struct {
	conf     string
	stateDir string
	metadata string
	verbose  bool
}

func root() *cobra.Command {
	var s settings
	cmd := &cobra.Command{
		Use:   "vmssctl",
		Short: "look after the pod addresses of this node",
		Long: "vmssctl looks after the pod addresses of this node.\n\n" +
			"Its configuration is that of the first conflist in " + node.ConfDir + " that names a plugin of ours.",
		SilenceUsage: true, SilenceErrors: true,
	}
	f := cmd.PersistentFlags()
	f.StringVar(&s.conf, "conf", "", "conflist to use instead")
	f.StringVar(&s.stateDir, "state-dir", "", "state directory, instead of the configuration's")
	f.StringVar(&s.metadata, "metadata-url", "", "metadata service, instead of the configuration's")
	f.BoolVarP(&s.verbose, "verbose", "v", false, "log what is done")
	cmd.Version = version.String
	cmd.AddCommand(nodeCommand(&s), ipamCommand(&s), metricsCommand(s.traffic), topCommand(s.traffic))
	return cmd
}

// configuration is the one that the plugins on this node are called with, with the flags on top.
func (s *settings) configuration() (node.Conf, error) {
	conf, err := s.read()
	if err != nil {
		return conf, err
	}
	if s.stateDir != "" && !filepath.IsAbs(s.stateDir) {
		return conf, fmt.Errorf("--state-dir: %q is no absolute path", s.stateDir)
	}
	if s.stateDir != "" {
		conf.IPAM.StateDir = s.stateDir
	}
	if s.metadata != "" {
		if _, err := metadata.New(s.metadata, nil); err != nil {
			return conf, fmt.Errorf("--metadata-url: %w", err)
		}
		conf.IPAM.MetadataURL = s.metadata
	}
	return conf, nil
}

func (s *settings) read() (node.Conf, error) {
	if s.conf != "" {
		conf, err := node.ReadConf(s.conf)
		if err != nil {
			return conf, fmt.Errorf("--conf: %w", err)
		}
		return conf, nil
	}
	conf, err := node.FindConf(node.ConfDir)
	if err == nil && conf.Name == "" && s.stateDir == "" { // each network has a name
		fmt.Fprintf(os.Stderr, "no conflist of ours in %s: looking at %s, the default (--conf names another configuration)\n",
			node.ConfDir, conf.IPAM.StateDir)
	}
	return conf, err
}

// group is a command that only has others: a mistyped one of those is an error, not a page of help.
func group(use, short string) *cobra.Command {
	return &cobra.Command{Use: use, Short: short, Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		return cmd.Help()
	}}
}

// errRoot is one line where the kernel would refuse each step by itself.
var errRoot = errors.New("run as root")

func needRoot() error {
	if os.Geteuid() != 0 {
		return errRoot
	}
	return nil
}

func (s *settings) open() (*node.Node, error) {
	if err := needRoot(); err != nil {
		return nil, err
	}
	conf, err := s.configuration()
	if err != nil {
		return nil, err
	}
	return node.Open(conf, nil, s.logger())
}

func (s *settings) logger() *slog.Logger {
	level := slog.LevelWarn
	if s.verbose {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
}
