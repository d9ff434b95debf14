package obs

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestSecretName(t *testing.T) {
	f := func(want bool, names ...string) {
		t.Helper()
		for _, name := range names {
			if SecretName(name) != want || SecretName([]byte(name)) != want {
				t.Errorf("%q: %v, want %v", name, !want, want)
			}
		}
	}
	f(true, "aws_secret_access_key", "access_key", "passcode", "otp", "secret_key", "ssl.key_passphrase", "passwordHash",
		"password_confirmation", "AccessKeyId", "APIKey", "x-api-key", "api_keys", "api.key", "clientSecret", "clientsecret", "dbPasswd",
		"credentials", "credentialsFile", "token", "id-token", "idtoken", "tokenValue", "MyTOKEN", "token2", "refresh_tokens", "user_otp",
		"totpCode", "userPwd", "my_jwt", "jwt_claims", "oauth", "key", "X-Amz-Signature", "password.keyword", "password_tokenizer",
		"secretary_password", "proxy-authorization", strings.Repeat("x", 200)+".password."+strings.Repeat("y", 200))
	f(false, "", "tokenizer", "token_filter", "token_chars", "token_count", "tokenCount", "max_token_length", "tokens", "max_tokens",
		"filler_token", "tokens_weight_threshold", "key_as_string", "keyed", "keyword", "key1", "author", "footprint", "bypass", "passage",
		"secretary", "session_count", "status_code", "sort", "\xff\xfe", strings.Repeat("x_", 200))
}

func TestSecretNameAllocatesNothing(t *testing.T) {
	name := []byte("query.match.customer_full_name.keyword")
	if n := testing.AllocsPerRun(100, func() { SecretName(name) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestThePageHasTheWords holds that docs/records.md lists what hides a value.
func TestThePageHasTheWords(t *testing.T) {
	page, err := os.ReadFile("../../docs/records.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```\n(.*?)```").FindAllSubmatch(page, -1)
	if len(blocks) != int(asWhole)+1 {
		t.Fatalf("%d lists of words, want one for each place", len(blocks))
	}
	for at := range blocks {
		var want []string
		for _, w := range secretWords {
			if int(w.at) == at {
				want = append(want, w.text)
			}
		}
		if got := strings.Fields(string(blocks[at][1])); !slices.Equal(got, want) {
			t.Errorf("list %d: %v, want %v", at, got, want)
		}
	}
}
