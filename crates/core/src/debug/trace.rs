//! What was communicated, for other programs.

use std::fmt::Write as _;

use super::{CommDebug, CommEvent, ModuleSpan};

impl CommDebug {
    /// As JSON: totals, per operation and call, and every event.
    pub fn to_json(&self) -> String {
        let mut text =
            format!("{{\"calls\":{},\"bytes\":{},\"ops\":{{", self.calls(), self.bytes());
        for (number, (op, times)) in self.ops.iter().enumerate() {
            let comma = if number == 0 { "" } else { "," };
            let _ = write!(text, "{comma}{}:{times}", quoted(op));
        }
        text.push_str("},\"events\":[");
        for (number, CommEvent { op, module, phase, kind, bytes, at, took }) in
            self.events.iter().enumerate()
        {
            let comma = if number == 0 { "" } else { "," };
            let (op, at, took) = (quoted(op), at.as_secs_f64() * 1e6, took.as_secs_f64() * 1e6);
            let module = module.as_ref().map_or_else(|| "null".into(), |module| quoted(module));
            let _ = write!(
                text,
                "{comma}{{\"op\":{op},\"module\":{module},\"phase\":\"{phase}\",\"call\":\"{kind}\",\"bytes\":{bytes},\"at_us\":{at:.3},\
                 \"took_us\":{took:.3}}}"
            );
        }
        text.push_str("]}");
        text
    }

    /// As a trace that Chrome (`chrome://tracing`) and Perfetto show: a process per rank, with a line for the modules
    /// that ran (thread 0) and one for what was communicated (thread 1). The traces of several ranks can be put together by
    /// joining their `traceEvents`.
    pub fn to_chrome_trace(&self, rank: usize) -> String {
        let mut text = format!(
            "{{\"traceEvents\":[{{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":{rank},\
             \"args\":{{\"name\":\"rank {rank}\"}}}}"
        );
        for (line, name) in ["modules", "communication"].into_iter().enumerate() {
            let _ = write!(
                text,
                ",{{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":{rank},\"tid\":{line},\
                 \"args\":{{\"name\":\"{name}\"}}}}"
            );
        }
        for ModuleSpan { module, phase, at, took } in &self.modules {
            let (at, took) = (at.as_secs_f64() * 1e6, took.as_secs_f64() * 1e6);
            let _ = write!(
                text,
                ",{{\"name\":{},\"cat\":\"module\",\"ph\":\"X\",\"ts\":{at:.3},\"dur\":{took:.3},\
                 \"pid\":{rank},\"tid\":0,\"args\":{{\"phase\":\"{phase}\"}}}}",
                quoted(module)
            );
        }
        for CommEvent { op, module, phase, kind, bytes, at, took } in &self.events {
            let (op, at, took) = (quoted(op), at.as_secs_f64() * 1e6, took.as_secs_f64() * 1e6);
            let module = module.as_ref().map_or_else(|| "null".into(), |module| quoted(module));
            let _ = write!(
                text,
                ",{{\"name\":\"{kind}\",\"cat\":{op},\"ph\":\"X\",\"ts\":{at:.3},\"dur\":{took:.3},\
                 \"pid\":{rank},\"tid\":1,\"args\":{{\"op\":{op},\"module\":{module},\
                 \"phase\":\"{phase}\",\"bytes\":{bytes}}}}}"
            );
        }
        text.push_str("]}");
        text
    }
}

/// Names of operations are identifiers, but a user's may be anything.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => {
                quoted.push('\\');
                quoted.push(character);
            }
            control if control.is_control() => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(control));
            }
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}
