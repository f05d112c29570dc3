//go:build programs

// Package controlplane names the programs to build, so that `go mod tidy` keeps what they need.
package controlplane

import (
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
	_ "k8s.io/kubernetes/cmd/kube-controller-manager"
)
