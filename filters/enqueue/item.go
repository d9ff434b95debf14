package enqueue

import (
	"net/http"
	"strconv"

	"weir/elastic"
	"weir/elastic/bulk"
)

// An item is what a client is told of one write. It has no sequence number and no count of shards, which nobody knows yet; the
// version is that of a new document, because the Java client of version 7 cannot read an answer without one.
type item struct {
	verb  bulk.Verb
	index string
	id    string
}

// answers to clients, as QueueConfig.Answer has them.
const answerAccepted = "accepted"

// status returns the status of the write.
func (i *item) status(answer string) int {
	switch {
	case answer == answerAccepted:
		return http.StatusAccepted
	case i.verb == bulk.Index || i.verb == bulk.Create:
		return http.StatusCreated
	}
	return http.StatusOK
}

// result returns what became of the write, as nodes call it.
func (i *item) result(answer string) string {
	switch {
	case answer == answerAccepted:
		return "accepted"
	case i.verb == bulk.Update:
		return "updated"
	case i.verb == bulk.Delete:
		return "deleted"
	}
	return "created"
}

// appendDocument appends the answer to the write of one document.
func (i *item) appendDocument(dst []byte, answer string) []byte {
	return append(i.appendHead(append(dst, '{'), answer), '}')
}

// appendBulk appends the item of a bulk's answer.
func (i *item) appendBulk(dst []byte, answer string) []byte {
	dst = append(append(append(dst, `{"`...), i.verb.String()...), `":{`...)
	dst = append(i.appendHead(dst, answer), `,"status":`...)
	return append(strconv.AppendInt(dst, int64(i.status(answer)), 10), "}}"...)
}

func (i *item) appendHead(dst []byte, answer string) []byte {
	dst = i.appendName(dst)
	dst = append(append(append(dst, `,"_version":1,"result":"`...), i.result(answer)...), '"')
	return dst
}

func (i *item) appendName(dst []byte) []byte {
	dst = elastic.AppendString(append(dst, `"_index":`...), i.index)
	return elastic.AppendString(append(dst, `,"_id":`...), i.id)
}

// appendRefused appends the item of an action that did not get into the queue.
func (i *item) appendRefused(dst []byte, e *elastic.Error) []byte {
	dst = append(append(append(dst, `{"`...), i.verb.String()...), `":{`...)
	dst = append(i.appendName(dst), `,"status":`...)
	dst = strconv.AppendInt(dst, int64(e.Status), 10)
	dst = elastic.AppendString(append(dst, `,"error":{"type":`...), e.Type)
	return append(elastic.AppendString(append(dst, `,"reason":`...), e.Reason), "}}}"...)
}
