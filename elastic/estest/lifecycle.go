package estest

import (
	"fmt"
	"strconv"
)

// A policy is a lifecycle policy. It is kept and given out, and nobody acts by it.
type policy struct {
	body    object
	version int // of ILM, and the sequence number of ISM
}

func (r *request) policyBody() (object, error) {
	body, err := r.object()
	if err != nil {
		return nil, err
	}
	inner, ok := body.get("policy").(object)
	if !ok {
		return nil, badRequest("x_content_parse_exception", "[1:1] required member [policy] is missing")
	}
	return inner, nil
}

func putILM(r *request) (answer, error) {
	body, err := r.policyBody()
	if err != nil {
		return answer{}, err
	}
	name := r.vars["name"]
	version := 1
	if p := r.c.store.policies[name]; p != nil {
		version = p.version + 1
	}
	r.c.store.policies[name] = &policy{body, version}
	return answer{value: acknowledged}, nil
}

func getILM(r *request) (answer, error) {
	name := r.vars["name"]
	p := r.c.store.policies[name]
	if p == nil {
		return answer{}, &apiError{status: 404, typ: "resource_not_found_exception", reason: "Lifecycle policy not found: [" + name + "]"}
	}
	return answer{value: object{{name, object{{"version", p.version}, {"policy", p.body}}}}}, nil
}

// putISM refuses to change a policy for who does not say which version is meant, as the plugin does.
func putISM(r *request) (answer, error) {
	body, err := r.policyBody()
	if err != nil {
		return answer{}, err
	}
	name := r.vars["name"]
	version := 1
	if p := r.c.store.policies[name]; p != nil {
		if r.params["if_seq_no"] != strconv.Itoa(p.version) || r.params["if_primary_term"] != "1" {
			return answer{}, &apiError{
				status: 409, typ: "version_conflict_engine_exception",
				reason: fmt.Sprintf("[%s]: version conflict, document already exists (current version [%d])", name, p.version),
			}
		}
		version = p.version + 1
	}
	p := &policy{body, version}
	r.c.store.policies[name] = p
	return answer{status: 201, value: ismPolicy(name, p)}, nil
}

func getISM(r *request) (answer, error) {
	name := r.vars["name"]
	p := r.c.store.policies[name]
	if p == nil {
		return answer{}, &apiError{status: 404, typ: "status_exception", reason: "Policy not found"}
	}
	return answer{value: ismPolicy(name, p)}, nil
}

func ismPolicy(name string, p *policy) object {
	return object{{"_id", name}, {"_version", p.version}, {"_seq_no", p.version}, {"_primary_term", 1}, {"policy", p.body}}
}
