"""Measures variants in turn, round by round, so that a drift of the machine affects all alike."""

import statistics


def in_turn(variants, rounds, measure, progress):
    """The result of `measure` for each variant in each round. The first round warms caches and does not count."""
    variants = list(variants)
    found = {variant: [] for variant in variants}
    for number in range(rounds + 1):
        # The order rotates, so that no variant always follows the same other.
        first = number % len(variants)
        for variant in variants[first:] + variants[:first]:
            progress(f"round {number} of {rounds}, {variant}")
            value = measure(variant)
            if number:
                found[variant].append(value)
    return found


def summary(rates, pairs, unit="mbps"):
    """Mean and standard deviation of each variant's rates, and the median of each pair's ratios within a round."""

    def of(values):
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        return {"mean": statistics.mean(values), "stddev": spread}

    def ratio(one, other):
        return statistics.median(a / b for a, b in zip(rates[one], rates[other]))

    return {
        unit: {variant: of(values) for variant, values in rates.items()},
        "ratio": {f"{one}/{other}": ratio(one, other) for one, other in pairs},
    }


def text(summary, wanted=None, unit="Mbit/s", key="mbps"):
    """A summary as text; `wanted` maps ratios to a remark."""
    lines = [
        f"  {variant:12} {value['mean']:10.1f} {unit}  (sigma {value['stddev']:.1f})"
        for variant, value in summary[key].items()
    ]
    for pair, value in summary["ratio"].items():
        remark = f", {wanted[pair]}" if wanted and pair in wanted else ""
        lines.append(f"  {pair:19} {value:.3f}  (median of the rounds' ratios{remark})")
    return "\n".join(lines)
