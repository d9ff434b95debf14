package dashboards

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestInstall(t *testing.T) {
	for _, program := range Programs {
		var got []byte
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			user, password, _ := r.BasicAuth()
			if r.Method != "POST" || r.URL.String() != "/base/api/saved_objects/_import?overwrite=true" || r.Header.Get(program.guard()) == "" ||
				user != "ann" || password != "s3cret" {
				t.Errorf("%s %s by %s:%s with %v", r.Method, r.URL, user, password, r.Header)
			}
			file, head, err := r.FormFile("file")
			if err != nil || !strings.HasSuffix(head.Filename, ".ndjson") { // both go by the ending
				t.Errorf("file %v, %v", head, err)
				return
			}
			got, _ = io.ReadAll(file)
			_, _ = io.WriteString(w, `{"success":true,"successCount":37}`)
		}))
		address := strings.Replace(server.URL, "http://", "http://ann:s3cret@", 1) + "/base/"
		n, err := Install(t.Context(), server.Client(), program, address, "x*")
		server.Close()
		if err != nil || n != 37 || string(got) != string(SavedObjects(program, "x*")) {
			t.Errorf("%s: %d objects, %v, %d bytes", program, n, err, len(got))
		}
		if _, err := Install(t.Context(), server.Client(), program, address, "x*"); err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("nobody is there: %v", err)
		}
	}
	if _, err := Install(t.Context(), http.DefaultClient, Kibana, "u:s3cret@kibana", "x"); err == nil || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("a bad address: %v", err)
	}
}

func TestImported(t *testing.T) {
	f := func(status int, text, want string) {
		t.Helper()
		if _, err := imported(status, []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	f(401, `{"message":"who are you"}`, "status 401: ")
	f(200, `<html>`, "read the answer")
	f(200, `{"success":false,"successCount":1,"errors":[{"id":"weir-cache","error":{"type":"conflict"}}]}`, "1 objects were refused: weir-cache conflict")
}
