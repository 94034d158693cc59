//! The oracle on demo ops, in both directions, and the test of the tester: false rules must fail.

mod demo_ops;

use demo_ops::*;
use dtensor_layout::rule::{Law, MeshRow, Row, Rule};
use dtensor_testing::{
    dense::Dense,
    oracle::{
        LocalContext, MESHES, OracleOp, Sample, assert_known, check, holds, prove, undeclared,
    },
    panic_text,
};

#[test]
fn every_row_of_every_demo_op_is_true() {
    let n_rows: usize = OPS.iter().map(|op| prove(*op)).sum();
    // Not a number to keep, but far below it something would be skipped.
    assert!(n_rows > 2_000, "only {n_rows} rows");
}

#[test]
fn true_rows_that_no_rule_declares_are_known_by_reason() {
    let found: Vec<String> = OPS.iter().flat_map(|op| undeclared(*op, 2)).collect();
    assert_known(&found, include_str!("undeclared.txt"));
}

/// An op under a rule that is not its own.
struct Claim<'a> {
    op: &'a dyn OracleOp,
    rule: &'a str,
    laws: &'a [Law],
}

impl OracleOp for Claim<'_> {
    fn name(&self) -> String {
        self.op.name()
    }
    fn rule(&self, _: &[&[usize]]) -> Rule {
        Rule::of(self.rule, self.laws)
    }
    fn eval(&self, operands: &[Dense], context: &LocalContext) -> Result<Vec<Dense>, String> {
        self.op.eval(operands, context)
    }
    fn samples(&self) -> Vec<Sample> {
        self.op.samples()
    }
}

#[test]
fn false_rules_are_refused() {
    use Law::*;
    let claims: &[(&dyn OracleOp, &str, &[Law])] = &[
        (&EXP, "... -> ...", &[Linear]),
        (&EXP, "... -> ...", &[Affine]),
        (&NEG, "... -> ...", &[Increasing]),
        (&RELU, "... -> ...", &[Linear]),
        (&RELU, "... -> ...", &[Moves]),
        (&ABS, "... -> ...", &[Increasing]),
        (&ABS, "... -> ...", &[LinearIn(0)]),
        (&ADD, "..., ... -> ...", &[Multilinear]),
        (&ADD, "..., ... -> ...", &[Joint(dtensor_layout::ReduceOp::Max)]),
        (&SUB, "..., ... -> ...", &[Increasing]),
        (&MUL, "..., ... -> ...", &[Linear]),
        (&MUL, "..., ... -> ...", &[Increasing]),
        (&MAXIMUM, "..., ... -> ...", &[Linear]),
        (&MatMul, "... m k, ... k n -> ... m n", &[Linear]),
        (&MatMul, "... m k, ... k n -> ... m n @max", &[]),
        (&MatMul, "... m k, ... k n -> ... m n; R P(max) -> P(max)", &[]),
        (&Softmax, "... -> ...", &[]),
        (&Softmax, "... d! -> ... d!", &[Increasing]),
        (&Embedding, "v e, ... -> ... e", &[Multilinear]),
        (&Embedding, "v e, ... -> ... e @max", &[]),
        (&NormGrad, "b n, b n, n -> b n, n @max", &[]),
        (&NormGrad, "b n, b n, n -> b n, n", &[LinearIn(1)]),
    ];
    for (op, rule, laws) in claims {
        let claim = Claim { op: *op, rule, laws };
        for axis_sizes in MESHES {
            let refused = check(&claim, axis_sizes);
            assert!(refused.is_err(), "{}: `{rule}` {laws:?} passed on {axis_sizes:?}", op.name());
        }
    }
}

#[test]
fn false_cuts_of_a_reshape_are_refused() {
    let check = |from: &'static [usize], to: &'static [usize], row: &str, n_ranks: usize| {
        let op = Reshape { from, to };
        let row = MeshRow(vec![row.parse::<Row>().unwrap()]);
        holds(&op, &Sample::of(&[from]), &row, &[n_ranks])
    };
    assert_eq!(check(&[8, 3], &[2, 4, 3], "S(0) -> S(0)", 2), Ok(()));
    assert_eq!(check(&[14], &[7, 2], "S(0) -> S(0)", 4), Ok(()));
    // 3 rows over 2 ranks are 2 and 1; 6 elements are 3 and 3.
    let why = check(&[6], &[3, 2], "S(0) -> S(0)", 2).unwrap_err();
    assert!(why.contains("refuses on rank 0"), "{why}");
    // The halves are of the right size but of other elements.
    let why = check(&[8], &[2, 4], "S(0) -> S(1)", 2).unwrap_err();
    assert!(why.contains("where the dense result is"), "{why}");
}

#[test]
fn a_false_row_names_op_shapes_mesh_row_and_reason() {
    let claim = Claim { op: &Softmax, rule: "... -> ...", laws: &[] };
    let rows = check(&claim, &[2]).unwrap_err();
    let text = rows[0].to_string();
    assert!(
        text.starts_with("softmax [[5, 4]] on [2] ranks: (S(1) -> S(1)): result 0: is "),
        "{text}"
    );
    assert!(panic_text(|| prove(&claim)).starts_with("rows that are not true:\nsoftmax"));
}

#[test]
fn an_op_without_samples_fails() {
    struct Empty;
    impl OracleOp for Empty {
        fn name(&self) -> String {
            "empty".to_string()
        }
        fn rule(&self, _: &[&[usize]]) -> Rule {
            Rule::of("... -> ...", &[])
        }
        fn eval(&self, operands: &[Dense], _: &LocalContext) -> Result<Vec<Dense>, String> {
            Ok(operands.to_vec())
        }
        fn samples(&self) -> Vec<Sample> {
            Vec::new()
        }
    }
    assert_eq!(panic_text(|| prove(&Empty)), "empty: an op needs samples");
}

#[test]
fn a_forgotten_law_is_found() {
    let forgetful = Claim { op: &NEG, rule: "... -> ...", laws: &[Law::Linear] };
    assert_eq!(undeclared(&forgetful, 2), ["neg: P(max) -> P(min)", "neg: P(min) -> P(max)"]);
}

#[test]
fn the_list_of_known_rows_has_reasons_and_nothing_stale() {
    let found = ["exp: P(sum) -> P(product)".to_string()];
    assert_known(&found, "# heading\n\nexp: P(sum) -> P(product)  # overflows early");
    assert!(
        panic_text(|| assert_known(&found, "exp: P(sum) -> P(product)")).contains("needs a reason")
    );
    assert!(
        panic_text(|| assert_known(&found, "")).contains("reason):\nexp: P(sum) -> P(product)\n")
    );
    assert_known(&found, "exp: *  # overflows early");
    assert!(
        panic_text(|| assert_known(&found, "expm1: *  # x")).contains("remove them):\nexpm1: *")
    );
    let stale = "exp: P(sum) -> P(product)  # x\nneg: R -> R  # y";
    assert!(panic_text(|| assert_known(&found, stale)).contains("remove them):\nneg: R -> R"));
}

/// All reshapes between these shapes, on several numbers of ranks and on two axes.
#[test]
fn every_row_of_every_reshape_is_true() {
    const SHAPES: &[&[usize]] = &[
        &[24],
        &[4, 6],
        &[6, 4],
        &[2, 12],
        &[12, 2],
        &[2, 3, 4],
        &[4, 3, 2],
        &[8, 3],
        &[3, 8],
        &[1, 24],
        &[24, 1],
        &[2, 1, 2, 6],
    ];
    let mut n_cuts = 0;
    for from in SHAPES {
        for to in SHAPES {
            let op = Reshape { from, to };
            let sample = Sample::of(&[from]);
            let choices = op.rule(&[from]).choices(&[from]).unwrap();
            for axis_sizes in [&[2][..], &[3], &[4], &[5], &[2, 2], &[2, 3], &[3, 2]] {
                for row in choices.on_mesh(axis_sizes) {
                    let cuts = row.0.iter().all(|row| row.operands[0].shard_dim().is_some());
                    if !cuts {
                        continue;
                    }
                    n_cuts += 1;
                    let rule = op.rule(&[from]);
                    assert_eq!(
                        holds(&op, &sample, &row, axis_sizes),
                        Ok(()),
                        "{rule}: {row} on {axis_sizes:?}"
                    );
                }
            }
        }
    }
    assert!(n_cuts > 600, "only {n_cuts} rows cut something");
}
