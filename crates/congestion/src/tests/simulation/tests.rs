//! Checks known properties of the algorithms.

use super::*;

const RTT: f64 = 0.04;

fn link(rate: f64, queue: usize) -> Link {
    Link { rate, delay: RTT / 2.0, queue, discipline: Discipline::DropTail }
}

/// A link with RED, so that losses are random, and a maximum threshold of one bandwidth-delay product.
fn red_link(rate: f64) -> Link {
    let product = rate * RTT;
    let discipline = Discipline::Red { min: product / 4.0, max: product, max_probability: 0.1 };
    Link { rate, delay: RTT / 2.0, queue: (product * 3.0) as usize, discipline }
}

fn flow(algorithm: Option<Algorithm>, paths: &[usize]) -> Flow {
    Flow { algorithm, paths: paths.to_vec() }
}

/// The mean rate of each path of each flow, over several runs.
fn mean(links: &[Link], flows: &[Flow], seconds: f64) -> Vec<Vec<f64>> {
    const RUNS: u64 = 5;
    let mut sum: Vec<Vec<f64>> = flows.iter().map(|flow| vec![0.0; flow.paths.len()]).collect();
    for seed in 0..RUNS {
        for (sum, outcome) in sum.iter_mut().zip(run(links, flows, seconds, seconds / 6.0, seed)) {
            sum.iter_mut().zip(outcome.rates).for_each(|(sum, rate)| *sum += rate / RUNS as f64);
        }
    }
    sum
}

fn total(rates: &[f64]) -> f64 {
    rates.iter().sum()
}

#[test]
fn single_flow_fills_a_link_with_a_queue_of_one_bandwidth_delay_product() {
    let outcome = &run(&[link(1000.0, 40)], &[flow(None, &[0])], 60.0, 10.0, 1)[0];
    assert!(outcome.rate() > 950.0 && outcome.rate() <= 1001.0, "{outcome:?}");
}

/// The square root formula: w = sqrt(1.5/p) segments, within a tolerance for the effects that it neglects.
#[test]
fn window_matches_the_square_root_formula() {
    let outcome = &run(&[red_link(1000.0)], &[flow(None, &[0])], 300.0, 50.0, 1)[0];
    let formula = (1.5 / outcome.losses[0]).sqrt();
    let ratio = outcome.windows[0] / formula;
    assert!((0.7..1.4).contains(&ratio), "{outcome:?}, formula {formula}");
}

#[test]
fn two_reno_flows_share_equally() {
    let rates = mean(&[red_link(1000.0)], &[flow(None, &[0]), flow(None, &[0])], 120.0);
    let ratio = total(&rates[0]) / total(&rates[1]);
    assert!((0.85..1.18).contains(&ratio), "{rates:?}");
}

/// RFC 6356, goal 2: n uncoupled subflows take n shares of a bottleneck; LIA takes about one.
#[test]
fn coupled_subflows_take_one_share_of_a_bottleneck() {
    let share = |algorithm, subflows: &[usize]| {
        let rates = mean(&[red_link(1000.0)], &[flow(algorithm, subflows), flow(None, &[0])], 120.0);
        total(&rates[0]) / total(&rates[1])
    };
    let uncoupled = share(None, &[0, 0]);
    assert!((1.7..2.3).contains(&uncoupled), "uncoupled: {uncoupled}");
    let linked = share(Some(Algorithm::Lia), &[0, 0]);
    assert!((0.75..1.3).contains(&linked), "lia: {linked}");
    let coupled = share(Some(Algorithm::Coupled), &[0, 0]);
    assert!(coupled < 1.25, "coupled: {coupled}");
}

/// RFC 6356, goals 1 and 3: at least the rate of the better path alone, with less traffic on the congested path than
/// uncoupled.
#[test]
fn traffic_moves_off_the_congested_path_without_losing_throughput() {
    let links = [red_link(1000.0), red_link(1000.0)];
    let crowded = |algorithm| {
        let mut flows = vec![flow(algorithm, &[0, 1])];
        flows.extend((0..4).map(|_| flow(None, &[0])));
        let rates = mean(&links, &flows, 120.0).swap_remove(0);
        (total(&rates), rates[0] / total(&rates))
    };
    let alone = total(&mean(&links, &[flow(None, &[1])], 120.0)[0]);
    let (_, uncoupled) = crowded(None);
    for algorithm in [Algorithm::Lia, Algorithm::Olia, Algorithm::Balia] {
        let (rate, congested) = crowded(Some(algorithm));
        assert!(rate > 0.95 * alone, "{algorithm}: {rate}, on the free path alone {alone}");
        assert!(congested < uncoupled, "{algorithm}: {congested}, uncoupled {uncoupled}");
    }
}

#[test]
fn runs_are_reproducible() {
    let links = [red_link(500.0), link(300.0, 20)];
    let flows = [flow(Some(Algorithm::Olia), &[0, 1]), flow(None, &[1])];
    let rates = || run(&links, &flows, 20.0, 2.0, 7).iter().map(Outcome::rate).collect::<Vec<_>>();
    assert_eq!(rates(), rates());
}
