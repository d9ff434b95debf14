package conf

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
)

// deepestNesting bounds the parentheses of an expression, so that a hostile one cannot exhaust the stack.
const deepestNesting = 50

// An expression is a number or arithmetic over numbers: whole numbers, + - * / and parentheses. It is not more, because
// a configuration that needs more should be written by a program.
type expression struct {
	text  string
	at    int
	depth int
}

// evaluate works out arithmetic over whole numbers. A result or a step that does not fit in 64 bits, or a division
// that leaves a rest, is an error.
func evaluate(text string) (int64, error) {
	e := expression{text: text}
	n, err := e.sum()
	if err == nil && (e.peek() != 0 || e.at < len(text)) {
		err = fmt.Errorf("%q is not a whole number", text)
	}
	if err != nil {
		return 0, err
	}
	return n, nil
}

// isArithmetic tells whether text is made of what expressions are made of, so that a message should be about arithmetic.
func isArithmetic(text string) bool {
	return strings.ContainsAny(text, "0123456789") && strings.ContainsAny(strings.TrimLeft(text, "+-"), "+-*/()") &&
		strings.Trim(text, "0123456789_+-*/() \t") == ""
}

func (e *expression) peek() byte {
	for e.at < len(e.text) && (e.text[e.at] == ' ' || e.text[e.at] == '\t') {
		e.at++
	}
	if e.at == len(e.text) {
		return 0
	}
	return e.text[e.at]
}

func (e *expression) sum() (int64, error) {
	left, err := e.product()
	for err == nil {
		op := e.peek()
		if op != '+' && op != '-' {
			return left, nil
		}
		e.at++
		var right int64
		if right, err = e.product(); err == nil {
			left, err = calculate(left, op, right)
		}
	}
	return 0, err
}

func (e *expression) product() (int64, error) {
	left, err := e.factor()
	for err == nil {
		op := e.peek()
		if op != '*' && op != '/' {
			return left, nil
		}
		e.at++
		var right int64
		if right, err = e.factor(); err == nil {
			left, err = calculate(left, op, right)
		}
	}
	return 0, err
}

func (e *expression) factor() (int64, error) {
	e.depth++
	defer func() { e.depth-- }()
	if e.depth > deepestNesting {
		return 0, errors.New("the expression is nested too deep")
	}
	switch c := e.peek(); {
	case c == '-' || c == '+':
		e.at++
		if c == '-' && e.peek() >= '0' && e.peek() <= '9' {
			return e.number("-") // with its sign, because the least number has no positive counterpart
		}
		n, err := e.factor()
		if err != nil || c == '+' {
			return n, err
		}
		return calculate(0, '-', n)
	case c == '(':
		e.at++
		n, err := e.sum()
		if err != nil {
			return 0, err
		}
		if e.peek() != ')' {
			return 0, fmt.Errorf("%q lacks a closing parenthesis", e.text)
		}
		e.at++
		return n, nil
	default:
		return e.number("")
	}
}

func (e *expression) number(sign string) (int64, error) {
	start := e.at
	for e.at < len(e.text) && isWord(e.text[e.at]) {
		e.at++
	}
	digits := e.text[start:e.at]
	if digits == "" || digits[0] < '0' || digits[0] > '9' {
		return 0, fmt.Errorf("%q is not a whole number", e.text)
	}
	if len(digits) > 1 && digits[0] == '0' && digits[1] >= '0' && digits[1] <= '9' {
		return 0, fmt.Errorf("%s: a leading zero means octal to some and nothing to others; leave it out, or write 0o", digits)
	}
	n, err := strconv.ParseInt(sign+digits, 0, 64)
	if errors.Is(err, strconv.ErrRange) {
		return 0, fmt.Errorf("%s%s does not fit in 64 bits", sign, digits)
	}
	if err != nil {
		return 0, fmt.Errorf("%q is not a whole number", e.text)
	}
	return n, nil
}

func isWord(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_'
}

func calculate(a int64, op byte, b int64) (n int64, err error) {
	fits := true
	switch op {
	case '+':
		n = a + b
		fits = (n > a) == (b > 0)
	case '-':
		n = a - b
		fits = (n < a) == (b > 0)
	case '*':
		n = a * b
		fits = a == 0 || n/a == b && (a != -1 || b != math.MinInt64)
	case '/':
		if b == 0 {
			return 0, fmt.Errorf("%d/0 has no value", a)
		}
		n = a / b
		if a%b != 0 {
			return 0, fmt.Errorf("%d/%d is not a whole number", a, b)
		}
		fits = a != math.MinInt64 || b != -1
	}
	if !fits {
		return 0, fmt.Errorf("%d%c%d does not fit in 64 bits", a, op, b)
	}
	return n, nil
}

// scaled returns the decimal number text times unit. What is finer than one is cut off.
func scaled(text string, unit int64) (int64, error) {
	const longest = 40 // digits; more of them are no number that anybody wrote
	whole, fraction, dotted := strings.Cut(text, ".")
	if whole == "" || dotted && fraction == "" || strings.Trim(whole+fraction, "0123456789") != "" || len(text) > longest {
		return 0, fmt.Errorf("%q is not a number", text)
	}
	r, _ := new(big.Rat).SetString(text)
	r.Mul(r, new(big.Rat).SetInt64(unit))
	n := new(big.Int).Quo(r.Num(), r.Denom())
	if !n.IsInt64() {
		return 0, fmt.Errorf("%s is too large", text)
	}
	return n.Int64(), nil
}
