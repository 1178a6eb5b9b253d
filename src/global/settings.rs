//! Which regions there are, which of them this process is in, and the MySQL that they share.
//!
//! Without MYSQL_URL there is no global layer. With it, both REGION and TIDEGATE_REGIONS have to be set: a process that
//! does not know its region would write into the row of another, and one that does not know how many there are can't
//! tell when others have to hear from it. The names are of use without MySQL too: for limits that are split between
//! regions, or decided by one owner for all.

use clap::Args;
use thiserror::Error;

use crate::engine::reach::RegionIndex;
use crate::global::mysql::settings::{MysqlFlags, MysqlSettingError, MysqlSettings};

/// The width of the table's column.
const REGION_BYTES_MAX: usize = 48;

#[derive(Args, Clone, Debug)]
pub struct GlobalFlags {
    #[command(flatten)]
    pub mysql: MysqlFlags,

    /// The region of this process, one of --regions
    #[arg(long, env = "REGION", value_name = "NAME", help_heading = "MySQL")]
    pub region: Option<String>,

    /// The names of all regions, the same list everywhere
    #[arg(long, env = "TIDEGATE_REGIONS", value_name = "NAME,NAME", help_heading = "MySQL")]
    pub regions: Option<String>,
}

impl GlobalFlags {
    /// A warning about settings that do no harm, but are hardly what was meant. REGION alone is not worth a word:
    /// others set it, too.
    pub fn warning(&self) -> Option<String> {
        let is_set = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.trim().is_empty());
        if self.mysql.url().is_none() && is_set(&self.regions) {
            return Some(
                "TIDEGATE_REGIONS without --mysql-url (MYSQL_URL): limits are split between regions or strict where their \
                 rules say so, but nothing is exchanged with other regions"
                    .to_owned(),
            );
        }
        self.mysql.warning()
    }
}

/// How regions share counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GlobalSettings {
    /// How to reach the table.
    pub mysql: MysqlSettings,
    /// Whose row to write, and whose rows to expect.
    pub names: RegionNames,
}

/// All regions, and which of them this is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RegionNames {
    /// One of `regions`.
    pub region: Box<str>,
    /// As they were written, each once.
    pub regions: Vec<Box<str>>,
}

impl RegionNames {
    /// Its place among them by name: the order in which they are written may differ from region to region.
    pub(crate) fn place(&self) -> RegionIndex {
        let before = self.regions.iter().filter(|name| **name < self.region).count();
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        RegionIndex { region: count(before), regions: count(self.regions.len()) }
    }
}

/// A setting about regions that can't be used.
#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum GlobalSettingError {
    #[error(transparent)]
    Mysql(#[from] MysqlSettingError),
    #[error(
        "{set} is set, but --region (REGION) is not: set it to the name of the region that this process \
         is in"
    )]
    NoRegion { set: &'static str },
    #[error(
        "--mysql-url (MYSQL_URL) is set, but --regions (TIDEGATE_REGIONS) is not: set it to the names of all regions, \
         separated by commas"
    )]
    NoRegions,
    #[error("--regions (TIDEGATE_REGIONS) has an empty name in it: write names separated by single commas")]
    EmptyName,
    #[error("--regions (TIDEGATE_REGIONS) has the name '{name}' of {bytes} bytes: write at most {REGION_BYTES_MAX}")]
    LongName { name: String, bytes: usize },
    #[error("--regions (TIDEGATE_REGIONS) has the name '{0}' twice: write each once")]
    Twice(String),
    #[error(
        "--region (REGION) is '{region}', which is none of --regions (TIDEGATE_REGIONS): {}: write one of them, or add it \
         to the list, in all regions",
        .regions.join(", ")
    )]
    Stranger { region: String, regions: Vec<Box<str>> },
}

impl GlobalSettings {
    /// Checks the flags; `None` without MySQL, and counts then stay in the region.
    pub(crate) fn new(flags: &GlobalFlags) -> Result<Option<GlobalSettings>, GlobalSettingError> {
        let Some(mysql) = MysqlSettings::new(&flags.mysql)? else { return Ok(None) };
        let names = RegionNames::new(flags, "--mysql-url (MYSQL_URL)")?;
        Ok(Some(GlobalSettings { mysql, names }))
    }
}

impl RegionNames {
    /// Checks the names, which are of use without MySQL too; `None` if no regions are listed.
    pub(crate) fn alone(flags: &GlobalFlags) -> Result<Option<RegionNames>, GlobalSettingError> {
        let is_listed = flags.regions.as_ref().is_some_and(|listed| !listed.trim().is_empty());
        is_listed.then(|| RegionNames::new(flags, "--regions (TIDEGATE_REGIONS)")).transpose()
    }

    fn new(flags: &GlobalFlags, set: &'static str) -> Result<RegionNames, GlobalSettingError> {
        let text = |text: &Option<String>| text.as_deref().map(str::trim).unwrap_or_default().to_owned();
        let (region, listed) = (text(&flags.region), text(&flags.regions));
        if region.is_empty() {
            return Err(GlobalSettingError::NoRegion { set });
        }
        if listed.is_empty() {
            return Err(GlobalSettingError::NoRegions);
        }
        let mut regions: Vec<Box<str>> = Vec::new();
        for name in listed.split(',').map(str::trim) {
            if name.is_empty() {
                return Err(GlobalSettingError::EmptyName);
            }
            if name.len() > REGION_BYTES_MAX {
                return Err(GlobalSettingError::LongName { name: name.to_owned(), bytes: name.len() });
            }
            if regions.iter().any(|other| **other == *name) {
                return Err(GlobalSettingError::Twice(name.to_owned()));
            }
            regions.push(name.into());
        }
        if !regions.iter().any(|name| **name == *region) {
            return Err(GlobalSettingError::Stranger { region, regions });
        }
        Ok(RegionNames { region: region.into(), regions })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        flags: GlobalFlags,
    }

    fn flags(args: &[&str]) -> GlobalFlags {
        Command::try_parse_from(std::iter::once(&"serve").chain(args)).unwrap().flags
    }

    fn with_url(args: &[&str]) -> Result<Option<GlobalSettings>, GlobalSettingError> {
        GlobalSettings::new(&flags(&[&["--mysql-url", "mysql://u:p@h/d"], args].concat()))
    }

    fn said(args: &[&str]) -> String {
        with_url(args).unwrap_err().to_string()
    }

    #[test]
    fn no_url_is_no_global_layer() {
        assert_eq!(GlobalSettings::new(&flags(&["--region", "eu"])), Ok(None));
        assert_eq!(flags(&["--region", "eu"]).warning(), None);
        let warning = flags(&["--regions", "eu,us"]).warning().unwrap();
        assert!(warning.contains("TIDEGATE_REGIONS without --mysql-url (MYSQL_URL)"), "{warning}");
    }

    #[test]
    fn names_are_of_use_without_mysql() {
        assert_eq!(RegionNames::alone(&flags(&["--region", "eu"])), Ok(None));
        let names = RegionNames::alone(&flags(&["--region", "eu", "--regions", "us,eu"])).unwrap().unwrap();
        assert_eq!(names.place(), RegionIndex { region: 0, regions: 2 });
        let text = RegionNames::alone(&flags(&["--regions", "us,eu"])).unwrap_err().to_string();
        assert!(text.starts_with("--regions (TIDEGATE_REGIONS) is set, but --region (REGION) is not"), "{text}");
    }

    #[test]
    fn names_are_trimmed_and_kept_in_order() {
        let settings = with_url(&["--region", " eu ", "--regions", "us, eu ,ap-south"]).unwrap().unwrap();
        assert_eq!(&*settings.names.region, "eu");
        assert_eq!(settings.names.regions, ["us", "eu", "ap-south"].map(Box::from));
        assert_eq!(settings.names.place(), RegionIndex { region: 1, regions: 3 });
    }

    #[test]
    fn what_is_missing_is_named() {
        let text = said(&["--regions", "eu,us"]);
        assert!(text.contains("--region (REGION) is not: set it to the name of the region"), "{text}");
        let text = said(&["--region", "eu"]);
        assert!(text.contains("--regions (TIDEGATE_REGIONS) is not: set it to the names of all regions"), "{text}");
        assert!(said(&["--region", " ", "--regions", "eu"]).contains("--region (REGION) is not"));
        assert!(said(&["--region", "eu", "--regions", " "]).contains("(TIDEGATE_REGIONS) is not"));
    }

    #[test]
    fn names_that_can_not_be_used_are_named() {
        let text = said(&["--region", "ap", "--regions", "eu,us"]);
        assert!(text.contains("(REGION) is 'ap', which is none of --regions (TIDEGATE_REGIONS): eu, us"), "{text}");
        assert!(said(&["--region", "EU", "--regions", "eu"]).contains("is 'EU', which is none of"));
        assert!(said(&["--region", "eu", "--regions", "eu,,us"]).contains("an empty name"));
        assert!(said(&["--region", "eu", "--regions", "eu,"]).contains("an empty name"));
        assert!(said(&["--region", "eu", "--regions", "eu,us,eu"]).contains("the name 'eu' twice"));
        let long = "é".repeat(25);
        assert!(
            said(&["--region", "eu", "--regions", &format!("eu,{long}")]).contains("of 50 bytes: write at most 48")
        );
        assert!(with_url(&["--region", "eu", "--regions", &format!("eu,{}", &long[..48])]).is_ok());
    }

    #[test]
    fn a_bad_url_is_told_first() {
        let flags = flags(&["--mysql-url", "h:1"]);
        assert!(GlobalSettings::new(&flags).unwrap_err().to_string().contains("does not begin with mysql://"));
    }
}
