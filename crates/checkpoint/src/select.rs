//! Names by pattern: which tensors and values take part, and what they are called afterwards.

use std::{collections::BTreeMap, fmt, str::FromStr};

use crate::{Error, Result};

/// A pattern of names: `*` stands for any text, dots and nothing included; every other character for itself.
///
/// ```
/// use dtensor_checkpoint::Pattern;
/// let pattern = Pattern::new("layers.*.weight");
/// assert!(pattern.matches("layers.0.attn.weight"));
/// assert!(!pattern.matches("layers.0.attn.bias"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(String);

impl Pattern {
    /// From its text.
    pub fn new(text: impl Into<String>) -> Pattern {
        Pattern(text.into())
    }

    /// Whether a name matches.
    pub fn matches(&self, name: &str) -> bool {
        self.captures(name).is_some()
    }

    /// What each `*` stands for, each as short as it can be but for the last.
    ///
    /// Texts between stars are searched from left to right, once: there is no pattern that takes long.
    fn captures<'n>(&self, name: &'n str) -> Option<Vec<&'n str>> {
        let Some((first, rest)) = self.0.split_once('*') else {
            return (self.0 == name).then(Vec::new);
        };
        let mut name = name.strip_prefix(first)?;
        let mut captures = Vec::new();
        let mut between: Vec<&str> = rest.split('*').collect();
        let last = between.pop().unwrap_or_default();
        for text in between {
            let (capture, after) = name.split_once(text)?;
            captures.push(capture);
            name = after;
        }
        captures.push(name.strip_suffix(last)?);
        Some(captures)
    }

    fn stars(&self) -> usize {
        self.0.matches('*').count()
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Another name for what matches a pattern: each `*` of the new name is what that of the old one stood for, in order.
///
/// ```
/// use dtensor_checkpoint::Rename;
/// let rename: Rename = "module.*=*".parse()?;
/// assert_eq!(rename.apply("module.head.weight"), Some("head.weight".to_string()));
/// assert_eq!(rename.apply("head.weight"), None);
/// # Ok::<(), dtensor_checkpoint::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rename {
    old: Pattern,
    new: Pattern,
}

impl Rename {
    /// Both have the same number of `*`: with fewer in the new name, two old ones could become one.
    pub fn new(old: Pattern, new: Pattern) -> Result<Rename> {
        match (old.stars(), new.stars()) {
            (old_stars, new_stars) if old_stars == new_stars => Ok(Rename { old, new }),
            (old_stars, new_stars) => Err(Error::BadText {
                text: format!("{old}={new}"),
                what: "change of names",
                why: format!("the old name has {old_stars} `*`, and the new one {new_stars}"),
            }),
        }
    }

    /// The new name, if the old one matches.
    pub fn apply(&self, name: &str) -> Option<String> {
        let captures = self.old.captures(name)?;
        let mut texts = self.new.0.split('*');
        let mut renamed = texts.next().unwrap_or_default().to_owned();
        for (capture, text) in captures.into_iter().zip(texts) {
            renamed.push_str(capture);
            renamed.push_str(text);
        }
        Some(renamed)
    }
}

impl FromStr for Rename {
    type Err = Error;

    /// Reads `old=new`.
    fn from_str(text: &str) -> Result<Rename> {
        let (old, new) = text.split_once('=').ok_or_else(|| Error::BadText {
            text: text.to_owned(),
            what: "change of names",
            why: "write old=new, such as module.*=*".to_owned(),
        })?;
        Rename::new(Pattern::new(old), Pattern::new(new))
    }
}

impl fmt::Display for Rename {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.old, self.new)
    }
}

/// Which names of a checkpoint take part, and what they are called afterwards.
///
/// `only` and `exclude` are about the names in the checkpoint. A pattern that matches no name at all is an error: it is
/// a typing mistake more often than not, and what it should have done would be missed later.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Where there are some: only names that match one of them.
    pub only: Vec<Pattern>,
    /// Not these.
    pub exclude: Vec<Pattern>,
    /// The first that matches gives the new name.
    pub rename: Vec<Rename>,
}

impl Selection {
    /// Refuses a pattern that matches none of these names.
    pub fn check<'n>(&self, names: impl Iterator<Item = &'n str> + Clone) -> Result<()> {
        let mut patterns = self
            .only
            .iter()
            .chain(&self.exclude)
            .chain(self.rename.iter().map(|rename| &rename.old));
        patterns.try_for_each(|pattern| must_match(pattern, names.clone()))
    }

    /// The new names of those that take part, each with its old one.
    pub fn apply<'n>(
        &self,
        names: impl Iterator<Item = &'n str>,
    ) -> Result<BTreeMap<String, &'n str>> {
        let mut selected = BTreeMap::new();
        for name in names.filter(|name| self.takes(name)) {
            let renamed = self.rename.iter().find_map(|rename| rename.apply(name));
            let renamed = renamed.unwrap_or_else(|| name.to_owned());
            if let Some(other) = selected.insert(renamed.clone(), name) {
                let (one, other) = (other.to_owned(), name.to_owned());
                return Err(Error::RenamedAlike { name: renamed, one, other });
            }
        }
        Ok(selected)
    }

    fn takes(&self, name: &str) -> bool {
        let one_of = |patterns: &[Pattern]| patterns.iter().any(|pattern| pattern.matches(name));
        (self.only.is_empty() || one_of(&self.only)) && !one_of(&self.exclude)
    }
}

/// An error that shows some names, if none of them matches.
pub(crate) fn must_match<'n>(
    pattern: &Pattern,
    mut names: impl Iterator<Item = &'n str> + Clone,
) -> Result<()> {
    let all = names.clone();
    match names.any(|name| pattern.matches(name)) {
        true => Ok(()),
        false => {
            let some: Vec<String> = all.take(3).map(|name| format!("`{name}`")).collect();
            Err(Error::NoMatch { pattern: pattern.to_string(), names: some.join(", ") })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stand_for_any_text() {
        for (pattern, name, want) in [
            ("a", "a", Some(vec![])),
            ("a", "ab", None),
            ("*", "", Some(vec![""])),
            ("*", "a.b", Some(vec!["a.b"])),
            ("a*", "b", None),
            ("*.w", "x.w", Some(vec!["x"])),
            ("*.w", "x.w.b", None),
            ("l.*.*.w", "l.0.a.b.w", Some(vec!["0", "a.b"])),
            ("**", "ab", Some(vec!["", "ab"])),
            ("a*a", "a", None),
            ("*aab", "aaab", Some(vec!["a"])),
            ("*ä*", "xäy", Some(vec!["x", "y"])),
        ] {
            assert_eq!(Pattern::new(pattern).captures(name), want, "{pattern} {name}");
        }
    }

    #[test]
    fn new_names_take_over_what_the_stars_stood_for() {
        let rename = |text: &str| text.parse::<Rename>();
        assert_eq!(
            rename("layers.*.attn.*=h.*.a.*").map(|rename| rename.apply("layers.3.attn.w")),
            Ok(Some("h.3.a.w".to_string()))
        );
        assert!(matches!(rename("a.*=b"), Err(Error::BadText { .. })));
        assert!(matches!(rename("a"), Err(Error::BadText { .. })));
    }

    #[test]
    fn a_selection_takes_drops_and_renames() {
        let names = ["model.a", "model.b", "optim.a"];
        let selection = Selection {
            only: vec![Pattern::new("model.*")],
            exclude: vec![Pattern::new("*.b")],
            rename: vec!["model.*=*".parse().unwrap()],
        };
        let selected = selection.apply(names.into_iter()).unwrap();
        assert_eq!(selected, BTreeMap::from([("a".to_string(), "model.a")]));
    }

    #[test]
    fn what_matches_nothing_and_what_makes_two_one_is_refused() {
        let names = ["model.a", "optim.a"];
        let unmatched = |selection: Selection| selection.check(names.into_iter()).unwrap_err();
        let error =
            unmatched(Selection { only: vec![Pattern::new("modle.*")], ..Selection::default() });
        assert_eq!(error.to_string(), "no name matches `modle.*`; there are `model.a`, `optim.a`");
        let rename = vec!["model.*=*".parse().unwrap(), "optim.*=*".parse().unwrap()];
        let selection = Selection { rename, ..Selection::default() };
        let error = selection.apply(names.into_iter()).unwrap_err();
        assert_eq!(error.to_string(), "`model.a` and `optim.a` would both be called `a`");
    }
}
