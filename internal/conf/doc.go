// Package conf reads Weir's configuration: YAML files with includes and variables, decoded into the typed structs of
// their owners, with every mistake reported at once, each with its file, line, column and, where there is one, a
// suggestion.
//
// A struct that is decoded is also the schema: its field tags name the fields and their limits, the values that it
// holds before decoding are the defaults, its types carry the units, and its doc comments (collected by the package
// prose) are the text of the reference pages.
//
// The package knows no section and no filter, and it does nothing but read the files that it is given: sockets,
// certificates and references between sections are the business of those who own them. It trades speed for messages:
// a tree of nodes with positions is built first and decoded by reflection after, which is right for something that
// happens at start and at reload, and wrong for anything that happens for a request.
//
// # Tags
//
// A field takes part when it has a tag conf:"name". Options follow after commas: required; alias=old_name (the old
// name is accepted with a warning; may be repeated); inline (the fields of a struct are read from the map that the
// struct stands in); unit=ms (a Duration that takes bare numbers in that unit, for fields of the classic form); hidden
// (left out of the reference pages). Further tags: enum:"a,b,c", min:"0", max:"100" (written as a user would write the
// value) and deprecated:"use x instead".
package conf
