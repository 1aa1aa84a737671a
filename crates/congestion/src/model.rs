//! The equations of the algorithms from the papers, in floating point: a reference implementation for the BPF programs.

use crate::Algorithm;

/// The state of a path that the equations use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Path {
    /// w, the congestion window in segments; positive.
    pub window: f64,
    /// The smoothed round-trip time, in the same unit for all paths; positive.
    pub rtt: f64,
    /// OLIA's l: bytes transmitted between the last two losses or since the last loss, whichever is greater.
    pub transmitted: f64,
}

impl Algorithm {
    /// The increase of the window of path `r` per segment acknowledged on it in congestion avoidance, in segments. That
    /// of a single path is reno's. OLIA's can be negative.
    pub fn increase(self, paths: &[Path], r: usize) -> f64 {
        let w = |p: usize| paths[p].window;
        let rtt = |p: usize| paths[p].rtt;
        let all = || 0..paths.len();
        let n = paths.len() as f64;
        if paths.len() == 1 {
            return 1.0 / w(r);
        }
        let sum_of_rates: f64 = all().map(|p| w(p) / rtt(p)).sum();
        match self {
            Algorithm::Ewtcp => 1.0 / n.sqrt() / w(r),
            Algorithm::Coupled => 1.0 / all().map(w).sum::<f64>(),
            // RFC 6356, section 3, with equation 2.
            Algorithm::Lia => {
                let total: f64 = all().map(w).sum();
                let best = all().map(|p| w(p) / rtt(p).powi(2)).fold(0.0, f64::max);
                let alpha = total * best / sum_of_rates.powi(2);
                (alpha / total).min(1.0 / w(r))
            }
            // CoNEXT 2012, equations 5 and 6.
            Algorithm::Olia => w(r) / rtt(r).powi(2) / sum_of_rates.powi(2) + olia_alpha(paths, r) / w(r),
            // SIGMETRICS 2013, table of algorithms.
            Algorithm::Balia => {
                let x = |p: usize| w(p) / rtt(p);
                let alpha = all().map(x).fold(0.0, f64::max) / x(r);
                x(r) / rtt(r) / sum_of_rates.powi(2) * ((1.0 + alpha) / 2.0) * ((4.0 + alpha) / 5.0)
            }
        }
    }

    /// The window of path `r` after a loss on it, in segments. That of a single path is reno's.
    #[cfg(test)]
    pub(crate) fn after_loss(self, paths: &[Path], r: usize) -> f64 {
        let w = paths[r].window;
        // Like the kernel's reno, at least two segments.
        let halved = (w / 2.0).max(2.0);
        match self {
            _ if paths.len() == 1 => halved,
            Algorithm::Ewtcp | Algorithm::Lia | Algorithm::Olia => halved,
            Algorithm::Coupled => {
                let total: f64 = paths.iter().map(|path| path.window).sum();
                (w - total / 2.0).max(1.0)
            }
            Algorithm::Balia => {
                let x = |path: &Path| path.window / path.rtt;
                let alpha = paths.iter().map(x).fold(0.0, f64::max) / x(&paths[r]);
                (w - w / 2.0 * alpha.min(1.5)).max(1.0)
            }
        }
    }
}

/// OLIA's alpha.
fn olia_alpha(paths: &[Path], r: usize) -> f64 {
    let all: Vec<usize> = (0..paths.len()).collect();
    let quality = |p: &usize| paths[*p].transmitted / paths[*p].rtt.powi(2);
    let max = |of: &dyn Fn(&usize) -> f64| all.iter().map(of).fold(0.0, f64::max);
    let (largest, best) = (max(&|p| paths[*p].window), max(&quality));
    let in_m = |p: &usize| paths[*p].window == largest;
    // Equal values can differ by rounding errors.
    let in_b = |p: &usize| quality(p) >= best * (1.0 - 1e-12);
    let m = all.iter().filter(|p| in_m(p)).count() as f64;
    let b_without_m = all.iter().filter(|p| in_b(p) && !in_m(p)).count() as f64;
    let n = paths.len() as f64;
    if b_without_m == 0.0 {
        0.0
    } else if in_m(&r) {
        -1.0 / n / m
    } else if in_b(&r) {
        1.0 / n / b_without_m
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(of: &[(f64, f64)]) -> Vec<Path> {
        of.iter().map(|&(window, rtt)| Path { window, rtt, transmitted: 1e6 }).collect()
    }

    fn close(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-12 * expected.abs().max(1.0), "{found}, expected {expected}");
    }

    #[test]
    fn single_path_behaves_like_reno() {
        for algorithm in Algorithm::ALL {
            close(algorithm.increase(&paths(&[(20.0, 0.1)]), 0), 0.05);
            close(algorithm.after_loss(&paths(&[(20.0, 0.1)]), 0), 10.0);
            close(algorithm.after_loss(&paths(&[(1.0, 0.1)]), 0), 2.0);
        }
    }

    /// RFC 6356, section 3: with equal round-trip times and windows alpha is 1/n.
    #[test]
    fn equal_paths_have_closed_form_increases() {
        let four = paths(&[(10.0, 0.05); 4]);
        close(Algorithm::Ewtcp.increase(&four, 2), 0.05);
        close(Algorithm::Coupled.increase(&four, 2), 1.0 / 40.0);
        close(Algorithm::Lia.increase(&four, 2), 0.25 / 40.0);
        close(Algorithm::Olia.increase(&four, 2), 0.1 / 16.0);
        close(Algorithm::Balia.increase(&four, 2), 0.1 / 16.0);
        close(Algorithm::Coupled.after_loss(&four, 2), 1.0);
        for algorithm in [Algorithm::Ewtcp, Algorithm::Lia, Algorithm::Olia, Algorithm::Balia] {
            close(algorithm.after_loss(&four, 2), 5.0);
        }
    }

    /// RFC 6356, section 3: never more aggressive on a path than TCP.
    #[test]
    fn lia_never_exceeds_reno() {
        let unequal = paths(&[(2.0, 0.5), (100.0, 0.01)]);
        for r in 0..2 {
            assert!(Algorithm::Lia.increase(&unequal, r) <= 1.0 / unequal[r].window);
        }
    }

    #[test]
    fn olia_moves_traffic_to_the_better_path_with_the_smaller_window() {
        let mut two = paths(&[(10.0, 0.1), (20.0, 0.1)]);
        two[0].transmitted = 4e6;
        // f^2 / w, plus or minus half of 1/w, where f is the share of the window.
        close(Algorithm::Olia.increase(&two, 0), 1.0 / 90.0 + 0.5 / 10.0);
        close(Algorithm::Olia.increase(&two, 1), 2.0 / 90.0 - 0.5 / 20.0);
        two[1].transmitted = 5e6;
        close(Algorithm::Olia.increase(&two, 0), 1.0 / 90.0);
    }

    #[test]
    fn balia_reduces_a_window_by_at_most_three_quarters() {
        let two = paths(&[(4.0, 0.1), (40.0, 0.1)]);
        close(Algorithm::Balia.after_loss(&two, 0), 1.0);
        close(Algorithm::Balia.after_loss(&two, 1), 20.0);
    }
}
