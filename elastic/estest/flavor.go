package estest

// A Flavor is the product and version that a cluster speaks as.
type Flavor int

// The flavors. What differs between them was seen on real nodes of these versions, except for Elasticsearch8, which
// follows Elastic's documentation.
const (
	Elasticsearch7 Flavor = iota // 7.17.28
	Elasticsearch8               // 8.19.7
	OpenSearch2                  // 2.19.6
	OpenSearch3                  // 3.9.0
)

type flavorDetails struct {
	number        string
	product       [2]string // the header that names the product; empty for none
	opensearch    bool
	types         bool // hits and document answers carry _type
	vendorTypes   bool // answers in the vendor media type when asked for it
	vendorContent bool // accepts bodies declared with the vendor media type
	contentType   string
	maxHead       int // bytes of header lines
	created       string
	build         object
	tagline       string
	order         []string // order of an error's metadata
	// Answers about async searches say when a search was completed, and say the most important in header fields.
	asyncCompletion, asyncHeaders bool
}

const (
	elasticTagline    = "You Know, for Search"
	openSearchTagline = "The OpenSearch Project: https://opensearch.org/"
	jsonUTF8          = "application/json; charset=UTF-8"
)

var (
	elasticOrder    = []string{"resource.type", "resource.id", "index_uuid", "shard", "index"}
	openSearchOrder = []string{"index", "shard", "resource.id", "resource.type", "index_uuid"}
)

var flavors = [...]flavorDetails{
	Elasticsearch7: {
		number: "7.17.28", product: [2]string{"X-elastic-product", "Elasticsearch"}, types: true, vendorContent: true,
		contentType: jsonUTF8, maxHead: 8192, created: "7172899", tagline: elasticTagline, order: elasticOrder,
		build: object{
			{"number", "7.17.28"},
			{"build_flavor", "default"},
			{"build_type", "docker"},
			{"build_hash", "139cb5a961d8de68b8e02c45cc47f5289a3623af"},
			{"build_date", "2025-02-20T09:05:31.349013687Z"},
			{"build_snapshot", false},
			{"lucene_version", "8.11.3"},
			{"minimum_wire_compatibility_version", "6.8.0"},
			{"minimum_index_compatibility_version", "6.0.0-beta1"},
		},
	},
	Elasticsearch8: {
		number: "8.19.7", product: [2]string{"X-elastic-product", "Elasticsearch"}, vendorTypes: true, vendorContent: true,
		contentType: "application/json", maxHead: 16384, created: "8536000", tagline: elasticTagline, order: elasticOrder,
		asyncCompletion: true, asyncHeaders: true,
		build: object{
			{"number", "8.19.7"},
			{"build_flavor", "default"},
			{"build_type", "docker"},
			{"build_hash", "0000000000000000000000000000000000000000"},
			{"build_date", "2025-11-01T00:00:00.000000000Z"},
			{"build_snapshot", false},
			{"lucene_version", "9.12.2"},
			{"minimum_wire_compatibility_version", "7.17.0"},
			{"minimum_index_compatibility_version", "7.0.0"},
		},
	},
	OpenSearch2: {
		number: "2.19.6", opensearch: true, contentType: jsonUTF8, maxHead: 8192, created: "136408427",
		tagline: openSearchTagline, order: openSearchOrder,
		build: object{
			{"distribution", "opensearch"},
			{"number", "2.19.6"},
			{"build_type", "docker"},
			{"build_hash", "97d3c13bf22a4a72ac11dc503fe44c97662b9161"},
			{"build_date", "2026-07-01T04:27:16.038403104Z"},
			{"build_snapshot", false},
			{"lucene_version", "9.12.3"},
			{"minimum_wire_compatibility_version", "7.10.0"},
			{"minimum_index_compatibility_version", "7.0.0"},
		},
	},
	OpenSearch3: {
		number: "3.9.0", product: [2]string{"X-OpenSearch-Version", "OpenSearch/3.9.0 (opensearch)"}, opensearch: true,
		contentType: jsonUTF8, maxHead: 16384, created: "137307827", tagline: openSearchTagline, order: openSearchOrder,
		build: object{
			{"distribution", "opensearch"},
			{"number", "3.9.0"},
			{"build_type", "docker"},
			{"build_hash", "4ee42a94e87f66fbf1e62a9871b1b87f91e02472"},
			{"build_date", "2026-09-23T01:01:31.883915140Z"},
			{"build_snapshot", false},
			{"lucene_version", "10.5.1"},
			{"minimum_wire_compatibility_version", "2.19.0"},
			{"minimum_index_compatibility_version", "2.0.0"},
		},
	},
}

// String returns the product and version, such as "elasticsearch 7.17.28".
func (f Flavor) String() string {
	if flavors[f].opensearch {
		return "opensearch " + flavors[f].number
	}
	return "elasticsearch " + flavors[f].number
}
