package obs

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"testing"
)

func TestRedactURL(t *testing.T) {
	f := func(in, want string) {
		t.Helper()
		if got := RedactURL(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
	f("https://es:9200/a?b=c", "https://es:9200/a?b=c")
	f("https://u:p4ss@es:9200/a", "https://***@es:9200/a")
	f("https://token@es", "https://***@es")
	f("https://u:p@ss@es", "https://***@es")
	f("https://u:p/4ss@es/a", "https://***@es/a")
	f("https://u:p?4#ss@es", "https://***@es")
	f(`https://u:p"4 ss@es`, "https://***@es")
	f("u:p4ss@es:9200", "***@es:9200")
	f("//u:p4ss@es", "//***@es")
	f("http://es/users/a@b", "http://es/users/a@b")
	f("http://es:9200/users/a@b", "http://es:9200/users/a@b")
	f("http://[::1]:9200/a@b", "http://[::1]:9200/a@b")
	f("http://es:/a@b", "http://es:/a@b")
	f("", "")
}

func TestRedactText(t *testing.T) {
	f := func(in, want string) {
		t.Helper()
		if got := RedactText(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
	f("no URL, me@example.org", "no URL, me@example.org")
	f("https://es and me@example.org", "https://es and me@example.org")
	f(`"https://es","me@example.org"`, `"https://es","me@example.org"`)
	f("get https://u:p4ss@es: refused", "get https://***@es: refused")
	f("http://a:b@c http://d http://e:f@g", "http://***@c http://d http://***@g")
	f("http://a:b@c,http://e:f@g", "http://***@c,http://***@g")
	f(`Get "https://u:p\"4ss@es/": refused`, `Get "https://***@es/": refused`)
	f("://", "://")
	f("q=http%3A%2F%2Fu%3Ap4ss%40h%2F&b", "q=http%3A%2F%2F***%40h%2F&b")
	f("q=http%3a//u:p4ss%40h", "q=http%3a//***%40h")
	f("q=http%253A%252F%252Fu%253Ap4ss%2540h", "q=http%253A%252F%252F***%2540h")
	f("q=http%3A%2F%2Fu%3A12%252Fp4ss%40h", "q=http%3A%2F%2F***%40h")
	f("http://u:p4ss%40h/", "http://***%40h/")
	f("http://u:12%2Fp4ss@h/", "http://***@h/")
	f("/http:%2F%2Fu:p4ss@h/", "/http:%2F%2F***@h/")
	f(`{"a":"http:\/\/u:p4ss@h","b":"me@example.org"}`, `{"a":"http:\/\/***@h","b":"me@example.org"}`)
	f(`"http\u003a\u002f\u002fu:p4ss\u0040h"`, `"http\u003a\u002f\u002f***\u0040h"`)
	f("q=http%3A%2F%2Fh%2F&x=me@example.org", "q=http%3A%2F%2Fh%2F&x=me@example.org")
	f("%", "%")
	f("%3A%2", "%3A%2")
	f(":%25%25", ":%25%25")
	f("100%:50%", "100%:50%")
}

func TestRedactHeader(t *testing.T) {
	f := func(name, value, want string) {
		t.Helper()
		if got := RedactHeader(name, value); got != want {
			t.Errorf("%s: %q: got %q, want %q", name, value, got, want)
		}
	}
	f("Authorization", "Basic dTpw", "Basic ***")
	f("authorization", "apikey abc", "ApiKey ***")
	f("AUTHORIZATION", "dTpw secret", "***")
	f("Proxy-Authorization", "Bearer x", "Bearer ***")
	f("Cookie", "sid=1; a=b", "***")
	f("Set-Cookie", "sid=1", "***")
	f("es-secondary-authorization", "Basic dTpw", "Basic ***")
	f("X-Api-Key", "abc", "***")
	f("X-Vault-Token", "abc", "***")
	f("Authorization", "", "")
	f("Content-Type", "application/json", "application/json")
	f("Referer", "https://u:p4ss@kibana/", "https://***@kibana/")
}

func TestRedactTextAllocatesNothingWithoutAURL(t *testing.T) {
	if n := testing.AllocsPerRun(100, func() { RedactText("/%3Clogs-%7Bnow%2Fd%7D%3E/a:b%3A%2Fc") }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestRedactHeaderAllocatesNothingForWhatItLeaves(t *testing.T) {
	if n := testing.AllocsPerRun(100, func() { RedactHeader("Content-Type", "application/json") }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestRedactErrorHidesPasswords(t *testing.T) {
	f := func(raw string) {
		t.Helper()
		_, err := url.Parse(raw)
		if err == nil {
			err = &url.Error{Op: "Get", URL: raw, Err: io.ErrUnexpectedEOF}
		}
		err = RedactError(fmt.Errorf("ask node %s: %w", raw, err))
		if strings.Contains(err.Error(), "p4ss") {
			t.Errorf("password in %q", err)
		}
	}
	f("https://u:p4ss@es:9200")
	f("https://u:p4ss/x@es:9200")
	f("https://u:p4ss%zzp4ss@es:9200")
	f("https://u:p4ss\x01@es:9200")
	f("https://u:a\"p4ss@es:9200/")
	f("https://u:a p4ss@es:9200/")
}

func TestRedactErrorKeepsTheChain(t *testing.T) {
	err := RedactError(fmt.Errorf("get https://u:p4ss@es: %w", io.EOF))
	if !errors.Is(err, io.EOF) {
		t.Error("errors.Is does not find the cause")
	}
	if RedactError(io.EOF) != io.EOF || RedactError(nil) != nil {
		t.Error("an error without secrets was changed")
	}
}

func FuzzRedact(f *testing.F) {
	f.Add("get", "u", "p4ss")
	f.Add("://", "", "@/?#")
	f.Add(`"http://a:b@c`, "u@x", ":://")
	f.Add("http://[::1]:1/@", "ü", "\x00\xff\"\\")
	f.Fuzz(func(t *testing.T, before, user, password string) {
		u := url.URL{Scheme: "https", User: url.UserPassword(user, password), Host: "es:9200", Path: "/a@b"}
		const want = "https://***@es:9200/a@b"
		if got := RedactURL(u.String()); got != want {
			t.Errorf("URL %q: got %q", &u, got)
		}
		if got := RedactText(before + " " + u.String()); !strings.HasSuffix(got, " "+want) {
			t.Errorf("text with %q: got %q", &u, got)
		}
	})
}
