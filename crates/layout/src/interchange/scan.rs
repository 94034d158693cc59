//! Reading text from left to right.

use crate::{LayoutError, Result, text::bad};

/// What is left of a text, and what the text should be.
pub(super) struct Scanner<'a> {
    what: &'static str,
    text: &'a str,
    rest: &'a str,
}

impl<'a> Scanner<'a> {
    pub(super) fn new(what: &'static str, text: &'a str) -> Scanner<'a> {
        Scanner { what, text, rest: text }
    }

    /// The error that this text is not what it should be.
    pub(super) fn bad(&self, why: &'static str) -> LayoutError {
        bad(self.text, self.what, why)
    }

    /// Whether `token` is next, after white space; if so it is taken.
    pub(super) fn eat(&mut self, token: &str) -> bool {
        match self.rest.trim_start().strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    /// Takes `token`, or fails for the reason given.
    pub(super) fn expect(&mut self, token: &str, why: &'static str) -> Result<()> {
        match self.eat(token) {
            true => Ok(()),
            false => Err(self.bad(why)),
        }
    }

    /// Takes the letters, digits, `_`, `-`, `.` and `$` that are next: a keyword, a name, or nothing.
    pub(super) fn word(&mut self) -> &'a str {
        self.take_while(|c| c.is_ascii_alphanumeric() || "_-.$".contains(c))
    }

    /// Takes a name in double or single quotes.
    pub(super) fn quoted(&mut self) -> Result<&'a str> {
        let quote = match (self.eat("\""), self.eat("'")) {
            (true, _) => '"',
            (false, true) => '\'',
            (false, false) => return Err(self.bad("an axis name in quotes is missing")),
        };
        let (name, rest) =
            self.rest.split_once(quote).ok_or_else(|| self.bad("a quote is not closed"))?;
        self.rest = rest;
        Ok(name)
    }

    /// Takes a whole number.
    pub(super) fn number(&mut self) -> Result<usize> {
        let digits = self.take_while(|c| c.is_ascii_digit());
        digits.parse().map_err(|_| self.bad("a number is missing or too large"))
    }

    /// Takes items with commas between them, up to and with `close`. A comma may follow the last.
    pub(super) fn list<T>(
        &mut self,
        close: &str,
        mut item: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<Vec<T>> {
        let mut items = Vec::new();
        while !self.eat(close) {
            items.push(item(self)?);
            if !self.eat(",") {
                self.expect(close, "a bracket is not closed, or a comma is missing")?;
                break;
            }
        }
        Ok(items)
    }

    /// Fails unless all was read.
    pub(super) fn end(&mut self) -> Result<()> {
        match self.rest.trim().is_empty() {
            true => Ok(()),
            false => Err(self.bad("unexpected text at the end")),
        }
    }

    fn take_while(&mut self, wanted: impl Fn(char) -> bool) -> &'a str {
        let trimmed = self.rest.trim_start();
        let end = trimmed.find(|c| !wanted(c)).unwrap_or(trimmed.len());
        let (taken, rest) = trimmed.split_at(end);
        self.rest = rest;
        taken
    }
}
