//! What published papers print, table by table and figure by figure, and which experiment measures it: the file
//! experiments/paper-values.toml, from which the pages of results take their order.

use std::path::Path;

use plait_config::{LoadError, load};
use serde::Deserialize;

/// The papers, and the pages of experiments without one.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Papers {
    /// The papers, in the order of the pages.
    #[serde(default)]
    pub papers: Vec<Paper>,
    /// Further pages.
    #[serde(default)]
    pub pages: Vec<Page>,
}

/// A paper.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Paper {
    /// The name of its page, and the first part of an entry's name.
    pub id: String,
    /// A short title.
    pub title: String,
    /// The citation.
    pub cite: String,
    /// Its tables and figures, in its order.
    pub items: Vec<Item>,
}

/// A table, a figure, or a section whose text prints values.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Item {
    /// The second part of an entry's name.
    pub id: String,
    /// Its name in the paper.
    pub name: String,
    /// What it shows.
    pub what: String,
    /// The section that discusses it.
    pub section: String,
    /// The experiments that measure it.
    #[serde(default)]
    pub experiments: Vec<String>,
    /// The items, as PAPER/ITEM, whose values it shows.
    #[serde(default)]
    pub shows: Vec<String>,
    /// Why there is nothing to compare.
    pub not_comparable: Option<String>,
    /// What is missing to measure it.
    pub not_done: Option<String>,
    /// The printed values.
    #[serde(default)]
    pub values: Vec<PrintedValue>,
}

/// A printed value.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrintedValue {
    /// The last part of the entry's name.
    pub id: String,
    /// The row of the table, or what the value is of.
    pub row: String,
    /// The value; `None` if bounds are printed.
    pub value: Option<f64>,
    /// The standard deviation printed with it.
    pub sigma: Option<f64>,
    /// The printed lower bound.
    pub at_least: Option<f64>,
    /// The printed upper bound.
    pub at_most: Option<f64>,
    /// The unit; empty for a number without one.
    #[serde(default)]
    pub unit: String,
    /// How it follows from what is printed.
    pub derived: Option<String>,
    /// Why no experiment measures it.
    pub not_comparable: Option<String>,
    /// What is missing to measure it.
    pub not_done: Option<String>,
}

/// A page of experiments that measure nothing that a paper prints.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Page {
    /// The name of the page.
    pub id: String,
    /// Its title.
    pub title: String,
    /// Its experiments, in order.
    pub experiments: Vec<String>,
}

impl Papers {
    /// Reads a file.
    ///
    /// # Errors
    /// The file cannot be read, or is invalid.
    pub fn read(path: &Path) -> Result<Self, LoadError> {
        load(path)
    }

    /// The item with this name, PAPER/ITEM.
    pub fn item(&self, name: &str) -> Option<&Item> {
        let (paper, item) = name.split_once('/')?;
        let paper = self.papers.iter().find(|candidate| candidate.id == paper)?;
        paper.items.iter().find(|candidate| candidate.id == item)
    }

    /// The value with this name, PAPER/ITEM/VALUE.
    pub fn value(&self, entry: &str) -> Option<&PrintedValue> {
        let (item, value) = entry.rsplit_once('/')?;
        self.item(item)?.values.iter().find(|candidate| candidate.id == value)
    }
}
