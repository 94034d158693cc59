//! Texts.

use std::{collections::BTreeSet, ops::Range, path::Path};

use dtensor::{DTensor, DType, DeviceMesh, Tensor};

use super::strategy::Strategy;
use crate::error::{Error, Result};

/// A text as numbers of characters.
pub struct Text {
    /// Sorted; a token is a place in it.
    pub characters: Vec<char>,
    tokens: Vec<i64>,
}

impl Text {
    /// From a file, or made up.
    pub fn new(file: Option<&Path>, seq: usize) -> Result<Text> {
        let text = match file {
            Some(path) => std::fs::read_to_string(path)
                .map_err(|error| Error::usage(format!("--data {}: {error}", path.display())))?,
            None => made_up(1 << 20),
        };
        let characters: Vec<char> = text.chars().collect::<BTreeSet<char>>().into_iter().collect();
        let number = |c: char| characters.binary_search(&c).unwrap_or(0) as i64;
        let tokens: Vec<i64> = text.chars().map(number).collect();
        if tokens.len() < seq + 2 {
            let message =
                format!("a text of {} characters is too short for --seq {seq}", tokens.len());
            return Err(Error::usage(message).with_hint("give a longer text, or a smaller --seq"));
        }
        Ok(Text { characters, tokens })
    }

    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// The tokens of a string; characters that the text does not have are left out.
    pub fn tokens_of(&self, text: &str) -> Vec<i64> {
        let number = |c: char| self.characters.binary_search(&c).ok().map(|place| place as i64);
        text.chars().filter_map(number).collect()
    }

    /// What a token stands for.
    pub fn character(&self, token: i64) -> char {
        usize::try_from(token).ok().and_then(|at| self.characters.get(at)).copied().unwrap_or('?')
    }

    /// Some rows of the batch of a step: tokens and those that follow each, the same for every mesh.
    pub fn batch(
        &self,
        step: u64,
        seed: u64,
        rows: Range<usize>,
        seq: usize,
        strategy: &Strategy,
        mesh: &DeviceMesh,
    ) -> dtensor::Result<(DTensor, DTensor)> {
        let last = (self.tokens.len() - seq - 1) as u64;
        let batch = rows.len();
        let mut inputs = Vec::with_capacity(batch * seq);
        let mut targets = Vec::with_capacity(batch * seq);
        for row in rows {
            let start = (mixed(seed, step, row as u64) % (last + 1)) as usize;
            inputs.extend_from_slice(&self.tokens[start..start + seq]);
            targets.extend_from_slice(&self.tokens[start + 1..=start + seq]);
        }
        let place = |tokens: &[i64]| {
            let whole = Tensor::from_slice(tokens, &[batch, seq])?;
            debug_assert_eq!(whole.dtype(), DType::I64);
            strategy.place(&whole, mesh)
        };
        Ok((place(&inputs)?, place(&targets)?))
    }
}

/// A number that depends on three others, by the finaliser of splitmix64.
fn mixed(seed: u64, step: u64, row: u64) -> u64 {
    let mut x =
        seed ^ step.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ row.wrapping_mul(0xD1B5_4A32_D192_ED03);
    for factor in [0xBF58_476D_1CE4_E5B9, 0x94D0_49BB_1331_11EB] {
        x = (x ^ (x >> 30)).wrapping_mul(factor);
    }
    x ^ (x >> 31)
}

/// Little stories, always the same ones: enough rules to be learnt, and nobody's property.
fn made_up(length: usize) -> String {
    const WHO: [&str; 12] = [
        "the old sailor",
        "a young fox",
        "the miller",
        "the queen of the north",
        "a clockmaker",
        "the lighthouse keeper",
        "a small grey owl",
        "the baker's daughter",
        "a wandering poet",
        "the ferryman",
        "my grandmother",
        "a tired soldier",
    ];
    const DID: [&str; 12] = [
        "found",
        "carried",
        "lost",
        "painted",
        "sold",
        "buried",
        "followed",
        "remembered",
        "stole",
        "mended",
        "counted",
        "praised",
    ];
    const WHAT: [&str; 12] = [
        "a silver key",
        "the last lantern",
        "seven white stones",
        "an empty boat",
        "the broken bell",
        "a letter without a name",
        "the winter apples",
        "a map of the coast",
        "two wooden horses",
        "the blue kettle",
        "a song about rain",
        "the sleeping cat",
    ];
    const WHERE: [&str; 10] = [
        "by the river",
        "under the bridge",
        "behind the mill",
        "on the long road",
        "in the garden",
        "at the edge of the sea",
        "near the market",
        "among the hills",
        "beside the church",
        "in a room full of clocks",
    ];
    const WHEN: [&str; 8] = [
        "In the morning",
        "Every autumn",
        "That night",
        "Long ago",
        "When the snow came",
        "On the third day",
        "At noon",
        "Before the war",
    ];
    const SAID: [&str; 8] = [
        "it is later than you think",
        "nothing is ever lost for good",
        "the wind will turn",
        "I have seen it before",
        "the sea keeps what it is given",
        "ask me again tomorrow",
        "there are three doors and one key",
        "we should go home",
    ];
    let mut state = 1_u64;
    let mut pick = |n: usize| {
        state = state.wrapping_add(1);
        (mixed(7, state, 3) % n as u64) as usize
    };
    let mut text = String::with_capacity(length + 200);
    while text.len() < length {
        let who = WHO[pick(WHO.len())];
        match pick(4) {
            0 => {
                let (when, did) = (WHEN[pick(WHEN.len())], DID[pick(DID.len())]);
                let (what, place) = (WHAT[pick(WHAT.len())], WHERE[pick(WHERE.len())]);
                text += &format!("{when}, {who} {did} {what} {place}. ");
            }
            1 => {
                let mut letters = who.chars();
                let first = letters.next().map(|c| c.to_ascii_uppercase()).unwrap_or_default();
                let said = SAID[pick(SAID.len())];
                text += &format!("{first}{} said: \"{said}.\" ", letters.as_str());
            }
            2 => {
                let other = WHO[pick(WHO.len())];
                let (did, what) = (DID[pick(DID.len())], WHAT[pick(WHAT.len())]);
                text += &format!("Then {who} {did} {what}, and {other} was glad. ");
            }
            _ => {
                let (n, place) = (2 + pick(7), WHERE[pick(WHERE.len())]);
                let number = ["two", "three", "four", "five", "six", "seven", "eight"][n - 2];
                text += &format!(
                    "There were {number} houses {place}, and in one of them lived {who}. "
                );
            }
        }
        if pick(6) == 0 {
            text.pop();
            text.push('\n');
        }
    }
    text
}
