//! Every rule of the table, proven by brute force.

use dtensor::{
    DType, Layout,
    op::{LocalContext, Meta, Sample as OpSample},
    ops::ops,
    rule::Rule,
};
use dtensor_testing::{
    dense::Dense,
    oracle::{self, OracleOp, Sample},
};

use crate::support::{dense, tensor};

/// One sample of an operation, as the oracle sees it.
struct Adapted(OpSample);

impl OracleOp for Adapted {
    fn name(&self) -> String {
        self.0.op.name().to_string()
    }

    fn rule(&self, _: &[&[usize]]) -> Rule {
        self.0.op.rule(&self.0.metas()).unwrap()
    }

    fn eval(&self, x: &[Dense], cx: &oracle::LocalContext) -> Result<Vec<Dense>, String> {
        let metas = self.0.metas();
        let locals = x.iter().zip(&metas).map(|(x, meta)| tensor(x, meta.dtype));
        let locals = locals.collect::<Result<Vec<_>, _>>()?;
        let context = match cx.results().is_empty() {
            true => LocalContext::whole(),
            false => {
                let results = self.0.op.infer(&metas).map_err(|error| error.to_string())?;
                let mesh = cx.operands()[0].mesh();
                let place = |(meta, placements): (&Meta, &Vec<_>)| {
                    // Proven for numbers; that a dtype has the reduction is tested elsewhere.
                    let dtype = if meta.dtype.is_float() { meta.dtype } else { DType::F64 };
                    Layout::new(&meta.shape, dtype, mesh, placements)
                };
                let results = results.iter().zip(cx.results()).map(place);
                let results = results.collect::<Result<Vec<_>, _>>();
                LocalContext::new(
                    cx.operands().to_vec(),
                    results.map_err(|error| error.to_string())?,
                    cx.coord().to_vec(),
                )
            }
        };
        let results = self.0.op.eval(&locals.iter().collect::<Vec<_>>(), &context);
        let results = results.map_err(|error| error.to_string())?;
        results.iter().map(|result| dense(result).map_err(|error| error.to_string())).collect()
    }

    fn samples(&self) -> Vec<Sample> {
        let operands = self.0.operands.iter();
        let operands = operands.map(|operand| (operand.shape.clone(), operand.values));
        vec![Sample { operands: operands.collect() }]
    }
}

fn adapted() -> impl Iterator<Item = Adapted> {
    ops().flat_map(|record| (record.samples)().into_iter().map(Adapted))
}

#[test]
fn every_operation_has_a_name_of_its_own_and_samples_of_it() {
    let mut names = std::collections::BTreeSet::new();
    for record in ops() {
        assert!(names.insert(record.name), "{} is there twice", record.name);
        let samples = (record.samples)();
        assert!(!samples.is_empty(), "{} has no samples", record.name);
        for sample in samples {
            assert_eq!(sample.op.name(), record.name);
        }
    }
}

/// `UPDATE_EXPECT=1` writes it anew.
#[test]
fn the_table_of_the_documentation_is_that_of_the_operations() {
    let made = dtensor::ops::table_markdown().unwrap();
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/src/ops/table.md");
        std::fs::write(file, &made).unwrap();
        return;
    }
    assert!(
        made == include_str!("../../src/ops/table.md"),
        "table.md is old: run this test with UPDATE_EXPECT=1"
    );
}

#[test]
fn every_rule_prints_and_parses_back() {
    for sample in adapted() {
        let rule = sample.rule(&[]);
        assert_eq!(rule.to_string().parse(), Ok(rule), "{}", sample.name());
    }
}

#[test]
fn every_row_of_every_rule_is_true() {
    let n_rows: usize = adapted().map(|sample| oracle::prove(&sample)).sum();
    assert!(n_rows > 1000, "only {n_rows} rows");
}

#[test]
fn true_rows_that_no_rule_has_are_known() {
    let mut found = std::collections::BTreeSet::new();
    for record in ops() {
        // The first is typical; searching all combinations of four operands would take minutes.
        for sample in (record.samples)().into_iter().take(1).filter(|one| one.operands.len() < 4) {
            found.extend(oracle::undeclared(&Adapted(sample), 2));
        }
    }
    let found: Vec<String> = found.into_iter().collect();
    let known = concat!(
        include_str!("undeclared/elementwise.txt"),
        include_str!("undeclared/reduce.txt"),
        include_str!("undeclared/products.txt"),
        include_str!("undeclared/movement.txt"),
        include_str!("undeclared/indexing.txt"),
        include_str!("undeclared/order.txt"),
        include_str!("undeclared/nn.txt"),
        include_str!("undeclared/linalg.txt"),
        include_str!("undeclared/fft.txt"),
    );
    oracle::assert_known(&found, known);
}
