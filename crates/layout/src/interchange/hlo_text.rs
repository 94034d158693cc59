//! The grammar of XLA's shardings.
//!
//! ```text
//! sharding := "{replicated}" | "{unreduced}" | "{maximal device=" number "}"
//!           | "{devices=[" tiles "]" devices [" last_tile_dim_replicate" | " last_tile_dims={" kinds "}"] "}"
//! devices  := "<=[" sizes "]" ["T(" order ")"]     an iota, reshaped and transposed
//!           | number ("," number)*                 a list
//! kind     := "replicated" | "unreduced"
//! ```
//!
//! `tiles` has one number per tensor dim, into how many tiles it is cut, and one per kind, how many
//! devices hold the same tile.

use super::scan::Scanner;
use crate::Result;

pub(super) const WHAT: &str = "HLO sharding";

/// A sharding as written, before the tensor and the mesh are known.
pub(super) enum Sharding {
    Replicated,
    Unreduced,
    Maximal { device: usize },
    Tiled { tiles: Vec<usize>, devices: Devices, kinds: Vec<Kind> },
}

/// The array of devices, tile after tile.
pub(super) enum Devices {
    Iota { sizes: Vec<usize>, order: Vec<usize> },
    List(Vec<usize>),
}

/// What a tile dim beyond those of the tensor is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Replicated,
    Unreduced,
}

impl Sharding {
    pub(super) fn parse(text: &str) -> Result<Sharding> {
        let mut scan = Scanner::new(WHAT, text);
        scan.expect("{", "it starts with `{`")?;
        let sharding = match scan.word() {
            "replicated" => Sharding::Replicated,
            "unreduced" => Sharding::Unreduced,
            "maximal" => {
                scan.expect("device=", "`maximal` is followed by `device=` and a number")?;
                Sharding::Maximal { device: scan.number()? }
            }
            "devices" => {
                scan.expect("=[", "`devices` is followed by `=[` and the number of tiles per dim")?;
                let tiles = scan.list("]", Scanner::number)?;
                let devices = parse_devices(&mut scan)?;
                let kinds = parse_kinds(&mut scan)?;
                if kinds.len() > tiles.len() {
                    return Err(scan.bad("it has more kinds of last tile dims than tile dims"));
                }
                Sharding::Tiled { tiles, devices, kinds }
            }
            "manual" => {
                return Err(scan.bad("what is cut by hand has no layout; give the tensor's sharding outside of that region"));
            }
            "mesh" => {
                return Err(scan.bad("shardings by names are not read here; give them in Shardy's form, #sdy.sharding<...>"));
            }
            _ => {
                return Err(
                    scan.bad("expected one of replicated, unreduced, maximal device=, devices=[")
                );
            }
        };
        scan.expect("}", "expected `}` (metadata and shard groups are not read: leave them out)")?;
        scan.end()?;
        Ok(sharding)
    }
}

fn parse_devices(scan: &mut Scanner<'_>) -> Result<Devices> {
    if !scan.eat("<=[") {
        let first = scan.number()?;
        let mut list = vec![first];
        while scan.eat(",") {
            list.push(scan.number()?);
        }
        return Ok(Devices::List(list));
    }
    let sizes = scan.list("]", Scanner::number)?;
    let order = match scan.eat("T(") {
        true => scan.list(")", Scanner::number)?,
        false => (0..sizes.len()).collect(),
    };
    let mut sorted = order.clone();
    sorted.sort_unstable();
    if !sorted.into_iter().eq(0..sizes.len()) {
        return Err(scan.bad("the order after `T` names every size after `<=` once, from 0"));
    }
    Ok(Devices::Iota { sizes, order })
}

fn parse_kinds(scan: &mut Scanner<'_>) -> Result<Vec<Kind>> {
    if scan.eat("last_tile_dim_replicate") {
        return Ok(vec![Kind::Replicated]);
    }
    if !scan.eat("last_tile_dims={") {
        return Ok(Vec::new());
    }
    scan.list("}", |scan| match scan.word() {
        "replicated" => Ok(Kind::Replicated),
        "unreduced" => Ok(Kind::Unreduced),
        _ => {
            Err(scan.bad("a last tile dim is replicated or unreduced; other kinds have no layout"))
        }
    })
}

#[cfg(test)]
mod tests {
    use crate::{Layout, interchange::check::reason};

    #[track_caller]
    fn check(text: &str, want: &str) {
        assert_eq!(reason(text, Layout::from_hlo), want);
    }

    #[test]
    fn bad_texts_say_what_is_wrong_and_what_to_do() {
        check("replicated", "it starts with `{`");
        check("", "it starts with `{`");
        let kinds = "expected one of replicated, unreduced, maximal device=, devices=[";
        check("{}", kinds);
        check("{{replicated}, {replicated}}", kinds);
        let close = "expected `}` (metadata and shard groups are not read: leave them out)";
        check("{replicated", close);
        check("{replicated metadata={op_name=\"a\"}}", close);
        check("{replicated} x", "unexpected text at the end");
        check(
            "{manual}",
            "what is cut by hand has no layout; give the tensor's sharding outside of that region",
        );
        check(
            "{mesh['x'=2], [{}]}",
            "shardings by names are not read here; give them in Shardy's form, #sdy.sharding<...>",
        );
        let number = "a number is missing or too large";
        check("{maximal device=}", number);
        check("{devices=8}", "`devices` is followed by `=[` and the number of tiles per dim");
        check("{devices=[8,1}", "a bracket is not closed, or a comma is missing");
        check("{devices=[8,-1]<=[8]}", number);
        check("{devices=[8,1]}", number);
        check("{devices=[8,1]<=[99999999999999999999999]}", number);
        check(
            "{devices=[]<=[] last_tile_dim_replicate}",
            "it has more kinds of last tile dims than tile dims",
        );
        check(
            "{devices=[2,1,4]<=[8] last_tile_dims={manual}}",
            "a last tile dim is replicated or unreduced; other kinds have no layout",
        );
        let order = "the order after `T` names every size after `<=` once, from 0";
        check("{devices=[8,1]<=[2,4]T(0)}", order);
        check("{devices=[8,1]<=[2,4]T(0,0)}", order);
        check("{devices=[8,1]<=[2,4]T(0,9)}", order);
    }
}
