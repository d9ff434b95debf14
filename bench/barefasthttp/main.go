// Command barefasthttp answers every request with the bytes that the gateway's echo filter answers in the benchmark, on
// fasthttp's server and nothing else: it is the ceiling for a gateway that is built on that server.
//
//	barefasthttp ADDRESS
package main

import (
	"fmt"
	"os"

	"github.com/valyala/fasthttp"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: barefasthttp ADDRESS")
		os.Exit(2)
	}
	body := []byte(`{"message":"not found"}`)
	s := fasthttp.Server{
		NoDefaultServerHeader: true,
		Handler: func(ctx *fasthttp.RequestCtx) {
			ctx.SetContentType("application/json")
			ctx.SetBody(body)
		},
	}
	fmt.Fprintln(os.Stderr, s.ListenAndServe(os.Args[1]))
	os.Exit(1)
}
