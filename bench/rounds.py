"""Several ways to do the same, in turn and round by round, so that a drift of the machine meets all alike."""

import statistics


def in_turn(ways, rounds, measure, progress):
    """What `measure` gives for each way in each round. The first round warms caches and is not counted."""
    ways = list(ways)
    found = {way: [] for way in ways}
    for number in range(rounds + 1):
        # Who begins moves on, so that none always follows the same other.
        first = number % len(ways)
        for way in ways[first:] + ways[:first]:
            progress(f"round {number} of {rounds}, {way}")
            value = measure(way)
            if number:
                found[way].append(value)
    return found


def summary(rates, pairs):
    """Of rates in Mbit/s: each way's mean and deviation, and of each pair the median of the rounds' ratios."""

    def of(values):
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        return {"mean": statistics.mean(values), "stddev": spread}

    def ratio(one, other):
        return statistics.median(a / b for a, b in zip(rates[one], rates[other]))

    return {
        "mbps": {way: of(values) for way, values in rates.items()},
        "ratio": {f"{one}/{other}": ratio(one, other) for one, other in pairs},
    }


def text(summary, wanted=None):
    """A summary for people; `wanted` has what is to be said of some ratios."""
    lines = [
        f"  {way:12} {value['mean']:10.1f} Mbit/s  (sigma {value['stddev']:.1f})"
        for way, value in summary["mbps"].items()
    ]
    for pair, value in summary["ratio"].items():
        remark = f", {wanted[pair]}" if wanted and pair in wanted else ""
        lines.append(f"  {pair:19} {value:.3f}  (median of the rounds' ratios{remark})")
    return "\n".join(lines)
