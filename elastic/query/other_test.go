package query

import "testing"

func TestWrites(t *testing.T) {
	f := func(api, query, body string, want bool) {
		t.Helper()
		if got := Writes(api, []byte(query), []byte(body)); got != want {
			t.Errorf("%s?%s %s: writes is %v, want %v", api, query, body, got, want)
		}
	}
	f("sql.query", "", `{"query":"SELECT 1"}`, false)
	f("sql.query", "format=json", ` {"fetch_size":5,"query":"\n (select a FROM b); "} `, false)
	f("sql.query", "", `{"query":"SHOW TABLES LIKE 'a%'"}`, false)
	f("sql.query", "", `{"query":"DESCRIBE a"}`, false)
	f("sql.query", "", `{"query":"explain select 1"}`, false)
	f("sql.query", "", `{"cursor":"x"}`, false)
	f("sql.query", "", "\xa1\x65query", false)
	f("sql.query", "", `{"query":"DELETE FROM a"}`, true)
	f("sql.query", "", `{"query":" delete from a"}`, true)
	f("sql.query", "", `{"query":"/* SELECT */ DELETE FROM a"}`, true)
	f("sql.query", "", `{"query":"\u0044ELETE FROM a"}`, true)
	f("sql.query", "", `{"query":"SELECT 1; DELETE FROM a"}`, true)
	f("sql.query", "", `{"query":"SELECT 1","query":"DELETE FROM a"}`, true)
	f("sql.query", "", `{"query":"DELETE FROM a","cursor":"x"}`, true)
	f("sql.query", "", `{"qu\u0065ry":"DELETE FROM a"}`, true)
	f("sql.query", "", `{"query":"SELECT 1"}{}`, true)
	f("sql.query", "", `{'query':'DELETE FROM a'}`, true)
	f("sql.query", "", `{"query":["SELECT"]}`, true)
	f("sql.query", "", `{}`, true)
	f("sql.query", "", ``, true)
	f("sql.query", "sql=DELETE", `{"query":"SELECT 1"}`, true)
	f("sql.query", "s%71l=DELETE", `{"query":"SELECT 1"}`, true)
	f("ppl.query", "", `{"query":"source=a | where b=1 | fields mlocation"}`, false)
	f("ppl.query", "", `{"query":"source=a |\n ML action='train' algorithm='kmeans'"}`, true)
	f("ppl.query", "", `{"query":"delete a"}`, true)
	f("esql.query", "", `{"query":"FROM a"}`, false)
	f("search", "", ``, false)
}
