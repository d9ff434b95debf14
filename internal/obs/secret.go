package obs

import "strings"

// A secretWord is what the name of a secret has in it, in small letters and without what stands between words.
type secretWord struct {
	text string
	at   place
}

// A place is where in a name a word tells of a secret.
type place uint8

const (
	anywhere place = iota // within other words as well
	asWord                // between others, not within one
	atEnd
	asWhole // the name has nothing else
)

// secretWords are words for credentials: of OAuth 2 (RFC 6749, RFC 6750), of sessions, of signed URLs such as X-Amz-Signature,
// of settings of Elasticsearch and of clouds. OpenSearch takes a JWT from a parameter of the operator's choice.
// docs/records.md lists them.
var secretWords = []secretWord{
	{"accesskey", anywhere},
	{"accesstoken", anywhere},
	{"accountkey", anywhere},
	{"apikey", anywhere},
	{"authtoken", anywhere},
	{"credential", anywhere},
	{"encryptionkey", anywhere},
	{"passcode", anywhere},
	{"passphrase", anywhere},
	{"passwd", anywhere},
	{"password", anywhere},
	{"privatekey", anywhere},
	{"refreshtoken", anywhere},
	{"secret", anywhere},
	{"sharedkey", anywhere},
	{"signingkey", anywhere},
	{"jwt", asWord},
	{"otp", asWord},
	{"pwd", asWord},
	{"token", asWord},
	{"totp", asWord},
	{"auth", atEnd},
	{"authorization", atEnd},
	{"jwt", atEnd},
	{"session", atEnd},
	{"signature", atEnd},
	{"token", atEnd},
	{"assertion", asWhole},
	{"authentication", asWhole},
	{"bearer", asWhole},
	{"clientassertion", asWhole},
	{"code", asWhole},
	{"cookie", asWhole},
	{"key", asWhole},
	{"pass", asWhole},
	{"samlresponse", asWhole},
	{"sessionid", asWhole},
	{"sid", asWhole},
	{"sig", asWhole},
	{"ticket", asWhole},
}

// harmless are beginnings of names, or of what follows in them, that have such a word for something else: of analyzers, mappings
// and counts, and a word of the language. (A tokenizer and max_tokens have none.)
var harmless = []string{
	"fillertoken", "secretar", "tokenchars", "tokencount", "tokenfilter", "tokengraph", "tokenlength", "tokenlimit", "tokenpruning",
	"tokenseparator", "tokentype",
}

// secretsByLetter are secretWords by their first letter, so that most letters of a name are compared with none.
var secretsByLetter = func() (by ['z' + 1][]secretWord) {
	for _, w := range secretWords {
		by[w.text[0]] = append(by[w.text[0]], w)
	}
	return by
}()

// longestName is how much of a name, in bytes, is looked at at a time.
const longestName = 64

// SecretName tells whether a header field, a parameter, a cookie or a member of a body may be a secret by its name: whether
// a word for one is in it, as in db_password, clientSecret and X-Auth-Token. Capitals, and what stands between words, make no
// difference otherwise. It allocates nothing.
func SecretName[T []byte | string](name T) bool {
	for len(name) > longestName {
		if hasSecret(name[:longestName]) {
			return true
		}
		name = name[longestName/2:] // no word is longer than what is looked at twice
	}
	return hasSecret(name)
}

// hasSecret is SecretName for at most longestName bytes.
func hasSecret[T []byte | string](name T) bool {
	var room [longestName]byte
	n := 0
	starts := uint64(0) // bit i: a word starts at room[i]
	before := byte(0)
	for i := range len(name) {
		c := name[i]
		small := c | 0x20
		letter := 'a' <= small && small <= 'z'
		if !letter && (c < '0' || c > '9') && c < 0x80 {
			before = 0
			continue
		}
		upper := letter && c != small
		follows := upper && i+1 < len(name) && 'a' <= name[i+1] && name[i+1] <= 'z' // as K does in APIKey
		if kind := kindOf(c); kind != before && (before != upperCase || kind != lowerCase) || follows {
			starts |= 1 << n
		}
		before = kindOf(c)
		if upper {
			c = small
		}
		room[n] = c
		n++
	}
	folded := room[:n]
	for i, c := range folded {
		if c > 'z' {
			continue
		}
		for _, w := range secretsByLetter[c] {
			end := i + len(w.text)
			if end > n || string(folded[i:end]) != w.text || isHarmless(folded, w.text, i) {
				continue
			}
			ends := end == n
			switch {
			case w.at == anywhere,
				w.at == atEnd && ends,
				w.at == asWhole && ends && i == 0,
				w.at == asWord && starts>>i&1 == 1 && (ends || starts>>end&1 == 1):
				return true
			}
		}
	}
	return false
}

// What neighbours in a word have in common.
const (
	lowerCase = 'a'
	upperCase = 'A'
	otherKind = '0' // digits, and what is not ASCII
)

func kindOf(c byte) byte {
	switch {
	case 'a' <= c && c <= 'z':
		return lowerCase
	case 'A' <= c && c <= 'Z':
		return upperCase
	}
	return otherKind
}

// isHarmless tells whether the word at i is part of one that is harmless.
func isHarmless(name []byte, word string, i int) bool {
	for _, h := range harmless {
		at := strings.Index(h, word)
		if at < 0 || at > i {
			continue
		}
		if rest := name[i-at:]; len(rest) >= len(h) && string(rest[:len(h)]) == h {
			return true
		}
	}
	return false
}
