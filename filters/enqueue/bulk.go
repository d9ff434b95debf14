package enqueue

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"slices"
	"strconv"

	"weir/elastic"
	"weir/elastic/api"
	"weir/elastic/bulk"
	"weir/flows"
	"weir/internal/wire"
	"weir/queue"
	"weir/queue/message"
)

// mostInflated bounds what a compressed bulk may become. Nodes take none of more than 100 MB by default.
const mostInflated = 256 << 20

// bulk puts the actions of a bulk, whose body is text, into the queue, in as many messages as it takes, and answers for each action.
// index is that of lines which name none.
func (f *enqueuer) bulk(ctx context.Context, x *flows.Exchange, m message.Message, index, body []byte) error {
	if pipeline, ok := api.QueryValue(x.Request.Query, "pipeline"); ok && len(pipeline) == 0 {
		return invalid("pipeline cannot be an empty string")
	}
	if err := checkBulk(body, index); err != nil {
		return err
	}
	m.Fields = slices.DeleteFunc(m.Fields, func(field message.Field) bool {
		return wire.EqualFold([]byte(field.Name), "content-encoding")
	})
	p := pieces{enqueuer: f, message: m}
	var s bulk.Scanner
	var record []byte
	for s.Reset(body); s.Next(); {
		a := s.Action()
		done := item{verb: a.Verb, index: string(index), id: string(a.ID)}
		if a.Index != nil {
			done.index = string(a.Index)
		}
		if a.ID == nil {
			done.id = rand.Text() // the node would make one, and another one if the request is made again
		}
		record = bulk.AppendRecord(record[:0], body, a, nil, []byte(done.id))
		p.add(record, done)
	}
	p.put()
	if !p.taken {
		return refusal(p.refused)
	}
	if err := f.flush(ctx); err != nil {
		return refusal(err)
	}
	f.reply(x, http.StatusOK, p.answered())
	return nil
}

// plain returns a bulk's body as text. What a node may understand but the gateway does not is refused: it could not be taken
// apart.
func (f *enqueuer) plain(x *flows.Exchange, body []byte) ([]byte, error) {
	if media := mediaOf(x); wire.BinaryMedia(media) || bytes.HasSuffix(media, yamlSuffix) {
		return nil, elastic.Errorf(http.StatusNotAcceptable, "media_type_header_exception", "the gateway's queue takes bulks as JSON only")
	}
	return f.unpacked(x, body)
}

// unpacked returns a body without its coding. One that cannot be unpacked makes nodes close the connection, so it must not get
// into a queue. The memory of what is unpacked counts as that of all bodies does: a small body may be a huge one.
func (f *enqueuer) unpacked(x *flows.Exchange, body []byte) ([]byte, error) {
	coding := x.Request.Header.Get("content-encoding")
	if len(coding) == 0 || len(body) == 0 || wire.EqualFold(coding, "identity") {
		return body, nil
	}
	packed := bytes.Clone(body) // unpacking may use the memory of the body again
	var inflater wire.Inflater
	r, err := inflater.Open(coding, packed)
	if errors.Is(err, wire.ErrContentCoding) {
		return nil, elastic.Errorf(http.StatusUnsupportedMediaType, "illegal_argument_exception", "the gateway's queue takes gzip and deflate, not %q", coding)
	}
	var text []byte
	if err == nil {
		x.Request.Body.ReplaceStream(r, -1)
		text, err = x.Request.Body.Bytes(f.mostInflated)
		x.Request.Body.Replace(packed)
	}
	switch {
	case errors.Is(err, flows.ErrBudget):
		return nil, err
	case errors.Is(err, flows.ErrBodyTooLarge):
		return nil, elastic.Errorf(http.StatusRequestEntityTooLarge, "content_too_long_exception", "the request's body is over %d bytes when it is unpacked", f.mostInflated)
	case err != nil:
		return nil, elastic.Errorf(http.StatusBadRequest, "illegal_argument_exception", "the request's body is no %s", coding).Because(err)
	}
	return text, nil
}

// checkBulk refuses what nodes refuse as a whole, in their words: once a part of it is in the queue it is too late.
func checkBulk(body, index []byte) error {
	var s bulk.Scanner
	n, line, counted := 0, 1, 0
	for s.Reset(body); s.Next(); n++ {
		line += bytes.Count(body[counted:s.Action().Start], lineFeed)
		counted = s.Action().Start
		if typ, reason := s.Action().Refusal(line, n+1, index); typ != "" {
			return &elastic.Error{Status: http.StatusBadRequest, Type: typ, Reason: reason}
		}
	}
	switch err := s.Err(); {
	case errors.Is(err, bulk.ErrNoNewline):
		return elastic.Errorf(http.StatusBadRequest, "illegal_argument_exception", "The bulk request must be terminated by a newline [\\n]")
	case err != nil:
		return elastic.Errorf(http.StatusBadRequest, "illegal_argument_exception", "Malformed action/metadata line: %s", err)
	case len(body) == 0:
		return elastic.Errorf(http.StatusBadRequest, "parse_exception", "request body is required")
	case n == 0:
		return invalid("no requests added")
	}
	return nil
}

var lineFeed, yamlSuffix = []byte{'\n'}, []byte("yaml")

// pieces makes messages of the actions of a bulk and puts them into the queue.
type pieces struct {
	*enqueuer
	message message.Message
	body    []byte // of the message that grows
	items   []item // its actions
	ends    []int  // where each ends in body
	answer  []byte // items of actions that are settled
	taken   bool   // a message is in the queue
	refused error  // the first reason why one is not
	full    error  // why nothing more is put: what comes behind must not overtake
}

// add adds an action.
func (p *pieces) add(record []byte, done item) {
	if len(p.items) > 0 && len(p.body)+len(record)+1 > int(p.config.MaxBytes) {
		p.put()
	}
	p.body = bulk.AppendAction(p.body, record)
	p.items, p.ends = append(p.items, done), append(p.ends, len(p.body))
}

// put puts the message into the queue and begins another one.
func (p *pieces) put() {
	p.putPart(0, len(p.items))
	p.body, p.items, p.ends = p.body[:0], p.items[:0], p.ends[:0]
}

// putPart puts a message of the actions from first to before last into the queue, or two if the queue takes none of the size.
func (p *pieces) putPart(first, last int) {
	err := p.full
	if err == nil {
		start := 0
		if first > 0 {
			start = p.ends[first-1]
		}
		p.message.Body = p.body[start:p.ends[last-1]]
		err = p.try(&p.message)
		if errors.Is(err, queue.ErrTooLarge) && last-first > 1 {
			middle := (first + last) / 2
			p.putPart(first, middle)
			p.putPart(middle, last)
			return
		}
		p.Count(err)
	}
	p.taken = p.taken || err == nil
	if err != nil && p.refused == nil {
		p.refused = err
	}
	if err != nil && !errors.Is(err, queue.ErrTooLarge) {
		p.full = err
	}
	for _, done := range p.items[first:last] {
		if len(p.answer) > 0 {
			p.answer = append(p.answer, ',')
		}
		if err != nil {
			p.answer = done.appendRefused(p.answer, refusal(err))
		} else {
			p.answer = done.appendBulk(p.answer, p.config.Answer)
		}
	}
}

// answered returns the answer for the whole bulk.
func (p *pieces) answered() []byte {
	out := strconv.AppendBool([]byte(`{"took":0,"errors":`), p.refused != nil)
	return append(append(append(out, `,"items":[`...), p.answer...), "]}"...)
}
