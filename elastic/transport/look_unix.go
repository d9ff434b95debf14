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
	return received(onSocket(peek, fd, b))
}

func peek(fd int, b []byte) (int, error) {
	n, _, err := syscall.Recvfrom(fd, b, syscall.MSG_PEEK)
	return n, err
}

// readSocket reads what is there: io.EOF if the other side has closed.
func readSocket(fd uintptr, b []byte) (int, error) {
	return received(onSocket(syscall.Read, fd, b))
}

// writeSocket writes what fits into the socket's buffer.
func writeSocket(fd uintptr, b []byte) (int, error) {
	return onSocket(syscall.Write, fd, b)
}

// onSocket calls until no signal interrupts.
func onSocket(call func(int, []byte) (int, error), fd uintptr, b []byte) (int, error) {
	for {
		switch n, err := call(int(fd), b); err {
		case syscall.EINTR:
		case syscall.EAGAIN:
			return 0, errWouldBlock
		default:
			return max(0, n), err
		}
	}
}

func received(n int, err error) (int, error) {
	if n == 0 && err == nil {
		err = io.EOF
	}
	return n, err
}
