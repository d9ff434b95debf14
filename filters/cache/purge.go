package cache

import (
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"weir/elastic/query"
)

// A Selection says which answers a purge removes. One of its fields is set.
type Selection struct {
	// Everything.
	All bool `json:"all,omitempty"`
	// Answers in which documents of this index, or of one that this pattern matches, may have a part. Several are separated by
	// commas.
	Index string `json:"index,omitempty"`
	// The answer under this key, as an explanation or the list of the cache's top keys says it.
	Key string `json:"key,omitempty"`
	// Answers stored by filters with this tag.
	Tag string `json:"tag,omitempty"`
}

// matcher returns a function that tells whether an entry is selected.
func (s *Selection) matcher() (func(query.Key, *Entry) bool, error) {
	given := 0
	for _, set := range []bool{s.All, s.Index != "", s.Key != "", s.Tag != ""} {
		if set {
			given++
		}
	}
	if given != 1 {
		return nil, errors.New("purge takes one of all, index, key and tag")
	}
	switch {
	case s.Index != "":
		list := strings.Split(s.Index, ",")
		for _, name := range list {
			if name == "" || name[0] == '-' {
				return nil, fmt.Errorf("index %q is no list of names and patterns: %q is neither", s.Index, name)
			}
		}
		return func(_ query.Key, e *Entry) bool {
			return e.source == nil || slices.ContainsFunc(list, e.source.touches)
		}, nil
	case s.Key != "":
		raw, err := hex.DecodeString(s.Key)
		if err != nil || len(raw) != len(query.Key{}) {
			return nil, fmt.Errorf("key %q is not one of %d hexadecimal digits", s.Key, 2*len(query.Key{}))
		}
		return func(key query.Key, _ *Entry) bool { return key == query.Key(raw) }, nil
	case s.Tag != "":
		return func(_ query.Key, e *Entry) bool { return e.source != nil && slices.Contains(e.source.tags, s.Tag) }, nil
	}
	return func(query.Key, *Entry) bool { return true }, nil
}

// purge removes the entries that match, and returns how many there were. An answer that was asked for before is not
// stored any more, and nobody who comes from now on waits for it.
func (s *shared) purge(match func(query.Key, *Entry) bool) int {
	s.epoch.Add(1)
	s.flights.disperse()
	n := 0
	for _, st := range *s.stores.Load() {
		n += st.purge(match)
	}
	s.metrics.purged.Add(float64(n))
	return n
}

func (s *store) purge(match func(query.Key, *Entry) bool) int {
	s.mu.Lock() // a store that saw the epoch before is done, and the next one sees the new one
	defer s.mu.Unlock()
	n := 0
	s.Range(func(key query.Key, e *Entry) bool {
		if match(key, e) {
			s.Delete(key)
			n++
		}
		return true
	})
	return n
}
