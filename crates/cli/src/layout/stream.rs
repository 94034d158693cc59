use std::io::BufRead;

use dtensor_layout::DType;
use serde_json::{Value, json};

use crate::{
    error::{Error, Result},
    output::Out,
};

use super::{
    answer::{self, Form},
    question::Question,
};

/// Answers every line of `input` with one line. A bad one gets `{"error": ..., "line": ...}` and
/// does not end the conversation, but shows in the exit code.
pub fn answer_lines(
    mut input: impl BufRead,
    out: &mut Out,
    dtype: DType,
    form: &Form,
) -> Result<()> {
    let mut all_answered = true;
    let mut line = Vec::new();
    for number in 1usize.. {
        line.clear();
        // Bytes rather than text: a line that is not UTF-8 is one bad line, not the end of input.
        if input.read_until(b'\n', &mut line)? == 0 {
            break;
        }
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let answer = answer_line(&line, dtype, form).unwrap_or_else(|error| {
            all_answered = false;
            json!({"error": error.to_string(), "line": number})
        });
        out.json(&answer)?;
    }
    match all_answered {
        true => Ok(()),
        false => Err(Error::AlreadyReported),
    }
}

fn answer_line(line: &[u8], dtype: DType, form: &Form) -> Result<Value> {
    let value = serde_json::from_slice(line)
        .map_err(|error| Error::usage(format!("not a JSON line: {error}")))?;
    let question = Question::from_json(&value, dtype)?;
    answer::json(&question, &question.layout()?, form)
}
