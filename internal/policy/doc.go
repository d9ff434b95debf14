// Package policy holds the rules of the project as tests, so that no reviewer has to: where packages stand, what they may
// import, what code may not do, and which licences come in.
//
// It has no code that runs in Weir, and it does not judge style: linters do that. It trades precision for plainness: the
// rules look at syntax, one file at a time, and know no types.
package policy
