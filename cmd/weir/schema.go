package main

import (
	"encoding/json"

	"weir/filters"
	"weir/internal/docs"
)

type schemaCmd struct{}

// Run prints the JSON Schema of the configuration.
func (schemaCmd) Run(e env) error {
	enc := json.NewEncoder(e.stdout)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(docs.New(filters.Registry()).Schema())
}
