package pipeline

// member returns the value of the first member of that name of the JSON object that b is, as it is written, or nil. It does
// not judge what it skips: the cluster does.
func member(b []byte, name string) []byte {
	i := skipSpace(b, 0)
	if i == len(b) || b[i] != '{' {
		return nil
	}
	for {
		i = skipSpace(b, i+1) // behind the brace or a comma
		end := stringEnd(b, i)
		if end < 0 {
			return nil
		}
		found := string(b[i+1:end-1]) == name
		i = skipSpace(b, end)
		if i == len(b) || b[i] != ':' {
			return nil
		}
		i = skipSpace(b, i+1)
		if end = valueEnd(b, i); end < 0 {
			return nil
		}
		if found {
			return b[i:end]
		}
		i = skipSpace(b, end)
		if i == len(b) || b[i] != ',' {
			return nil
		}
	}
}

// idOf returns the id that a record brings, event.id of the Elastic Common Schema, as the JSON string that it is. It is nil
// if there is none that could be the id of a document.
func idOf(record []byte) []byte {
	id := member(member(record, "event"), "id")
	if id == nil {
		id = member(record, "event.id")
	}
	if len(id) <= len(`""`) || id[0] != '"' || len(id) > maxID {
		return nil
	}
	return id
}

// maxID is the longest id that clusters take, with its quotes.
const maxID = 512 + len(`""`)

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\t' || b[i] == '\r' || b[i] == '\n') {
		i++
	}
	return i
}

// stringEnd returns where the string that begins at i ends, behind its quote, or -1.
func stringEnd(b []byte, i int) int {
	if i >= len(b) || b[i] != '"' {
		return -1
	}
	for i++; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return -1
}

// valueEnd returns where the value that begins at i ends, or -1.
func valueEnd(b []byte, i int) int {
	depth := 0
	for i < len(b) {
		switch b[i] {
		case '"':
			if i = stringEnd(b, i); i < 0 {
				return -1
			}
			if depth == 0 {
				return i
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 {
				return i // of a number or a word
			}
			if depth--; depth == 0 {
				return i + 1
			}
		case ',':
			if depth == 0 {
				return i
			}
		}
		i++
	}
	return -1
}
