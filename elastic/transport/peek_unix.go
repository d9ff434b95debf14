//go:build unix

package transport

import "syscall"

// quiet tells whether the socket is open and has nothing to read. Sockets of Go do not block.
func quiet(fd uintptr, b []byte) bool {
	_, _, err := syscall.Recvfrom(int(fd), b, syscall.MSG_PEEK)
	return err == syscall.EAGAIN || err == syscall.EINTR
}
