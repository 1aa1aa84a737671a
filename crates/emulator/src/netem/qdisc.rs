//! The options of `netem` and its child `tbf` for one direction (tc-netem(8), tc-tbf(8)).

use std::time::Duration;

use crate::spec::MIN_QUEUE;
use crate::spec::{DirectionSpec, Loss, Pace};

/// More frames than any link holds, because tbf limits the queue in bytes.
const PACKET_LIMIT: &str = "1000000";
/// A rate at which a frame takes less than a nanosecond. netem does not reorder frames if a rate is set.
const NO_REORDER_RATE: &str = "10tbit";
/// A margin because tc and the kernel round the bucket to ticks, and a frame larger than the bucket is never sent.
const BURST_MARGIN: u64 = 10;
/// No rate. Explicit, because a change without a rate keeps the old one.
const NO_RATE: &str = "0bit";

/// Loss, duplication, delay and jitter. Every option is always given, so that a change resets the previous values.
pub(super) fn netem(direction: &DirectionSpec) -> Vec<String> {
    let DirectionSpec { delay, jitter, loss, duplication, .. } = direction;
    let mut words = vec!["netem".to_owned(), "limit".into(), PACKET_LIMIT.into()];
    let mut push = |args: &[String]| words.extend(args.iter().cloned());
    push(&["delay".into(), microseconds(*delay)]);
    if !jitter.deviation.is_zero() {
        push(&[microseconds(jitter.deviation), "distribution".into(), "normal".into()]);
    }
    match loss {
        Loss::Random(probability) => push(&["loss".into(), "random".into(), probability.to_string()]),
        Loss::GilbertElliott { enter_bad, leave_bad, in_good, in_bad } => {
            let chain = [enter_bad, leave_bad, in_bad, in_good].map(ToString::to_string);
            push(&["loss".into(), "gemodel".into()]);
            push(&chain);
        }
    }
    push(&["duplicate".into(), duplication.to_string()]);
    let in_order = !jitter.deviation.is_zero() && !jitter.reorder;
    push(&["rate".into(), if in_order { NO_REORDER_RATE } else { NO_RATE }.into()]);
    words
}

/// The smallest unit that every version of `tc` accepts.
fn microseconds(time: Duration) -> String {
    format!("{}us", time.as_nanos() as f64 / 1e3)
}

/// Rate and queue; `None` without a rate.
pub(super) fn tbf(direction: &DirectionSpec, mtu: u16) -> Option<Vec<String>> {
    let Pace::Rate(rate) = direction.pace else { return None };
    // The bucket holds one frame, for the smoothest rate, plus 2 ms, so that a timer that is up to 2 ms late does not
    // reduce the rate.
    let frame = u64::from(mtu) + 14;
    let burst = frame + BURST_MARGIN + rate.bytes_in(2);
    let queue = direction.queue.unwrap_or_else(|| rate.bytes_in(100).max(MIN_QUEUE));
    let words = [
        "tbf".to_owned(),
        "rate".into(),
        format!("{}bit", rate.bits_per_second()),
        "burst".into(),
        format!("{burst}b"),
        "limit".into(),
        format!("{}b", queue.max(frame)),
    ];
    Some(words.into())
}

/// A tbf that delays nothing.
pub(super) fn unlimited_tbf() -> Vec<String> {
    "tbf rate 100gbit burst 1000000b limit 1000000000b".split(' ').map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Adjustment;

    fn direction(properties: &str) -> DirectionSpec {
        DirectionSpec::default().adjusted(&Adjustment::parse(properties, "".as_ref()).expect(properties))
    }

    #[test]
    fn every_property_is_told_to_tc() {
        let cases = [
            ("delay=10ms", "netem limit 1000000 delay 10000us loss random 0% duplicate 0% rate 0bit"),
            (
                "delay=21.5ms,jitter=2ms,loss=1%,duplicate=0.1%",
                "netem limit 1000000 delay 21500us 2000us distribution normal loss random 1% duplicate 0.1% rate 10tbit",
            ),
            (
                "delay=5000.5us,jitter=2ms:reorder,loss=0.1%:20%:1%:90%",
                "netem limit 1000000 delay 5000.5us 2000us distribution normal loss gemodel 0.1% 20% 90% 1% \
                 duplicate 0% rate 0bit",
            ),
        ];
        for (properties, told) in cases {
            assert_eq!(netem(&direction(properties)).join(" "), told);
        }
    }

    #[test]
    fn rate_and_queue_are_told_to_tbf() {
        let told = |properties| tbf(&direction(properties), 1500).map(|words| words.join(" "));
        assert_eq!(told("delay=10ms"), None);
        assert_eq!(
            told("rate=2.74mbit,queue=30kB").expect("tbf"),
            "tbf rate 2740000bit burst 2209b limit 30000b"
        );
        assert_eq!(told("rate=100mbit").expect("tbf"), "tbf rate 100000000bit burst 26524b limit 1250000b");
        assert_eq!(told("rate=1kbit").expect("tbf"), "tbf rate 1000bit burst 1524b limit 30000b");
        assert_eq!(told("rate=1mbit,queue=1B").expect("tbf"), "tbf rate 1000000bit burst 1774b limit 1514b");
    }
}
