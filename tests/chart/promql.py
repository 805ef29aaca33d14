"""Evaluates the part of PromQL that the chart's alerts use, and the unit tests of promtool, where there is no promtool.

Anything else in an expression or a case is refused. Rates are extrapolated as Prometheus does it, since alerts that
ignore this fire too early.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import promql_parser as promql

Labels: TypeAlias = frozenset[tuple[str, str]]
"""With the series' name as `__name__`."""
Samples: TypeAlias = list[tuple[float, float | None]]
"""Times and values of a series; None where it ends."""
Series: TypeAlias = dict[Labels, Samples]
Vector: TypeAlias = dict[Labels, float]

LOOKBACK = 300.0
_STEP = re.compile(r"(-?[\d.]+)([+-][\d.]+)?(?:x(\d+))?")
_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
}
_COMPUTE: Mapping[str, Callable[[float, float], float]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}
_AGGREGATE: Mapping[str, Callable[[Sequence[float]], float]] = {"sum": sum, "count": len}


def find_mismatches(case: Mapping[str, Any], rules: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What of a test of promtool is not as expected, when these alerts are evaluated every minute."""
    if unknown := set(case) - {"name", "interval", "input_series", "promql_expr_test"}:
        raise NotImplementedError(f"{sorted(unknown)} of a test")
    interval = seconds(case["interval"])
    series: Series = {
        labels_of(one["series"]): [(number * interval, value) for number, value in parse_values(one["values"])]
        for one in case["input_series"]
    }
    checks = {seconds(one["eval_time"]): one for one in case["promql_expr_test"]}
    compiled = [(rule, promql.parse(rule["expr"])) for rule in rules]
    since: dict[tuple[int, Labels], float] = {}
    for now in (60.0 * minute for minute in range(int(max(checks) // 60) + 1)):
        for number, (rule, expression) in enumerate(compiled):
            active = {without(labels, "__name__") for labels in as_vector(evaluate(expression, series, now))}
            wait = seconds(rule["for"]) if "for" in rule else 0.0
            for labels in [one for key, one in since if key == number and one not in active]:
                since.pop((number, labels))
                for state in ("pending", "firing"):
                    if alert := series.get(name_alert(rule, labels, state)):
                        alert.append((now, None))
            for labels in active:
                firing = now - since.setdefault((number, labels), now) >= wait
                series.setdefault(name_alert(rule, labels, "firing" if firing else "pending"), []).append((now, 1.0))
        if check := checks.get(now):
            found = as_vector(evaluate(promql.parse(check["expr"]), series, now))
            expected = {labels_of(one["labels"]): float(one["value"]) for one in check["exp_samples"]}
            if found != expected:
                yield f"{check['eval_time']}: {check['expr']} is {readable(found)}, not {readable(expected)}"


def name_alert(rule: Mapping[str, Any], labels: Labels, state: str) -> Labels:
    """The series of an alert in a state."""
    own = {"__name__": "ALERTS", "alertname": rule["alert"], "alertstate": state}
    return frozenset({**dict(labels), **rule["labels"], **own}.items())


def readable(vector: Vector) -> dict[str, float]:
    """For a message."""
    return {str(dict(sorted(labels))): value for labels, value in vector.items()}


def seconds(duration: str) -> float:
    """A duration as Prometheus writes it, such as 1h."""
    return promql.parse_duration(duration).total_seconds()


def labels_of(series: str) -> Labels:
    """Of a series as a selector names it."""
    selector = promql.parse(series)
    assert isinstance(selector, promql.VectorSelector)
    labels = {one.name: one.value for one in selector.matchers.matchers}
    return frozenset((labels | ({"__name__": selector.name} if selector.name else {})).items())


def parse_values(text: str) -> Iterator[tuple[int, float]]:
    """Numbers of intervals, and the values there: `1+2x3` is 1 3 5 7, `1x3` four times 1, `_x3` three without any."""
    number = 0
    for word in text.split():
        if match := re.fullmatch(r"_(?:x(\d+))?", word):
            number += int(match[1] or 1)
        elif match := _STEP.fullmatch(word):
            for repeat in range(int(match[3] or 0) + 1):
                yield number, float(match[1]) + float(match[2] or 0) * repeat
                number += 1
        else:
            raise NotImplementedError(f"{word!r} in the values of a series")


def evaluate(expression: promql.Expr, series: Series, now: float) -> Vector | float:
    """What an expression gives at a time."""
    match expression:
        case promql.NumberLiteral(val=value):
            return float(value)
        case promql.ParenExpr(expr=inner):
            return evaluate(inner, series, now)
        case promql.VectorSelector():
            found = {labels: samples_until(series[labels], now) for labels in select(expression, series)}
            latest = {labels: samples[-1] for labels, samples in found.items() if samples}
            return {
                labels: value for labels, (at, value) in latest.items() if value is not None and at > now - LOOKBACK
            }
        case promql.Call(func=function, args=arguments):
            return call(function.name, arguments, series, now)
        case promql.AggregateExpr(op=op, expr=inner, modifier=modifier):
            names = set(modifier.labels) if modifier is not None else set()
            groups: dict[Labels, list[float]] = {}
            for labels, value in as_vector(evaluate(inner, series, now)).items():
                groups.setdefault(only(labels, names), []).append(value)
            return {labels: _AGGREGATE[str(op)](values) for labels, values in groups.items()}
        case promql.BinaryExpr(op=op, lhs=left, rhs=right, modifier=modifier):
            return combine(
                str(op), evaluate(left, series, now), evaluate(right, series, now), modifier and modifier.matching
            )
    raise NotImplementedError(f"{type(expression).__name__} in an expression")


def combine(op: str, left: Vector | float, right: Vector | float, matching: Any) -> Vector | float:
    """The value of a binary operation."""
    if op in ("and", "unless"):
        names = None if matching is None else set(matching.labels)
        others = {key_of(labels, names) for labels in as_vector(right)}
        return {
            labels: value
            for labels, value in as_vector(left).items()
            if (key_of(labels, names) in others) == (op == "and")
        }
    if isinstance(left, dict) and isinstance(right, dict):
        if matching is not None or op not in _COMPUTE:
            raise NotImplementedError(f"{op} with such vectors")
        others_by_key = {without(labels, "__name__"): value for labels, value in right.items()}
        keys = {without(labels, "__name__"): value for labels, value in left.items()}
        return {key: _COMPUTE[op](value, others_by_key[key]) for key, value in keys.items() if key in others_by_key}
    if op in _COMPARE and isinstance(left, dict) and isinstance(right, float):
        return {labels: value for labels, value in left.items() if _COMPARE[op](value, right)}
    if op in _COMPARE and isinstance(left, float) and isinstance(right, dict):
        return {labels: value for labels, value in right.items() if _COMPARE[op](left, value)}
    if isinstance(left, float) and isinstance(right, float):
        return _COMPUTE[op](left, right)
    raise NotImplementedError(f"{op} between a vector and a number")


def call(function: str, arguments: Sequence[promql.Expr], series: Series, now: float) -> Vector | float:
    """The value of a function."""
    match function, *arguments:
        case ["time"]:
            return now
        case ["absent", promql.VectorSelector() as selector]:
            wanted = {(one.name, one.value) for one in selector.matchers.matchers if one.op == promql.MatchOp.Equal}
            return {} if evaluate(selector, series, now) else {frozenset(wanted): 1.0}
        case ["histogram_quantile", promql.NumberLiteral(val=rank), promql.Expr() as buckets]:
            return find_quantiles(rank, as_vector(evaluate(buckets, series, now)))
        case [("rate" | "increase" | "min_over_time" | "max_over_time"), promql.MatrixSelector() as matrix]:
            length = matrix.range.total_seconds()
            found: Vector = {}
            for labels in select(matrix.vector_selector, series):
                points = [
                    (at, value)
                    for at, value in samples_until(series[labels], now)
                    if value is not None and at > now - length
                ]
                value = over_time(function, points, now - length, now)
                if value is not None:
                    found[without(labels, "__name__")] = value
            return found
    raise NotImplementedError(f"{function} with such arguments")


def over_time(function: str, points: Sequence[tuple[float, float]], start: float, end: float) -> float | None:
    """A function of the samples in a range; None where it has no value."""
    values = [value for _, value in points]
    if function in ("min_over_time", "max_over_time"):
        return None if not values else min(values) if function == "min_over_time" else max(values)
    if len(points) < 2:
        return None
    grown = sum(after if after < before else after - before for before, after in pairwise(values))
    (first, _), (last, _) = points[0], points[-1]
    sampled = last - first
    average = sampled / (len(points) - 1)
    to_start = min(first - start, sampled * values[0] / grown if grown > 0 else math.inf)
    gaps = (gap if gap < 1.1 * average else average / 2 for gap in (to_start, end - last))
    increase = grown * (sampled + sum(gaps)) / sampled
    return increase if function == "increase" else increase / (end - start)


def find_quantiles(rank: float, buckets: Vector) -> Vector:
    """By interpolation within the bucket where the rank is."""
    groups: dict[Labels, list[tuple[float, float]]] = {}
    for labels, count in buckets.items():
        groups.setdefault(without(labels, "__name__", "le"), []).append((float(dict(labels)["le"]), count))
    found = {}
    for labels, counts in groups.items():
        counts.sort()
        wanted = rank * counts[-1][1]
        below = [(0.0, 0.0), *(one for one in counts if one[1] < wanted)][-1]
        limit, count = next(one for one in counts if one[1] >= wanted)
        share = (wanted - below[1]) / (count - below[1]) if count > below[1] else math.nan
        found[labels] = below[0] if limit == math.inf else below[0] + (limit - below[0]) * share
    return found


def select(selector: promql.VectorSelector, series: Iterable[Labels]) -> list[Labels]:
    """The series that match."""
    return [labels for labels in series if matches(selector, dict(labels))]


def matches(selector: promql.VectorSelector, labels: Mapping[str, str]) -> bool:
    """Whether a series has the name, and the labels."""
    for one in selector.matchers.matchers:
        value = labels.get(one.name, "")
        same = value == one.value if "Re" not in str(one.op) else re.fullmatch(one.value, value) is not None
        if same == (one.op in (promql.MatchOp.NotEqual, promql.MatchOp.NotRe)):
            return False
    return labels["__name__"] == selector.name


def samples_until(samples: Samples, now: float) -> Samples:
    """Those up to now."""
    return [one for one in samples if one[0] <= now]


def as_vector(value: Vector | float) -> Vector:
    """Refuse a number where series are expected."""
    assert isinstance(value, dict)
    return value


def without(labels: Labels, *names: str) -> Labels:
    """The other labels."""
    return frozenset(one for one in labels if one[0] not in names)


def only(labels: Labels, names: set[str]) -> Labels:
    """These labels."""
    return frozenset(one for one in labels if one[0] in names)


def key_of(labels: Labels, names: set[str] | None) -> Labels:
    """What two series have in common that match each other: these labels, or all."""
    return without(labels, "__name__") if names is None else only(labels, names)
