package query

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"

	"weir/internal/wire"
)

// PrincipalAPIs are the paths at which clusters say as whom they know a caller: Elasticsearch's, and that of OpenSearch's security
// plug-in.
var PrincipalAPIs = [...]string{"/_security/_authenticate", "/_plugins/_security/authinfo"}

// A Principal is as whom a cluster knows a caller. Two callers may have the same Text only if whatever changes the rights of one
// changes those of the other alike, now and later.
type Principal struct {
	Name string // for people
	Text []byte // all that tells it from others
}

// isNameable tells whether a cluster can be asked for whom the Authorization of a request stands, without harm to it. Others are
// signatures over the path, or good for one request (Negotiate, Digest), or stand for themselves only (ApiKey).
func isNameable(h *wire.Header) bool {
	value := h.Get("authorization")
	return h.Count("authorization") == 1 && (isBasic(value) || isBearer(value))
}

func isBasic(authorization []byte) bool  { return hasScheme(authorization, "basic ") }
func isBearer(authorization []byte) bool { return hasScheme(authorization, "bearer ") }

func hasScheme(authorization []byte, scheme string) bool {
	return len(authorization) > len(scheme) && wire.EqualFold(authorization[:len(scheme)], scheme)
}

// ReadPrincipal reads what one of PrincipalAPIs has answered to a caller with that Authorization. It returns false where the answer
// leaves open what rights the caller has, or will have when they change.
func ReadPrincipal(answer, authorization []byte) (Principal, bool) {
	m := readObject(answer)
	claims, hasClaims := tokenClaims(authorization)
	var name string
	var ok bool
	if m["user_name"] != nil {
		name, ok = readAuthinfo(m, isBearer(authorization), hasClaims)
	} else {
		name, ok = readAuthenticate(m, isBearer(authorization), hasClaims)
	}
	if !ok || name == "" {
		return Principal{}, false
	}
	sortNames(m["roles"])
	sortNames(m["backend_roles"])
	text, err := json.Marshal([]any{isBearer(authorization), m, claims})
	return Principal{Name: name, Text: text}, err == nil
}

// readAuthenticate judges an answer of Elasticsearch. All of it belongs to the principal: templates of document level security
// may use each part. The rights of a token that Elasticsearch gave out are those of when it did so; "authentication_type" keeps
// them apart from rights that change. What a JWT says counts because roles may be mapped from it. API keys and service accounts,
// whose realms begin with "_", have rights of their own that the answer does not show.
func readAuthenticate(m map[string]any, bearer, claims bool) (string, bool) {
	switch m["authentication_type"] {
	case "realm":
		if bearer && !claims {
			return "", false
		}
	case "token":
		if !bearer {
			return "", false
		}
	default:
		return "", false
	}
	for _, which := range []string{"authentication_realm", "lookup_realm"} {
		realm, _ := m[which].(map[string]any)
		if kind, _ := realm["type"].(string); kind == "" || kind[0] == '_' {
			return "", false
		}
	}
	if m["enabled"] != true || m["api_key"] != nil {
		return "", false
	}
	if metadata, ok := m["metadata"].(map[string]any); ok {
		for _, claim := range passingClaims {
			delete(metadata, "jwt_claim_"+claim)
			delete(metadata, "oidc("+claim+")")
		}
	}
	name, _ := m["username"].(string)
	return name, true
}

// readAuthinfo judges an answer of OpenSearch. It names attributes of the user, which document level security may use, but not their
// values: only those are known that are claims of the token.
func readAuthinfo(m map[string]any, bearer, claims bool) (string, bool) {
	attributes, ok := m["custom_attribute_names"].([]any)
	if !ok || bearer && !claims {
		return "", false
	}
	for _, a := range attributes {
		if text, _ := a.(string); !bearer || !strings.HasPrefix(text, "attr.jwt.") {
			return "", false
		}
	}
	delete(m, "remote_address") // of the gateway's connection
	name, _ := m["user_name"].(string)
	return name, true
}

// passingClaims are those of RFC 7519 section 4.1 by which one token of a caller differs from the next.
var passingClaims = [...]string{"exp", "nbf", "iat", "jti"}

// tokenClaims returns what a JWT (RFC 7519) says, but for passingClaims. Its signature is the node's business.
func tokenClaims(authorization []byte) (map[string]any, bool) {
	if !isBearer(authorization) {
		return nil, false
	}
	parts := bytes.Split(bytes.TrimSpace(authorization[len("bearer "):]), []byte{'.'})
	if len(parts) != 3 {
		return nil, false
	}
	text, err := base64.RawURLEncoding.AppendDecode(nil, bytes.TrimRight(parts[1], "="))
	if err != nil {
		return nil, false
	}
	claims := readObject(text)
	if len(claims) == 0 {
		return nil, false
	}
	for _, claim := range passingClaims {
		delete(claims, claim)
	}
	return claims, true
}

// readObject returns the members of a JSON object, numbers as they are written, or nil if text is none.
func readObject(text []byte) (m map[string]any) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if d.Decode(&m) != nil || d.More() {
		return nil
	}
	return m
}

// sortNames sorts a list of names that nodes write in no order.
func sortNames(list any) {
	names, _ := list.([]any)
	slices.SortFunc(names, func(a, b any) int {
		x, _ := a.(string)
		y, _ := b.(string)
		return strings.Compare(x, y)
	})
}
