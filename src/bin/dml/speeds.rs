//! The user's cache of measured link speeds.

use dml::arenas::calibrate::{Calibration, CalibrationSource, Measured, links};
use dml::core::{LinkId, Platform};
use std::path::PathBuf;

/// The user's file of measured link speeds, and its contents.
#[derive(Debug)]
pub(crate) struct Cache {
    file: Option<PathBuf>,
    calibration: Option<Calibration>,
    /// Messages about what was ignored, and why.
    pub(crate) notes: Vec<String>,
}

impl Cache {
    /// Opens the cache of this machine. A file that cannot be used becomes a note.
    pub(crate) fn open() -> Self {
        let mut cache = Self { file: None, calibration: None, notes: Vec::new() };
        match Calibration::cache_file() {
            Ok(file) => {
                match Calibration::load(&file) {
                    Ok(calibration) => cache.calibration = calibration,
                    Err(error) => cache.notes.push(error.to_string()),
                }
                cache.file = Some(file);
            }
            Err(error) => cache.notes.push(error.to_string()),
        }
        cache
    }

    /// Creates an empty cache with notes.
    #[cfg(test)]
    pub(crate) fn with_notes<const N: usize>(notes: [&str; N]) -> Self {
        Self { file: None, calibration: None, notes: notes.map(str::to_owned).to_vec() }
    }

    /// Returns the path of the file to print, or `None` if there is no usable file.
    pub(crate) fn file(&self) -> Option<String> {
        self.file.as_ref().map(|file| file.display().to_string())
    }

    /// Returns the speeds as discovery expects them.
    pub(crate) fn source(&self) -> CalibrationSource {
        self.calibration.clone().map_or(CalibrationSource::Guesses, CalibrationSource::Figures)
    }

    /// Returns the figures of all links of a platform, each with the Unix time of its measurement in seconds.
    /// Returns `None` if a link is unmeasured.
    pub(crate) fn of_all(&self, platform: &Platform) -> Option<Vec<(Measured, u64)>> {
        links(platform).into_iter().map(|link| self.of(platform, link)).collect()
    }

    fn of(&self, platform: &Platform, link: LinkId) -> Option<(Measured, u64)> {
        let figures = self.calibration.as_ref()?.figures_of(platform, link)?;
        Some((Measured::new(platform, link, Ok(figures.classes.clone())), figures.measured_unix_s))
    }

    /// Returns the number of measured links of a platform, the number of others, and the Unix time of the
    /// oldest measurement in seconds.
    pub(crate) fn known(&self, platform: &Platform) -> (u64, u64, Option<u64>) {
        let all = links(platform);
        let known: Vec<_> = all.iter().filter_map(|&link| self.of(platform, link)).collect();
        let oldest = known.iter().map(|(_, measured_unix_s)| *measured_unix_s).min();
        (known.len() as u64, (all.len() - known.len()) as u64, oldest)
    }

    /// Stores measured speeds. A failed write becomes a note.
    pub(crate) fn store(&mut self, platform: &Platform, measured: &[Measured]) {
        let Some(file) = &self.file else { return };
        if let Err(error) = Calibration::of(platform, measured).store(file) {
            self.notes.push(error.to_string());
            self.file = None;
        }
    }
}

/// Formats a Unix time in seconds as a date and time, in UTC.
pub(crate) fn date(unix_s: u64) -> String {
    let (days, second) = (unix_s / 86_400, unix_s % 86_400);
    // Years begin in March, so that a leap day is the last day of its year.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02} UTC", second / 3_600, second % 3_600 / 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dml::arenas::calibrate;
    use dml::arenas::kit::join_staged;
    use dml::arenas::{MainMem, Null};
    use dml::core::{
        ArenaDesc, ArenaId, ArenaKind, DeviceDesc, DeviceId, DeviceKind, LinkSpeed, PlatformBuilder,
    };
    use std::sync::Arc;

    #[test]
    fn known_links_and_others_are_counted() {
        let mut builder = PlatformBuilder::default();
        builder.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu));
        builder.add_arena(Arc::new(MainMem::new(DeviceId(0))));
        builder.add_arena(Arc::new(Null::backed(ArenaDesc::store("disk", ArenaKind("null")))));
        join_staged(&mut builder, ArenaId(0), ArenaId(1), LinkSpeed::default());
        let platform = builder.build().expect("it has all that it needs");
        let mut cache = Cache { file: None, calibration: None, notes: Vec::new() };
        let all = links(&platform).len() as u64;
        assert!(all > 0);
        assert_eq!(cache.known(&platform), (0, all, None));
        let measured = calibrate::measure(&platform);
        cache.calibration = Some(Calibration::of(&platform, &measured));
        let (known, others, oldest) = cache.known(&platform);
        let of_all = cache.of_all(&platform).expect("all are measured");
        assert_eq!((known, others, known), (all, 0, of_all.len() as u64));
        assert_eq!(oldest, of_all.iter().map(|(_, measured_unix_s)| *measured_unix_s).min());
        cache.calibration = Some(Calibration::of(&platform, &measured[..1]));
        assert_eq!((cache.known(&platform).0, cache.known(&platform).1), (1, all - 1));
        assert!(cache.of_all(&platform).is_none(), "one link is unmeasured");
    }

    #[test]
    fn the_file_and_the_figures_are_those_that_were_opened() {
        let builder = PlatformBuilder::default();
        let figures = Calibration::of(&builder.build().expect("an empty platform"), &[]);
        let file = PathBuf::from("/a/folder/links-0.json");
        let opened = Cache { file: Some(file), calibration: Some(figures), notes: Vec::new() };
        assert_eq!(opened.file().as_deref(), Some("/a/folder/links-0.json"));
        assert!(matches!(opened.source(), CalibrationSource::Figures(_)));
        let nothing = Cache { file: None, calibration: None, notes: Vec::new() };
        assert_eq!(nothing.file(), None);
        assert!(matches!(nothing.source(), CalibrationSource::Guesses));
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (unix_s, text) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_399, "2000-02-28 23:59 UTC"),
            (951_782_400, "2000-02-29 00:00 UTC"),
            (951_868_800, "2000-03-01 00:00 UTC"),
            (1_735_689_599, "2024-12-31 23:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00 UTC"),
        ] {
            assert_eq!(date(unix_s), text);
        }
    }
}
