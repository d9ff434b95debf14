package upstream

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"slices"

	"weir/elastic"
	"weir/elastic/api"
	"weir/elastic/bulk"
	"weir/elastic/query"
	"weir/flows"
	"weir/internal/wire"
)

// maxNamed is the length up to which bodies are read for the indices that they name: what nodes take
// (http.max_content_length).
const maxNamed = 100 << 20

// indexMembers are the members of a body whose values are index expressions, by API. Bodies of lines and of documents are read
// apart.
var indexMembers = map[string][]string{
	"reindex":                {"index"},
	"indices.update_aliases": {"index", "indices"},
}

// eachIndex calls f with the index expressions that a request names, decoded: those of its path and its query, and of its body
// where the API has them there.
func eachIndex(x *flows.Exchange, f func(expr string) error) error {
	var buf [4]string
	names, err := x.Indices(buf[:0])
	if err != nil {
		return elastic.Errorf(400, "illegal_argument_exception", "the index in the path cannot be read").Because(err)
	}
	for _, name := range names {
		if err := f(name); err != nil {
			return err
		}
	}
	from := query.SourceOf(x.Call())
	members := indexMembers[x.Call().Name]
	if (from == query.InPath || from == query.InTime) && members == nil {
		return nil
	}
	if coded(&x.Request) {
		return errCoded
	}
	if wire.BinaryMedia(x.Request.Header.Get("content-type")) {
		return elastic.Errorf(415, "illegal_argument_exception", "the body is not read for the indices of several clusters that it may name: send it as JSON")
	}
	body, err := x.Request.Body.Bytes(maxNamed)
	if err != nil {
		return err
	}
	if source, ok := api.QueryValue(x.Request.Query, "source"); ok && len(body) == 0 {
		body = api.DecodeQuery(nil, source)
	}
	if len(bytes.TrimSpace(body)) == 0 {
		return nil
	}
	var refusal error
	see := func(expr []byte) {
		if expr != nil && refusal == nil {
			refusal = f(string(expr))
		}
	}
	readable := true
	switch from {
	case query.InActions:
		readable = eachBulkIndex(body, see)
	case query.InSearches:
		readable = query.SearchIndices(body, see)
	case query.InDocs:
		readable = query.DocIndices(body, see)
	default:
		return eachMemberIndex(body, members, f)
	}
	if refusal == nil && !readable {
		return elastic.Errorf(400, "illegal_argument_exception", "the body cannot be read for the indices of several clusters that it may name: write their members as they are, without escapes")
	}
	return refusal
}

// eachMemberIndex calls f with the index expressions in members of a body. Those that are spelled with escapes are an error.
func eachMemberIndex(body []byte, members []string, f func(expr string) error) error {
	return eachString(body, func(member, value []byte) error {
		name := member
		if bytes.IndexByte(member, '\\') >= 0 {
			name = unescaped(member)
		}
		switch {
		case !slices.Contains(members, string(name)):
			return nil
		case len(name) < len(member), bytes.IndexByte(value, '\\') >= 0:
			return elastic.Errorf(400, "illegal_argument_exception", "the index [%s] is written with escapes: write it as it is", value)
		}
		for part := range bytes.SplitSeq(value, []byte{','}) {
			if err := f(string(part)); err != nil {
				return err
			}
		}
		return nil
	})
}

// errCoded refuses a body of which nobody knows whose it is.
var errCoded = &elastic.Error{
	Status: 415, Type: "illegal_argument_exception",
	Reason: "the body is compressed and is not read for the indices of several clusters that it may name: send it plain",
}

// coded tells whether a body is compressed.
func coded(r *flows.Request) bool {
	coding := r.Header.Get("content-encoding")
	return len(coding) > 0 && !wire.EqualFold(coding, "identity")
}

// unescaped returns what a string of JSON says that is written so between its quotes, nil if it is none.
func unescaped(text []byte) []byte {
	var s string
	if json.Unmarshal(slices.Concat([]byte{'"'}, text, []byte{'"'}), &s) != nil {
		return nil
	}
	return []byte(s)
}

// eachBulkIndex calls f with the indices that the lines of a bulk name. It returns false if one cannot be read.
func eachBulkIndex(body []byte, f func(expr []byte)) bool {
	var s bulk.Scanner
	var last []byte
	for s.Reset(body); s.Next(); {
		if index := s.Action().Index; index != nil && !bytes.Equal(index, last) {
			last = append(last[:0], index...)
			f(index)
		}
	}
	return s.Err() == nil || s.Err() == bulk.ErrNoNewline
}

// eachString calls f with every string in JSON, or lines of JSON, that is a value, as it is written between its quotes, and with
// the name of the member that it or the list around it belongs to.
func eachString(text []byte, f func(member, value []byte) error) error {
	var member []byte
	for {
		at := bytes.IndexAny(text, `"{}`)
		if at < 0 {
			return nil
		}
		if text[at] != '"' {
			member, text = nil, text[at+1:]
			continue
		}
		text = text[at+1:]
		end := 0
		for end < len(text) && text[end] != '"' {
			if text[end] == '\\' {
				end++
			}
			end++
		}
		if end >= len(text) {
			return nil
		}
		value := text[:end]
		text = bytes.TrimLeft(text[end+1:], " \t\r\n")
		if len(text) > 0 && text[0] == ':' {
			member = value
			continue
		}
		if err := f(member, value); err != nil {
			return err
		}
	}
}

// An idPlace says where a request has the id of something that one cluster keeps.
type idPlace uint8

const (
	inRequest idPlace = iota + 1 // in its path, its query or its body
	inPIT                        // in its body, if that has a member pit
	inCursor                     // in its body, if that has a member cursor
)

// idPlaces are the APIs that work with such an id.
var idPlaces = map[string]idPlace{
	"scroll": inRequest, "clear_scroll": inRequest, "close_point_in_time": inRequest, "delete_pit": inRequest, "cat.pit_segments": inRequest,
	"async_search.get": inRequest, "async_search.status": inRequest, "async_search.delete": inRequest,
	"asynchronous_search.get": inRequest, "asynchronous_search.delete": inRequest,
	"eql.get": inRequest, "eql.get_status": inRequest, "eql.delete": inRequest,
	"esql.async_query_get": inRequest, "esql.async_query_stop": inRequest, "esql.async_query_delete": inRequest,
	"sql.get_async": inRequest, "sql.get_async_status": inRequest, "sql.delete_async": inRequest,
	"sql.clear_cursor": inRequest, "sql.close": inRequest, "sql.query": inCursor,
	"tasks.get": inRequest, "tasks.cancel": inRequest, "get_reindex": inRequest, "cancel_reindex": inRequest,
	"reindex_rethrottle": inRequest, "update_by_query_rethrottle": inRequest, "delete_by_query_rethrottle": inRequest,
	"search": inPIT, "msearch": inPIT, "async_search.submit": inPIT,
}

// idParams are the names under which paths and queries have ids.
var idParams = [...]string{"scroll_id", "id", "task_id"}

// owner tells whether x is about something that one cluster keeps, and which target that is: the one of whose nodes the id
// tells (see elastic.Cluster.NamesNode), or -1 if it tells of none. Ids of several clusters in one request are an error.
func (f *elasticsearch) owner(x *flows.Exchange) (bound bool, owner int, err error) {
	call := x.Call()
	place := idPlaces[call.Name]
	owner = -1
	if place == 0 {
		return false, -1, nil
	}
	see := func(id []byte) error {
		if string(id) == "_all" {
			return nil
		}
		bound = true
		i := f.ofID(id)
		if i >= 0 && owner >= 0 && i != owner {
			return elastic.Errorf(400, "illegal_argument_exception",
				"the request has ids of the clusters [%s] and [%s]: send them one by one", f.several.names[owner], f.several.names[i])
		}
		if i >= 0 {
			owner = i
		}
		return nil
	}
	if place == inRequest {
		for _, name := range idParams {
			value := api.DecodeSegment(nil, call.Param(name))
			if q, ok := api.QueryValue(x.Request.Query, name); ok && len(value) == 0 {
				value = api.DecodeQuery(nil, q)
			}
			for id := range bytes.SplitSeq(value, []byte{','}) {
				if len(id) == 0 {
					continue
				}
				if err := see(id); err != nil {
					return bound, owner, err
				}
			}
		}
	}
	body, whole, err := f.body(&x.Request)
	switch {
	case err != nil:
		return bound, owner, err
	case !whole && place == inRequest:
		return bound, owner, elastic.Errorf(413, "content_too_long_exception",
			"a body of over %d bytes is not read for the ids in it, which tell the cluster", replayLimit)
	case !whole:
		return false, -1, nil
	}
	if coded(&x.Request) {
		// It may hold an id, unless it is a search in indices: with a point in time there are none in the path.
		may := len(body) > 0 && (place != inPIT || call.Index == nil)
		if may && place != inRequest && f.several.patterns != nil {
			return bound, owner, errCoded // or names of indices
		}
		return bound || may, owner, nil
	}
	if place == inPIT && !bytes.Contains(body, []byte(`"pit"`)) || place == inCursor && !bytes.Contains(body, []byte(`"cursor"`)) {
		return bound, owner, nil
	}
	err = eachString(body, func(member, value []byte) error {
		switch string(member) {
		case "id", "pit_id", "scroll_id", "cursor":
			return see(value)
		}
		return nil
	})
	return bound, owner, err
}

// ofID returns the target of which a node is named in an id, or -1.
func (f *elasticsearch) ofID(id []byte) int {
	decoded := decodeID(id)
	for i, t := range f.targets {
		if t.live != nil && (t.live.NamesNode(id) || t.live.NamesNode(decoded)) {
			return i
		}
	}
	return -1
}

// decodeID returns what an id says in base64, in either alphabet and with or without padding, as far as it is that.
func decodeID(id []byte) []byte {
	text := bytes.TrimRight(id, "=")
	plain := make([]byte, len(text))
	for i, c := range text {
		switch c {
		case '-':
			c = '+'
		case '_':
			c = '/'
		}
		plain[i] = c
	}
	out := make([]byte, base64.RawStdEncoding.DecodedLen(len(plain)))
	n, _ := base64.RawStdEncoding.Decode(out, plain) // what was decoded before the first mistake counts
	return out[:n]
}
