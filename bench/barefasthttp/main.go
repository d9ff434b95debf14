// Command barefasthttp answers every request with the bytes that the gateway's echo filter answers in the benchmark, or with
// those of a refusal by its limit, on fasthttp's server and nothing else: it is the ceiling for a gateway that is built on
// that server.
//
//	barefasthttp ADDRESS [refuse]
package main

import (
	"fmt"
	"os"

	"github.com/valyala/fasthttp"
)

func main() {
	if len(os.Args) < 2 || len(os.Args) > 3 || len(os.Args) == 3 && os.Args[2] != "refuse" {
		fmt.Fprintln(os.Stderr, "usage: barefasthttp ADDRESS [refuse]")
		os.Exit(2)
	}
	answer := echo
	if len(os.Args) == 3 {
		answer = refuse
	}
	s := fasthttp.Server{NoDefaultServerHeader: true, Handler: answer}
	fmt.Fprintln(os.Stderr, s.ListenAndServe(os.Args[1]))
	os.Exit(1)
}

var echoBody = []byte(`{"message":"not found"}`)

func echo(ctx *fasthttp.RequestCtx) {
	ctx.SetContentType("application/json")
	ctx.SetBody(echoBody)
}

var refusalBody = []byte(`{"error":{"root_cause":[{"type":"rate_limit_exceeded_exception","reason":"[callers] 100/s exceeded; retry in 1s"}],` +
	`"type":"rate_limit_exceeded_exception","reason":"[callers] 100/s exceeded; retry in 1s"},"status":429}`)

func refuse(ctx *fasthttp.RequestCtx) {
	ctx.SetStatusCode(fasthttp.StatusTooManyRequests)
	ctx.SetContentType("application/json")
	for _, f := range [...][2]string{
		{"X-Weir-Error", "true"}, {"RateLimit-Policy", `"callers";q=100;w=1`}, {"RateLimit", `"callers";r=0;t=1`}, {"Retry-After", "1"},
	} {
		ctx.Response.Header.Set(f[0], f[1])
	}
	ctx.SetBody(refusalBody)
}
