package docs

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"weir/flows"
	"weir/internal/conf"
)

// generated begins every page.
const generated = "<!-- Written by `make docs` out of the program; do not edit. -->\n\n"

// A row is one field in a table, with the way to it from the top of the table.
type row struct {
	path string
	conf.Schema
}

// rows lists fields and the fields within them. Hidden ones are left out.
func rows(prefix string, fields []conf.Schema) []row {
	var out []row
	for _, f := range fields {
		if f.Hidden {
			continue
		}
		path := prefix + f.Name
		out = append(out, row{path, f})
		out = append(out, rows(path+".", f.Fields)...)
		if f.Elem != nil {
			step := "[]."
			if strings.HasPrefix(f.Type, "map ") {
				step = ".NAME."
			}
			out = append(out, rows(path+step, f.Elem.Fields)...)
		}
	}
	return out
}

// remarks are what is to be said about a field besides its prose.
func (r row) remarks() []string {
	var out []string
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	enum := r.Enum
	if enum == nil && r.Elem != nil {
		enum = r.Elem.Enum
	}
	if enum != nil {
		add("One of `%s`.", strings.Join(enum, "`, `"))
	}
	if r.Min != "" {
		add("At least %s.", r.Min)
	}
	if r.Max != "" {
		add("At most %s.", r.Max)
	}
	if len(r.Aliases) > 0 {
		add("Old name: `%s`.", strings.Join(r.Aliases, "`, `"))
	}
	if r.Deprecated != "" {
		add("Deprecated: %s.", r.Deprecated)
	}
	return out
}

// standard returns the default as a table shows it.
func (r row) standard() string {
	switch {
	case r.Required:
		return "required"
	case r.Default == "" || r.Fields != nil:
		return ""
	}
	return "`" + r.Default + "`"
}

// table writes a table of fields.
func table(b *strings.Builder, fields []conf.Schema) {
	all := rows("", fields)
	if len(all) == 0 {
		b.WriteString("There are no parameters.\n")
		return
	}
	b.WriteString("| Name | Type | Default | Meaning |\n| --- | --- | --- | --- |\n")
	for _, r := range all {
		meaning := strings.Join(append([]string{r.Doc}, r.remarks()...), " ")
		fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", r.path, r.Type, cell(r.standard()), cell(meaning))
	}
}

// cell returns text in a form that a table takes.
func cell(text string) string {
	return strings.TrimSpace(strings.NewReplacer("\n\n", "<br>", "\n", " ", "|", `\|`).Replace(text))
}

// example writes an example.
func example(b *strings.Builder, title, yaml string) {
	fmt.Fprintf(b, "\nExample: %s\n\n```yaml\n%s\n```\n", title, strings.TrimSpace(yaml))
}

// FilterPage returns the reference page of a filter.
func (r *Reference) FilterPage(k *flows.Kind) string {
	var b strings.Builder
	b.WriteString(generated)
	fmt.Fprintf(&b, "# %s\n\n%s\n\nFamily: %s.\n", k.Name, k.Summary, k.Family)
	for _, e := range k.Examples {
		example(&b, e.Title, e.YAML)
	}
	b.WriteString("\n## Parameters\n\n")
	table(&b, r.Filter(k).Fields)
	b.WriteString("\n`name`, `when` and `enabled` may stand in every filter; see [configuration](../configuration.md#flow).\n")
	return b.String()
}

// ConfigPage returns the reference page of the sections.
func (r *Reference) ConfigPage() string {
	var b strings.Builder
	b.WriteString(generated)
	b.WriteString("# Configuration\n\nAll sections of a configuration file with their fields. How files are written and put " +
		"together is told in [the guide](../configuration.md); `weir schema` prints the same for editors.\n")
	root := r.Config()
	for _, f := range root.Fields {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n", f.Name, f.Doc)
		switch {
		case f.Name == "modules":
			r.moduleTables(&b)
		case f.Elem != nil && f.Elem.Fields != nil:
			b.WriteString("A list; each item has:\n\n")
			table(&b, f.Elem.Fields)
		case f.Fields != nil:
			table(&b, f.Fields)
		default:
			fmt.Fprintf(&b, "Type: %s.\n", f.Type)
		}
		switch f.Name {
		case "flow":
			b.WriteString("\nEvery filter may have, besides its own [parameters](README.md):\n\n")
			table(&b, conf.Describe(head{Enabled: true}, r.prose).Fields)
		case "pipeline":
			b.WriteString("\nA pipeline has one processor.\n")
			for _, k := range r.processors.Kinds() {
				for _, e := range k.Examples {
					example(&b, e.Title, e.YAML)
				}
			}
		}
	}
	b.WriteString("\n## Conditions\n\nA condition is a map; all that is given must hold. In patterns `*` stands for any run " +
		"of characters, and a list means any of its items.\n\n| Word | Takes | Holds if |\n| --- | --- | --- |\n")
	for _, w := range words {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", w.name, w.takes, cell(w.doc))
	}
	return b.String()
}

// moduleTables writes a table for each kind of module.
func (r *Reference) moduleTables(b *strings.Builder) {
	b.WriteString("A list; what an item has depends on its `name`.\n")
	modules := r.modules()
	for _, name := range slices.Sorted(maps.Keys(modules)) {
		fmt.Fprintf(b, "\n### modules: %s\n\n", name)
		table(b, modules[name].Fields)
	}
}

// Index returns the first page of the reference.
func (r *Reference) Index() string {
	var b strings.Builder
	b.WriteString(generated)
	b.WriteString("# Reference\n\n[Configuration](configuration.md): all sections and their fields.\n\n" +
		"[Metrics](metrics.md): all numbers for Prometheus and StatsD.\n\n## Filters\n\n" +
		"| Filter | Family | What it does |\n| --- | --- | --- |\n")
	for _, k := range r.registry.Kinds() {
		fmt.Fprintf(&b, "| [%s](filters/%s.md) | %s | %s |\n", k.Name, k.Name, k.Family, cell(k.Summary))
	}
	return b.String()
}

// Pages returns all pages of the reference by their path in its folder.
func (r *Reference) Pages() map[string]string {
	pages := map[string]string{"README.md": r.Index(), "configuration.md": r.ConfigPage(), "metrics.md": r.MetricsPage()}
	for _, k := range r.registry.Kinds() {
		pages["filters/"+k.Name+".md"] = r.FilterPage(k)
	}
	return pages
}
