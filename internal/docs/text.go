package docs

import (
	"fmt"
	"strings"

	"weir/flows"
)

// lineWidth is the width of texts for the terminal in characters.
const lineWidth = 100

// FilterText returns what the terminal shows about a filter.
func (r *Reference) FilterText(k *flows.Kind) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s (%s)\n", k.Name, k.Family)
	wrap(&b, "  ", k.Summary)
	b.WriteString("\nParameters:\n")
	all := rows("", r.Filter(k).Fields)
	if len(all) == 0 {
		b.WriteString("  none\n")
	}
	for _, p := range all {
		fmt.Fprintf(&b, "  %s  (%s", p.path, p.Type)
		if standard := strings.Trim(p.standard(), "`"); p.Required {
			b.WriteString(", required")
		} else if standard != "" {
			fmt.Fprintf(&b, ", default %s", standard)
		}
		b.WriteString(")\n")
		wrap(&b, "      ", strings.Join(append([]string{p.Doc}, p.remarks()...), " "))
	}
	for _, e := range k.Examples {
		fmt.Fprintf(&b, "\nExample: %s\n", e.Title)
		for line := range strings.Lines(strings.TrimSpace(e.YAML)) {
			b.WriteString("  " + strings.TrimSuffix(line, "\n") + "\n")
		}
	}
	return b.String()
}

// wrap writes text in lines of at most lineWidth characters, each after indent.
func wrap(b *strings.Builder, indent, text string) {
	line := indent
	for _, word := range strings.Fields(strings.ReplaceAll(text, "`", "")) {
		if line != indent && len([]rune(line))+len([]rune(word)) > lineWidth {
			b.WriteString(strings.TrimRight(line, " ") + "\n")
			line = indent
		}
		line += word + " "
	}
	if line != indent {
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
}
