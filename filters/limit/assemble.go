package limit

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"weir/elastic"
	"weir/flows"
	"weir/internal/conf"
)

// assembly is a filter while it is put together.
type assembly struct {
	*rateLimit
	b     *flows.Builder
	p     *conf.Problems
	rules []pattern
	own   []pattern // of limits that are no rules
}

// assemble makes a filter of its configuration. at returns where an item of the lists rules and limits is configured.
func assemble(b *flows.Builder, c RateLimitConfig, at func(list string, i int) *conf.Node) flows.Filter {
	if len(c.Rules)+len(c.Limits) == 0 {
		b.Errorf("", "neither rules nor limits: the filter would let everything pass")
		return nil
	}
	before, _ := b.Problems.Count()
	f := &rateLimit{
		config: c, flow: b.FlowName(), name: b.FilterName(), rules: len(c.Rules), style: fieldStyles[c.Headers],
		enforced: uint64(c.Percent.Fraction()*wholly + 0.5),
	}
	a := assembly{rateLimit: f, b: b, p: b.Problems}
	if f.enforced == 0 {
		b.Errorf("percent", "%s enforces limits for no key; to only count write mode: shadow", c.Percent)
	}
	if !c.Exempt.IsZero() {
		f.exempt = b.Condition(c.Exempt, b.Problems)
		warnOfStatus(b.Problems, c.Exempt)
	}
	a.fairness()
	first := map[string]int{} // rules by expression
	for i := range c.Rules {
		n := at("rules", i)
		a.addRule(n, i)
		expr := c.Rules[i].Pattern.String()
		if earlier, twice := first[expr]; twice {
			b.Problems.Warnf(n, "rule %d is never reached: rule %d has the same pattern", i+1, earlier+1)
			continue
		}
		first[expr] = i
	}
	for i := range c.Limits {
		a.addLimit(at("limits", i), i)
	}
	a.tellApart(at)
	after, _ := b.Problems.Count()
	if after > before || slices.ContainsFunc(a.rules, func(p pattern) bool { return p.re == nil }) {
		return nil
	}
	if len(a.rules)+len(a.own) > 0 {
		f.matcher = newMatcher(a.rules, a.own)
	}
	f.scratch.New = func() any { return &scratch{owner: f} }
	return f
}

// fairness reads who takes turns.
func (a *assembly) fairness() {
	a.fairBy = parseSelectors(a.p, a.b.Node("fair_by"), a.config.FairBy)
	if a.config.OnLimit == "wait" || slices.ContainsFunc(a.config.Limits, func(l RateLimitLimit) bool { return l.OnLimit == "wait" }) {
		return
	}
	for _, name := range []string{"max_wait", "max_waiting", "fair_by"} {
		if n := a.b.Node("").Get(name); n != nil {
			a.p.Warnf(n, "%s has no effect without on_limit: wait", name)
		}
	}
}

// patience returns how long requests wait for a limit.
func (a *assembly) patience(onLimit string, maxWait *conf.Duration) time.Duration {
	switch {
	case cmp.Or(onLimit, a.config.OnLimit) != "wait":
		return 0
	case maxWait != nil:
		return maxWait.Std()
	}
	return a.config.MaxWait.Std()
}

// parseSelectors reads a list of selectors that need no pattern.
func parseSelectors(p *conf.Problems, n *conf.Node, list conf.Strings) []selector {
	var out []selector
	for i, text := range list {
		s, err := parseSelector(text)
		switch {
		case err != nil:
			p.Errorf(n.Item(i), "%v", err)
		case s.kind == byPath || s.kind == byIndex:
			p.Errorf(n.Item(i), "%s is not known of every request", text)
		case slices.Contains(list[:i], text):
			p.Errorf(n.Item(i), "the selector %q stands twice", text)
		default:
			out = append(out, s)
		}
	}
	return out
}

func (a *assembly) newLimit(name string) *limit {
	return &limit{
		name: name, quoted: quoted(name), own: -1, missing: "anonymous", cost: Costs{all: 1},
		message: a.config.Message, status: a.config.Status, patience: a.patience("", nil),
	}
}

// addRule adds the limit of a rule.
func (a *assembly) addRule(n *conf.Node, i int) {
	c := &a.config.Rules[i]
	l := a.newLimit(cmp.Or(c.Name, "rule_"+strconv.Itoa(i+1)))
	a.limits = append(a.limits, l)
	pat := pattern{re: c.Pattern.Regexp}
	if c.Group != "" && pat.re != nil {
		g := pat.re.SubexpIndex(c.Group)
		if g < 0 {
			noGroup(a.p, n.At("group"), c.Pattern, c.Group)
		}
		pat.groups = []int{g}
		l.selectors = []selector{{kind: byPath, text: "path:" + c.Group, name: c.Group}}
	}
	a.rules = append(a.rules, pat)
	if !(c.MaxQPS > 0) {
		a.p.Errorf(n.At("max_qps"), "max_qps must be above 0; to switch the filter off, write mode: off")
		return
	}
	rate := strconv.FormatFloat(c.MaxQPS, 'f', -1, 64) + "/s"
	a.shape(n, l, &l.budget, c.MaxQPS, time.Second, rate, c.Burst)
	l.identity = strings.Join([]string{"rule", c.Name, c.Pattern.String(), c.Group, l.identity}, "\x00")
}

// addLimit adds a limit of the list.
func (a *assembly) addLimit(n *conf.Node, i int) {
	c := &a.config.Limits[i]
	l := a.newLimit(cmp.Or(c.Name, "limit_"+strconv.Itoa(i+1)))
	l.index, l.unit, l.cost, l.missing, l.unlimited = c.Index, units[c.Unit], c.Cost, c.Missing, c.only
	l.bulks, l.except, l.patience, l.message = c.bulks, c.except, a.patience(c.OnLimit, c.MaxWait), cmp.Or(c.Message, l.message)
	if c.Status != nil {
		l.status = *c.Status
	}
	if c.MaxWait != nil && l.patience == 0 {
		a.p.Warnf(n.At("max_wait"), "max_wait has no effect without on_limit: wait")
	}
	if slices.Contains(c.Index, "") {
		a.p.Errorf(n.At("index"), "an empty name of an index, which no request matches; leave index out for all")
	}
	if !l.bulks { // there each name stands for two limits
		for i, name := range c.Index {
			warnOfUpperCase(a.p, n.At("index").Item(i), name)
		}
	}
	a.limits = append(a.limits, l)
	a.readKey(n, l, c)
	a.indices = a.indices || len(c.Index) > 0
	when := ""
	if !c.When.IsZero() {
		flows.EachWord(c.When, "index", func(v *conf.Node) { // a request evades it by naming the index together with another one
			a.p.Warnf(v, "the condition holds only if every index of the request matches; "+
				"for a limit on all requests that may touch an index write index beside when")
		})
		warnOfStatus(a.p, c.When)
		if l.when = a.b.Condition(c.When, a.p); l.when != nil {
			when = l.when.String()
		}
	}
	a.checkUnit(n.At("rate"), l.unit, c.Unit, c.Rate.Unit)
	if c.Burst != nil {
		a.checkUnit(n.At("burst"), l.unit, c.Unit, c.Burst.Unit)
	}
	a.shape(n, l, &l.budget, float64(c.Rate.Events), c.Rate.Per, c.Rate.String(), c.Burst)
	if most := c.Cost.most(); most > l.burst && l.burst > 0 {
		a.p.Warnf(n.At("cost"), "a cost of %d is above the burst of %d: such a request passes only when nothing of the burst is used up", most, l.burst)
	}
	l.identity = strings.Join([]string{
		"limit", c.Name, c.Unit, c.Missing, c.Pattern.String(), strings.Join(c.Key, "\x01"), strings.Join(c.Index, "\x01"), when, l.identity,
	}, "\x00")
	a.addOverrides(n.At("overrides"), l, c)
	l.nameless = a.namelessRefusal(l, c)
	l.tooMany = notTaken(l, "takes at most "+strconv.Itoa(maxIndices)+" indices in one request; split it")
	l.unread = notTaken(l, "needs to know the index of each action, and an action of this bulk cannot be read: actions are lines "+
		"of JSON of at most "+strconv.Itoa(longestAction>>10)+"kb, in a body that is not coded or in gzip or deflate")
}

// warnOfStatus warns of a condition on what no request has when a limit decides about it.
func warnOfStatus(p *conf.Problems, condition *conf.Node) {
	flows.EachWord(condition, "status", func(v *conf.Node) {
		p.Warnf(v, "no status matches: there is no answer yet when it is decided whether the request passes")
	})
}

// warnOfUpperCase warns of a name or pattern of indices that matches none, since no index has a name with letters in upper case.
// In date math the format may have some.
func warnOfUpperCase(p *conf.Problems, n *conf.Node, name string) {
	if lower := strings.ToLower(name); lower != name && !strings.HasPrefix(name, "<") {
		p.Warnf(n, "%q matches no index, since their names are in lower case, only an alias may; for indices write %q", name, lower)
	}
}

// readKey reads a limit's selectors, and its pattern.
func (a *assembly) readKey(n *conf.Node, l *limit, c *RateLimitLimit) {
	pat := pattern{re: c.Pattern.Regexp}
	if len(c.Key) == 0 {
		a.p.Errorf(n.At("key"), "an empty key; write [global] for one budget that all share")
	}
	for i, text := range c.Key {
		at := n.At("key").Item(i)
		s, err := parseSelector(text)
		switch {
		case err != nil:
			a.p.Errorf(at, "%v", err)
			continue
		case slices.Contains(c.Key[:i], text):
			a.p.Errorf(at, "the selector %q stands twice", text)
		case s.kind == byPath && n.Get("pattern").IsZero():
			a.p.Errorf(at, "%s is a group of pattern, which is missing", text)
		case s.kind == byPath && pat.re != nil:
			g := pat.re.SubexpIndex(s.name)
			if g < 0 {
				noGroup(a.p, at, c.Pattern, s.name)
			}
			s.group = len(pat.groups)
			pat.groups = append(pat.groups, g)
		}
		if s.kind == byIndex {
			l.byIndex, a.indices = true, true
		}
		l.selectors = append(l.selectors, s)
	}
	if pat.re != nil {
		l.own = len(a.own)
		a.own = append(a.own, pat)
	}
}

// checkUnit refuses a rate or burst of another unit than the limit's.
func (a *assembly) checkUnit(n *conf.Node, u unit, name string, got conf.Unit) {
	switch u {
	case requestBytes, responseBytes:
		if got == conf.Time {
			a.p.Errorf(n, "%s is %s, and %s counts bytes: write 10mb/s", n.Quoted(), got, name)
		}
	case took:
		if got != conf.Time {
			a.p.Errorf(n, "%s is %s, and took counts time: write 20s/s, or as a burst 20s", n.Quoted(), got)
		}
	default:
		if got != conf.Count {
			a.p.Errorf(n, "%s is %s, and %s are counted: write a number such as 100/s", n.Quoted(), got, name)
		}
	}
}

// shape gives a budget its rate, its burst and the text of its refusal.
func (a *assembly) shape(n *conf.Node, l *limit, b *budget, amount float64, per time.Duration, rate string, burst *conf.Amount) {
	if !(amount > 0) || per <= 0 {
		return // it could not be read
	}
	// The sum keeps a rate of 100 a second, worked out in floating point, from having a burst of 99.
	atOnce := max(1, int64(min(amount/per.Seconds()+1e-9, 1e15)))
	if burst != nil && burst.N > 0 {
		atOnce = burst.N
	}
	var err error
	if b.Limit, err = NewLimit(IntervalOf(amount, per), atOnce); err != nil {
		a.p.Errorf(n, "limit %s: %v", l.name, err)
		return
	}
	if l.patience > 0 && b.interval > int64(l.patience) {
		a.p.Warnf(n, "limit %s lets one more pass each %s, and requests wait for it at most %s: most waits are in vain; make max_wait longer",
			l.name, conf.Duration(b.interval), conf.Duration(l.patience))
	}
	b.rate, b.identity = rate, rate+"\x00"+strconv.FormatInt(atOnce, 10)
	b.reason = l.message
	if b.reason == "" {
		b.reason = "[" + l.name + "] " + rate + " exceeded; retry in "
	}
	b.policy = policyOf(l.quoted, atOnce, max(time.Second, b.rested(0)), quotaUnits[l.unit])
	b.nextSecond = a.refusal(l, b, time.Second).Prepared()
}

// addOverrides adds the budgets of single keys.
func (a *assembly) addOverrides(n *conf.Node, l *limit, c *RateLimitLimit) {
	for i := range c.Overrides {
		o, at := &c.Overrides[i], n.Item(i)
		if slices.ContainsFunc(l.selectors, func(s selector) bool { return s.kind == byNothing }) || len(o.Key) != len(l.selectors) {
			a.p.Errorf(at.At("key"), "want a value for each of the selectors %q", []string(c.Key))
			continue
		}
		key := []byte{7: 0, 8: keyAsItIs}
		for j := range l.selectors {
			var err error
			if key, err = l.selectors[j].appendValue(key, o.Key[j]); err != nil {
				a.p.Errorf(at.At("key").Item(j), "%v", err)
			}
			if l.selectors[j].kind == byIndex {
				warnOfUpperCase(a.p, at.At("key").Item(j), o.Key[j])
			}
		}
		b := &budget{unlimited: o.Rate == nil}
		if o.Rate != nil {
			a.checkUnit(at.At("rate"), l.unit, c.Unit, o.Rate.Unit)
			a.shape(at, l, b, float64(o.Rate.Events), o.Rate.Per, o.Rate.String(), o.Burst)
		} else if o.Burst != nil {
			a.p.Errorf(at.At("burst"), "a burst without a rate; without one the key is not limited")
		}
		b.identity = strings.Join(o.Key, "\x01") + "\x00" + b.identity
		if l.overrides == nil {
			l.overrides = map[string]*budget{}
		}
		known := string(digested(key, 0)[idBytes:])
		if l.overrides[known] != nil {
			a.p.Errorf(at.At("key"), "the key %q has an override already", []string(o.Key))
		}
		l.overrides[known] = b
	}
}

// namelessRefusal is the answer to a request that lacks a value of a key, where such requests are refused.
func (a *assembly) namelessRefusal(l *limit, c *RateLimitLimit) *elastic.Error {
	reason := fmt.Sprintf("[%s] needs %s, which the request lacks", l.name, strings.Join(c.Key, ", "))
	return (&elastic.Error{Status: l.status, Type: a.config.Type, Reason: reason}).Prepared()
}

// notTaken is the answer to a request that a limit cannot decide about, and that would not pass later either.
func notTaken(l *limit, why string) *elastic.Error {
	return (&elastic.Error{Status: 400, Type: "illegal_argument_exception", Reason: "[" + l.name + "] " + why}).Prepared()
}

func noGroup(p *conf.Problems, n *conf.Node, re conf.Regexp, group string) {
	names := slices.DeleteFunc(slices.Clone(re.SubexpNames()), func(s string) bool { return s == "" })
	q := p.Errorf(n, "the pattern %q has no group called %q, which is written (?P<%s>…)", re.String(), group, group)
	q.Suggestion, _ = conf.Nearest(group, names)
}

// tellApart refuses names that stand twice, and makes limits different that are configured the same.
func (a *assembly) tellApart(at func(list string, i int) *conf.Node) {
	names, same := map[string]bool{}, map[string]int{}
	for i, l := range a.limits {
		if names[l.name] {
			n := at("rules", i)
			if i >= a.rateLimit.rules {
				n = at("limits", i-a.rateLimit.rules)
			}
			a.p.Errorf(n.At("name"), "two limits are called %q", l.name)
		}
		names[l.name] = true
		same[l.identity]++
		if n := same[l.identity]; n > 1 {
			l.identity += "\x00" + strconv.Itoa(n)
		}
		for _, b := range l.overrides {
			b.identity = l.identity + "\x00" + b.identity
		}
	}
}
