//! How a first cause travels from the rank that found it to the others.

use std::{sync::Arc, time::Duration};

use super::wire::{Reader, Writer};
use crate::{
    CommError,
    table::{CallRow, CallTable, Did},
    transport::FirstCause,
};

const MISMATCH: u64 = 0;
const RANK_LEFT: u64 = 1;
const RANK_FAILED: u64 = 2;
const DEADLINE: u64 = 3;

pub(super) fn write(out: &mut Writer, cause: &FirstCause) {
    out.number(cause.rank as u64);
    match cause.error.first_cause() {
        CommError::Mismatch { table } => {
            out.number(MISMATCH);
            write_table(out, table);
        }
        CommError::RankLeft { rank, table } => {
            out.number(RANK_LEFT);
            out.number(*rank as u64);
            write_table(out, table);
        }
        CommError::Deadline { waited, table } => {
            out.number(DEADLINE);
            out.number(waited.as_nanos() as u64);
            write_table(out, table);
        }
        CommError::RankFailed { rank, cause, table } => {
            write_failed(out, *rank, cause, table.as_deref());
        }
        // What only makes sense where it happened, such as the code of an MPI function, is for the
        // others the failure of that rank.
        other => write_failed(out, cause.rank, &other.to_string(), None),
    }
}

pub(super) fn read(from: &mut Reader<'_>) -> Option<FirstCause> {
    let finder = from.size()?;
    let error = match from.number()? {
        MISMATCH => CommError::Mismatch { table: read_table(from)? },
        RANK_LEFT => CommError::RankLeft { rank: from.size()?, table: read_table(from)? },
        DEADLINE => {
            let waited = Duration::from_nanos(from.number()?);
            CommError::Deadline { waited, table: read_table(from)? }
        }
        RANK_FAILED => {
            let (rank, cause) = (from.size()?, from.text()?.into());
            let table = if from.number()? == 0 { None } else { Some(read_table(from)?) };
            CommError::RankFailed { rank, cause, table }
        }
        _ => return None,
    };
    Some(FirstCause { rank: finder, error })
}

fn write_failed(out: &mut Writer, rank: usize, cause: &str, table: Option<&CallTable>) {
    out.number(RANK_FAILED);
    out.number(rank as u64);
    out.text(cause);
    out.number(u64::from(table.is_some()));
    if let Some(table) = table {
        write_table(out, table);
    }
}

fn write_table(out: &mut Writer, table: &CallTable) {
    // A sequence number of 2^64 - 1 is never reached.
    out.number(table.sequence.unwrap_or(u64::MAX));
    out.number(table.members.len() as u64);
    for &rank in &*table.members {
        out.number(rank as u64);
    }
    out.number(table.rows.len() as u64);
    let mut rows = &table.rows[..];
    // Neighbours that did the same share a text, so that a table of a thousand ranks stays small.
    while let Some(first) = rows.first() {
        let same = rows.iter().take_while(|row| row.did == first.did).count();
        out.number(same as u64);
        for row in &rows[..same] {
            out.number(row.rank as u64);
        }
        let (kind, text) = match &first.did {
            Did::Call(text) => (0, &**text),
            Did::NotHere => (1, ""),
            Did::Left => (2, ""),
            Did::Failed => (3, ""),
        };
        out.number(kind);
        out.text(text);
        rows = &rows[same..];
    }
}

fn read_table(from: &mut Reader<'_>) -> Option<Arc<CallTable>> {
    let sequence = Some(from.number()?).filter(|&sequence| sequence != u64::MAX);
    let n_members = from.length()?;
    let members = (0..n_members).map(|_| from.size()).collect::<Option<_>>()?;
    let n_rows = from.length()?;
    let mut rows = Vec::with_capacity(n_rows);
    while rows.len() < n_rows {
        let same = from.length()?.max(1);
        let ranks: Vec<usize> = (0..same).map(|_| from.size()).collect::<Option<_>>()?;
        let (kind, text) = (from.number()?, from.text()?);
        let did = match kind {
            0 => Did::Call(text.into()),
            1 => Did::NotHere,
            2 => Did::Left,
            3 => Did::Failed,
            _ => return None,
        };
        rows.extend(ranks.into_iter().map(|rank| CallRow { rank, did: did.clone() }));
    }
    Some(Arc::new(CallTable { sequence, members, rows }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Arc<CallTable> {
        let rows = [Did::Call("barrier()".into()), Did::Call("barrier()".into()), Did::Left]
            .into_iter()
            .enumerate()
            .map(|(i, did)| CallRow { rank: 2 * i, did })
            .collect();
        Arc::new(CallTable { sequence: Some(7), members: [0, 2, 4].into(), rows })
    }

    #[test]
    fn every_cause_arrives_as_it_was_sent() {
        let causes = [
            CommError::Mismatch { table: table() },
            CommError::RankLeft { rank: 4, table: table() },
            CommError::RankFailed { rank: 1, cause: "panicked: boom".into(), table: None },
            CommError::RankFailed { rank: 1, cause: "died".into(), table: Some(table()) },
            CommError::Deadline { waited: Duration::from_millis(1500), table: table() },
        ];
        for error in causes {
            let mut out = Writer::default();
            write(&mut out, &FirstCause { rank: 3, error: error.clone() });
            let bytes = out.finish();
            let read_back = read(&mut Reader::new(&bytes)).unwrap();
            assert_eq!((read_back.rank, &read_back.error), (3, &error));
            for end in 0..bytes.len() {
                assert!(read(&mut Reader::new(&bytes[..end])).is_none(), "{error} cut at {end}");
            }
        }
    }

    #[test]
    fn an_mpi_error_is_the_failure_of_its_rank_elsewhere() {
        let error = CommError::Mpi { call: "MPI_Test", code: 15, text: "truncated".into() };
        let mut out = Writer::default();
        write(&mut out, &FirstCause { rank: 3, error });
        let error = read(&mut Reader::new(&out.finish())).unwrap().error;
        assert!(matches!(&error, CommError::RankFailed { rank: 3, .. }));
        assert!(error.to_string().contains("MPI_Test: MPI error 15: truncated"), "{error}");
    }
}
