//go:build unix

package transport

import (
	"io"
	"syscall"
)

// sockets tells whether the functions of this file work. Sockets of Go do not block, so they return at once, with
// errWouldBlock if there is nothing to do.
const sockets = true

// peekSocket reads without taking: io.EOF if the other side has closed.
func peekSocket(fd uintptr, b []byte) (int, error) {
	for {
		n, _, err := syscall.Recvfrom(int(fd), b, syscall.MSG_PEEK)
		switch {
		case err == syscall.EINTR:
			continue
		case err == syscall.EAGAIN:
			return 0, errWouldBlock
		case err == nil && n == 0:
			return 0, io.EOF
		}
		return max(0, n), err
	}
}

// readSocket reads what is there: io.EOF if the other side has closed.
func readSocket(fd uintptr, b []byte) (int, error) {
	for {
		n, err := syscall.Read(int(fd), b)
		switch {
		case err == syscall.EINTR:
			continue
		case err == syscall.EAGAIN:
			return 0, errWouldBlock
		case err == nil && n == 0:
			return 0, io.EOF
		}
		return max(0, n), err
	}
}

// writeSocket writes what fits into the socket's buffer.
func writeSocket(fd uintptr, b []byte) (int, error) {
	for {
		n, err := syscall.Write(int(fd), b)
		switch {
		case err == syscall.EINTR:
			continue
		case err == syscall.EAGAIN:
			return 0, errWouldBlock
		}
		return max(0, n), err
	}
}
