// Package limit holds the filters that refuse exchanges, or let them wait, so that one caller's loop or one index's load does
// not become everybody's outage: limits of rate, decided with GCRA over a bounded table of keys, and limits of how many are
// at work at once, with a line in front in which callers take turns.
//
// It is not for protecting against floods of connections, which the entry bounds, and not for limits shared by several
// gateways: each process decides by itself. It does not know who a caller is beyond what the request says; a user name that
// nothing has checked is one that anybody can make up.
//
// It trades a little strictness for bounded memory. A table holds a fixed number of keys. One that is rested (its whole burst
// is there again) is forgotten without any effect; only if none is rested, the key nearest to rest is forgotten, which gives
// its caller at most one burst early, and is counted.
package limit
