package conf

import "strings"

// longestSuggested keeps the quadratic distance from being worked out for text that is no misspelled name.
const longestSuggested = 64

// Nearest returns the word among the given ones that word was probably meant to be. Words that differ only in case,
// underscores and dashes are nearest of all; otherwise up to a third of the letters may be wrong, missing, too many or
// swapped with their neighbour.
func Nearest(word string, among []string) (string, bool) {
	w := []rune(bare(word))
	if len(w) == 0 || len(w) > longestSuggested {
		return "", false
	}
	best, least := "", max(1, len(w)/3)+1
	for _, candidate := range among {
		c := []rune(bare(candidate))
		if candidate == word || len(c) > longestSuggested {
			continue
		}
		d := distance(w, c)
		// A single letter is one change away from every other one, which says nothing.
		if d > 0 && d >= min(len(w), len(c)) {
			continue
		}
		if d < least || d == least && best != "" && candidate < best {
			best, least = candidate, d
		}
	}
	return best, best != ""
}

func bare(word string) string {
	return strings.ToLower(strings.NewReplacer("_", "", "-", "").Replace(word))
}

// distance is the optimal string alignment distance: the Damerau–Levenshtein distance in which no part is changed twice.
func distance(a, b []rune) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			change := 1
			if a[i-1] == b[j-1] {
				change = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
