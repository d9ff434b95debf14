package flows

import "weir/elastic/generation"

// Stamps is where a cache asks the filter that sends an exchange to a cluster for stamps of the index expressions that its
// answer depends on, taken before the request is sent.
var Stamps = Var[generation.Ask]{Name: "stamps"}
