package dashboards

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"strings"

	"weir/internal/obs"
)

// maxReply bounds what is read of the answer to an import, in bytes.
const maxReply = 1 << 20

// Install imports the saved objects into the program at an address such as https://user:password@kibana:5601/base, where they
// replace those of an earlier import. It returns how many there were.
func Install(ctx context.Context, client *http.Client, program Program, address, pattern string) (int, error) {
	base, err := url.Parse(address)
	if err != nil || base.Host == "" {
		return 0, fmt.Errorf("%s is not the address of %s, such as http://localhost:5601", obs.RedactURL(address), program)
	}
	user := base.User
	base.User = nil
	var form bytes.Buffer
	w := multipart.NewWriter(&form)
	file, err := w.CreateFormFile("file", "weir.ndjson")
	if err == nil {
		_, err = file.Write(SavedObjects(program, pattern))
	}
	if err := errors.Join(err, w.Close()); err != nil {
		return 0, err
	}
	target := base.JoinPath("api/saved_objects/_import")
	target.RawQuery = "overwrite=true"
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target.String(), &form)
	if err != nil {
		return 0, err
	}
	req.Header.Set("Content-Type", w.FormDataContentType())
	// Without it both refuse whatever changes something, as a guard against pages that make a browser call them.
	req.Header.Set(program.guard(), "weir")
	if user != nil {
		password, _ := user.Password()
		req.SetBasicAuth(user.Username(), password)
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxReply))
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		return 0, fmt.Errorf("read the answer of %s: %w", base, err)
	}
	return imported(resp.StatusCode, text)
}

// guard is the header field that the program asks of calls that change something.
func (p Program) guard() string {
	if p == Kibana {
		return "kbn-xsrf"
	}
	return "osd-xsrf"
}

// imported reads the answer to an import.
func imported(status int, text []byte) (int, error) {
	var reply struct {
		Success      bool
		SuccessCount int
		Errors       []struct {
			ID    string
			Error struct{ Type, Reason string }
		}
	}
	if status != http.StatusOK {
		return 0, fmt.Errorf("status %d: %s", status, text[:min(len(text), 300)])
	}
	if err := json.Unmarshal(text, &reply); err != nil {
		return 0, fmt.Errorf("read the answer to the import: %w", err)
	}
	if reply.Success {
		return reply.SuccessCount, nil
	}
	var reasons []string
	for _, e := range reply.Errors {
		reasons = append(reasons, strings.TrimSpace(e.ID+" "+e.Error.Type+" "+e.Error.Reason))
	}
	return reply.SuccessCount, fmt.Errorf("%d objects were refused: %s", len(reply.Errors), strings.Join(reasons, "; "))
}
