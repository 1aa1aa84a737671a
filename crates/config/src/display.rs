//! Sizes and durations as people read them.

use std::time::Duration;

/// Formats a number of bytes with three digits: `88 B`, `1.50 kB`, `19.7 MB`.
pub fn format_size(bytes: u64) -> String {
    const UNITS: [(&str, f64); 5] = [("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0)];
    let number = bytes as f64;
    // What would be rounded to 1000 of a unit is 1 of the next one.
    let unit = UNITS.into_iter().find(|(_, unit)| number >= 0.9995 * unit && *unit > 1.0);
    let Some((name, unit)) = unit.filter(|_| bytes >= 1000) else { return format!("{bytes} B") };
    let digits = match number / unit {
        ..9.995 => 2,
        ..99.95 => 1,
        _ => 0,
    };
    format!("{:.digits$} {name}", number / unit)
}

/// Formats a duration by its two largest units: `3.2 s`, `42 s`, `3m 5s`, `2h 10m`, `4d 3h`.
pub fn format_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        ..10 => format!("{:.1} s", (duration.as_secs_f64() * 10.0).floor() / 10.0),
        10..60 => format!("{seconds} s"),
        60..3600 => format!("{}m {}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h {}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d {}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_three_digits() {
        for (bytes, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.00 kB"),
            (1500, "1.50 kB"),
            (99_940, "99.9 kB"),
            (999_400, "999 kB"),
            (999_500, "1.00 MB"),
            (19_704_985, "19.7 MB"),
            (27_790_962_000, "27.8 GB"),
            (5_000_000_000_000_000, "5000 TB"),
        ] {
            assert_eq!(format_size(bytes), text);
        }
    }

    #[test]
    fn durations_have_their_two_largest_units() {
        for (millis, text) in [
            (0, "0.0 s"),
            (9_990, "9.9 s"),
            (59_999, "59 s"),
            (185_000, "3m 5s"),
            (7_800_000, "2h 10m"),
            (356_400_000, "4d 3h"),
        ] {
            assert_eq!(format_duration(Duration::from_millis(millis)), text);
        }
    }
}
