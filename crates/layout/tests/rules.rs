//! Rules: golden rows, text, combination on meshes, refusals. That the rows are *true* is proven by
//! the oracle of `dtensor-testing`, in its own tests.
#![allow(clippy::unwrap_used)] // Helpers of tests: an unwrap that fails is a test that fails.

use dtensor_layout::{
    ReduceOp,
    rule::{Law, Law::*, MeshRow, Row, Rule, RuleError},
};
use proptest::prelude::*;

/// The rows of a rule on one axis of two ranks, but for the replicated one.
#[track_caller]
fn check(rule: &str, laws: &[Law], shapes: &[&[usize]], want: &[&str]) {
    check_on(&Rule::of(rule, laws), shapes, 2, want);
}

#[track_caller]
fn check_on(rule: &Rule, shapes: &[&[usize]], n_ranks: usize, want: &[&str]) {
    let rows = rule.rows(shapes, n_ranks).unwrap();
    assert_eq!(rows[0], Row::replicated(rule.n_operands(), rule.n_results()));
    let got: Vec<String> = rows[1..].iter().map(Row::to_string).collect();
    assert_eq!(got, want, "rows of `{rule}` for {shapes:?} on {n_ranks} ranks");
}

#[test]
fn matmul_cuts_each_letter_and_passes_one_pending_operand() {
    check(
        "... m k, ... k n -> ... m n",
        &[Multilinear],
        &[&[5, 2, 4], &[5, 4, 6]],
        &[
            "S(0) S(0) -> S(0)",
            "S(1) R -> S(1)",
            "S(2) S(1) -> P(sum)",
            "R S(2) -> S(2)",
            "P(sum) R -> P(sum)",
            "R P(sum) -> P(sum)",
            "P(avg) R -> P(avg)",
            "R P(avg) -> P(avg)",
        ],
    );
}

#[test]
fn leading_dims_broadcast_from_the_right() {
    let cut = |shapes: &[&[usize]], want: &[&str]| check("..., ... -> ...", &[], shapes, want);
    cut(&[&[4, 2], &[4, 2]], &["S(0) S(0) -> S(0)", "S(1) S(1) -> S(1)"]);
    cut(&[&[4, 2], &[2]], &["S(0) R -> S(0)", "S(1) S(0) -> S(1)"]);
    cut(&[&[4, 1], &[3]], &["S(0) R -> S(0)", "R S(0) -> S(1)"]);
    cut(&[&[1], &[0]], &["R S(0) -> S(0)"]);
    cut(&[&[], &[]], &[]);
}

#[test]
fn a_dim_of_size_one_that_nothing_broadcasts_is_cut_like_any_other() {
    // `R -> S(0)` would be false: every rank would hold the whole result.
    check("... -> ...", &[], &[&[1, 4]], &["S(0) -> S(0)", "S(1) -> S(1)"]);
    check("..., ... -> ...", &[], &[&[1], &[1]], &["S(0) S(0) -> S(0)"]);
}

#[test]
fn the_ellipsis_may_stand_anywhere() {
    check("d ... -> ...", &[], &[&[4, 5, 6]], &["S(0) -> P(sum)", "S(1) -> S(0)", "S(2) -> S(1)"]);
    check(
        "a ... b -> b ... a",
        &[],
        &[&[4, 5, 6]],
        &["S(0) -> S(2)", "S(1) -> S(1)", "S(2) -> S(0)"],
    );
}

#[test]
fn one_letter_cuts_one_result_and_reduces_the_other() {
    check(
        "b n, b n, n -> b n, n",
        &[LinearIn(0)],
        &[&[4, 2], &[4, 2], &[2]],
        &[
            "S(0) S(0) R -> S(0) P(sum)",
            "S(1) S(1) S(0) -> S(1) S(0)",
            "P(sum) R R -> P(sum) P(sum)",
            "P(avg) R R -> P(avg) P(avg)",
        ],
    );
}

#[test]
fn a_marked_letter_is_never_cut() {
    check("... d! -> ... d!", &[], &[&[4, 3]], &["S(0) -> S(0)"]);
    check("d! -> d", &[], &[&[4]], &[]);
}

#[test]
fn vocabulary_parallel_embedding_is_a_pending_sum() {
    check(
        "v e, ... -> ... e",
        &[LinearIn(0)],
        &[&[10, 6], &[3]],
        &[
            "S(0) R -> P(sum)",
            "S(1) R -> S(1)",
            "R S(0) -> S(0)",
            "P(sum) R -> P(sum)",
            "P(avg) R -> P(avg)",
        ],
    );
}

#[test]
fn laws_say_which_pending_reductions_pass() {
    let unary = |laws: &[Law], want: &[&str]| check("->", laws, &[&[]], want);
    let binary = |laws: &[Law], want: &[&str]| check(", ->", laws, &[&[], &[]], want);
    unary(
        &[Linear, Decreasing],
        &["P(sum) -> P(sum)", "P(avg) -> P(avg)", "P(max) -> P(min)", "P(min) -> P(max)"],
    );
    unary(&[Increasing], &["P(max) -> P(max)", "P(min) -> P(min)"]);
    unary(
        &[Moves],
        &[
            "P(sum) -> P(sum)",
            "P(avg) -> P(avg)",
            "P(max) -> P(max)",
            "P(min) -> P(min)",
            "P(product) -> P(product)",
        ],
    );
    binary(
        &[Linear, Affine],
        &[
            "P(sum) P(sum) -> P(sum)",
            "P(avg) P(avg) -> P(avg)",
            "P(avg) R -> P(avg)",
            "R P(avg) -> P(avg)",
        ],
    );
    binary(
        &[IncreasingIn(0), DecreasingIn(1)],
        &["P(max) R -> P(max)", "P(min) R -> P(min)", "R P(max) -> P(min)", "R P(min) -> P(max)"],
    );
    binary(&[Joint(ReduceOp::Product)], &["P(product) P(product) -> P(product)"]);
    binary(
        &[MovesIn(0)],
        &[
            "P(sum) R -> P(sum)",
            "P(avg) R -> P(avg)",
            "P(max) R -> P(max)",
            "P(min) R -> P(min)",
            "P(product) R -> P(product)",
        ],
    );
}

#[test]
fn explicit_rows_stand_alone_or_beside_letters() {
    check("S(1) R -> P(sum)", &[], &[&[2, 3], &[4]], &["S(1) R -> P(sum)"]);
    check(
        "..., ... -> ...; R P(sum) -> P(max)",
        &[Affine],
        &[&[3], &[3]],
        &["S(0) S(0) -> S(0)", "R P(sum) -> P(max)", "P(avg) R -> P(avg)", "R P(avg) -> P(avg)"],
    );
}

#[test]
fn a_mean_over_a_cut_dim_needs_equal_shards() {
    let mean = Rule::reduce(2, &[1], false, ReduceOp::Avg).unwrap();
    let rows = |size: usize, n_ranks| {
        let rows = mean.rows(&[&[5, size]], n_ranks).unwrap();
        rows.iter().any(|row| row.to_string() == "S(1) -> P(avg)")
    };
    assert!(rows(6, 2) && rows(6, 3) && !rows(6, 4) && !rows(7, 2));
    // A sum takes any shards.
    check("a b -> a", &[], &[&[5, 7]], &["S(0) -> S(0)", "S(1) -> P(sum)"]);
}

#[test]
fn only_chunks_that_line_up_cut_a_group() {
    let split = Rule::of("(a b) -> a b {b=4}", &[]);
    check_on(&split, &[&[8]], 2, &["S(0) -> S(0)"]);
    check_on(&split, &[&[12]], 2, &[]);
    // 7 rows of 2 over 4 ranks: chunks of 2 rows, and of 4 elements. Uneven, but they line up.
    check_on(&Rule::of("(a b) -> a b {b=2}", &[]), &[&[14]], 4, &["S(0) -> S(0)"]);
    // Letters of size 1 are in nobody's way.
    check_on(&Rule::of("(a b) -> a b {a=1}", &[]), &[&[6]], 2, &["S(0) -> S(1)"]);
}

fn mesh_rows(rule: &Rule, shapes: &[&[usize]], sizes: &[usize]) -> Vec<String> {
    rule.choices(shapes).unwrap().on_mesh(sizes).map(|row| row.to_string()).collect()
}

#[test]
fn evenness_is_a_matter_of_all_axes_that_cut_the_letter() {
    let mean = Rule::reduce(1, &[0], false, ReduceOp::Avg).unwrap();
    let twice = "(S(0) -> P(avg)) x (S(0) -> P(avg))".to_string();
    let once = "(S(0) -> P(avg)) x (R -> R)".to_string();
    // 6 divides by either axis, but not by both.
    assert!(mesh_rows(&mean, &[&[6]], &[2, 2]).contains(&once));
    assert!(!mesh_rows(&mean, &[&[6]], &[2, 2]).contains(&twice));
    assert!(mesh_rows(&mean, &[&[8]], &[2, 2]).contains(&twice));
}

#[test]
fn a_minor_letter_is_cut_where_outer_axes_have_used_up_the_major_one() {
    let split = Rule::of("(a b) -> a b {a=2}", &[]);
    let both = "(S(0) -> S(0)) x (S(0) -> S(1))".to_string();
    assert!(mesh_rows(&split, &[&[8]], &[2, 2]).contains(&both));
    // The other way round, or with something left of `a`, it would be a strided shard.
    assert!(
        !mesh_rows(&split, &[&[8]], &[2, 2]).contains(&"(S(0) -> S(1)) x (S(0) -> S(0))".into())
    );
    let more = Rule::of("(a b) -> a b {a=4}", &[]);
    assert!(!mesh_rows(&more, &[&[16]], &[2, 2]).contains(&both));
}

#[test]
fn pending_reductions_that_do_not_commute_do_not_meet() {
    let neg = Rule::of("->", &[Linear, Decreasing]);
    let rows = mesh_rows(&neg, &[&[]], &[2, 3]);
    let has = |row: &str| rows.iter().any(|known| known == row);
    assert!(has("(P(sum) -> P(sum)) x (P(avg) -> P(avg))"));
    assert!(has("(P(max) -> P(min)) x (P(max) -> P(min))"));
    assert!(!has("(P(sum) -> P(sum)) x (P(max) -> P(min))"));
    assert!(!has("(P(max) -> P(min)) x (P(min) -> P(max))"));
}

#[test]
fn a_mesh_row_is_one_row_per_axis() {
    let rule = Rule::of("m k, k n -> m n", &[]);
    let choices = rule.choices(&[&[4, 6], &[6, 8]]).unwrap();
    let row =
        MeshRow(vec!["S(0) R -> S(0)".parse().unwrap(), "S(1) S(0) -> P(sum)".parse().unwrap()]);
    assert!(choices.on_mesh(&[2, 2]).any(|known| known == row));
    let text =
        |placements: Vec<_>| placements.iter().map(ToString::to_string).collect::<Vec<String>>();
    assert_eq!(text(row.operand(0)), ["S(0)", "S(1)"]);
    assert_eq!(text(row.operand(1)), ["R", "S(0)"]);
    assert_eq!(text(row.result(0)), ["S(0)", "P(sum)"]);
    // 4 x 4 combinations of R, m, k, n; all of them different.
    assert_eq!(choices.on_mesh(&[2, 2]).count(), 16);
}

#[test]
fn choices_are_judged_without_listing_them() {
    let choices = Rule::of("a -> @avg", &[]).choices(&[&[6]]).unwrap();
    assert_eq!(choices.rows().len(), 2);
    assert!(choices.allows(&[1], &[2]) && choices.allows(&[1, 0, 1], &[2, 5, 3]));
    assert!(!choices.allows(&[1], &[4]) && !choices.allows(&[1, 1], &[2, 2]));
    // Nonsense is not allowed, and does not panic.
    assert!(!choices.allows(&[7], &[2]) && !choices.allows(&[1], &[]));
    assert!(choices.allows(&[1; 40], &[1; 40]) && !choices.allows(&[1; 40], &[usize::MAX; 40]));
}

#[test]
fn reshapes_print_as_factors() {
    let check = |from: &[usize], to: &[usize], want: &str| {
        assert_eq!(Rule::reshape(from, to).unwrap().signature().to_string(), want);
    };
    check(&[2, 4, 32], &[8, 32], "a b c -> (a b) c {a=2, b=4}");
    check(&[8, 32], &[2, 4, 32], "(a b) c -> a b c {a=2, b=4}");
    check(&[8, 4], &[2, 16], "(a b) c -> a (b c) {a=2, b=4, c=4}");
    check(&[5], &[5], "a -> a");
    check(&[], &[1, 1], "-> 1 1");
    check(&[1, 6, 1], &[6], "1 a 1 -> a");
    // Where no factor is common, the stretch stays whole, and what follows it does not.
    check(&[2, 3, 7], &[3, 2, 7], "a! c! e -> b! d! e");
    check(&[4, 6, 5], &[6, 4, 5], "(a b!) d! f -> (a c!) e! f {a=2, b=2, c=3}");
    // Nothing to factorise: equal ends correspond.
    check(&[4, 0, 3], &[4, 0, 7, 3], "a b d -> a b c! d");
    check(&[0, 6], &[2, 0], "a! b! -> c! d!");
}

#[test]
fn a_reshape_of_many_dims_has_names_for_all_of_them() {
    let shape = vec![2; 60];
    let rule = Rule::reshape(&shape, &shape).unwrap();
    let text = rule.to_string();
    assert!(text.contains(" z a1 b1 ") && text.contains(" h2 ->"), "{text}");
    assert_eq!(text.parse(), Ok(rule.clone()));
    assert_eq!(rule.rows(&[&shape], 2).unwrap().len(), 1 + 60 + 5);
}

#[test]
fn reductions_keep_or_drop_their_dims() {
    let check = |dims: &[usize], keep, op, want: &str| {
        assert_eq!(Rule::reduce(3, dims, keep, op).unwrap().to_string(), want);
    };
    check(&[1], false, ReduceOp::Sum, "a b c -> a c | Linear");
    check(&[0, 2], true, ReduceOp::Max, "a b c -> 1 b 1 @max | Joint(max)");
    check(&[2, 1, 0], false, ReduceOp::Product, "a b c -> @product | Joint(product)");
    check(&[], false, ReduceOp::Avg, "a b c -> a b c @avg | Linear");
    for dims in [&[3][..], &[1, 1]] {
        let error = Rule::reduce(3, dims, false, ReduceOp::Sum).unwrap_err();
        assert_eq!(error, RuleError::CannotReduce { dims: dims.to_vec(), n_dims: 3 });
    }
}

#[test]
fn rules_print_in_one_form() {
    let check = |text: &str, want: &str| {
        assert_eq!(text.parse::<Rule>().unwrap().to_string(), want);
    };
    check("mk,kn->mn", "m k, k n -> m n");
    check("d! e -> d @sum", "d! e -> d!");
    check(
        " ( a  b! ) (c)->a  b c{ b = 3 }|Linear , Joint( max )",
        "(a b!) c -> a b! c {b=3} | Linear, Joint(max)",
    );
    check("a b2->b2 1@min", "a b2 -> b2 1 @min");
    check("->", "->");
    check(",a->a,", ", a -> a,");
    check("S(0)  R->P;R R -> R", "S(0) R -> P(sum); R R -> R");
    check("... -> ...;P->P(max)|Moves,Moves", "... -> ...; P(sum) -> P(max) | Moves");
}

#[test]
fn what_is_no_rule_says_why() {
    for (text, why) in [
        ("m k, k n", "no `->`"),
        ("", "no `->`"),
        ("m -> m n", "`n` is in no operand"),
        ("a a -> a", "`a` is twice"),
        ("... a ... -> a", "`...` is twice"),
        ("a -> ... a", "no operand has"),
        (".. -> a", "three dots"),
        ("a -> (a", "`(` without `)`"),
        ("a) -> a", "`)` is no dim"),
        ("a -> a ()", "written `1`"),
        ("a ! -> a", "`!` is no dim"),
        ("2 -> ", "`2` is no dim"),
        ("a01 -> a01", "begins with 0"),
        ("a99999999999999999999 -> ", "too large"),
        ("a -> @mean", "unknown reduction `mean`"),
        ("a @max -> a", "`@` belongs to a result"),
        ("a -> a {a=2", "`{` without `}`"),
        ("a -> a {a}", "no `a=2`"),
        ("a -> a {a=x}", "no `a=2`"),
        ("a -> a {ab=2}", "no `a=2`"),
        ("a -> a {a=2, a=2}", "two sizes"),
        ("a -> a {b=2}", "in no tensor"),
        ("a -> a; b -> b", "one clause of letters"),
        ("a -> a; R R -> R", "different numbers"),
        ("R -> R; R R -> R", "different numbers"),
        ("R ->", "both sides"),
        ("S(0) S(x) -> R", "`S(x)`"),
        ("a -> a | Lin", "unknown law `Lin`"),
        ("a -> a |", "unknown law ``"),
        ("a -> a | LinearIn(x)", "unknown law"),
        ("a -> a | LinearIn(1)", "there are 1"),
        ("ä -> ä", "`ä` is no dim"),
        ("A -> A", "`A`"),
    ] {
        let error = text.parse::<Rule>().unwrap_err().to_string();
        assert!(error.contains(why), "{text}: {error}");
    }
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    let check = |rule: &str, shapes: &[&[usize]], why: &str| {
        let error = rule.parse::<Rule>().unwrap().rows(shapes, 2).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    };
    check("m k, k n -> m n", &[&[2, 3]], "1 operand shapes for 2 operands");
    check(
        "m k, k n -> m n",
        &[&[2, 3], &[3]],
        "operand 1 of shape [3] does not fit: the rule names 2 dims",
    );
    check("m k, k n -> m n", &[&[2, 3], &[4, 5]], "`k` is 4 here and 3 elsewhere");
    check("... a b -> a", &[&[2]], "names 2 dims");
    check("..., ... -> ...", &[&[2, 3], &[3, 3]], "size 3 of its `...` meets size 2");
    check("a 1 -> a", &[&[2, 2]], "does not fit");
    check("(a b) -> a b", &[&[6]], "the size of `a` is unknown; write it as `{a=...}`");
    check("(a b) -> a b {a=4}", &[&[6]], "`a b` is 6 here and 4 elsewhere");
    check("(a b) -> a b {a=0}", &[&[6]], "does not fit");
    check("a -> (a b!)", &[&[6]], "the size of `b` is unknown");
    check("(a b c) -> a b c {a=9223372036854775807, b=9223372036854775807}", &[&[6]], "too much");
    check("S(2) -> R", &[&[2, 2]], "no dim to cut as S(2)");
    let error = Rule::reshape(&[2, 3], &[5]).unwrap_err().to_string();
    assert_eq!(error, "reshape: [2, 3] and [5] have different numbers of elements, or too many");
    assert!(Rule::reshape(&[usize::MAX, 2], &[2, usize::MAX]).is_err());
}

#[test]
#[should_panic(expected = "no `->`")]
fn a_typo_in_a_literal_is_found_by_the_first_test_that_touches_it() {
    Rule::of("m k, k n", &[]);
}

proptest! {
    #[test]
    fn every_reshape_prints_and_parses_back(
        from in prop::collection::vec(0usize..7, 0..5),
        split in prop::collection::vec(1usize..5, 0..3),
    ) {
        // A shape of as many elements: the same sizes backwards, with some ones between.
        let to: Vec<usize> = from.iter().rev().copied().chain(split.iter().map(|_| 1)).collect();
        let rule = Rule::reshape(&from, &to).unwrap();
        prop_assert_eq!(rule.to_string().parse::<Rule>(), Ok(rule.clone()));
        prop_assert!(rule.rows(&[&from], 2).is_ok());
    }

    #[test]
    fn any_text_parses_to_a_rule_that_prints_and_parses_back_or_is_refused(
        text in "[abSRP(){}!.,;=@12>| -]{0,24}|[a-c] ?[!]? ?[(]?[a-c] b[)]? ?-> ?[a-c1]{0,3}( ?[{]a=[0-9][}])?",
    ) {
        if let Ok(rule) = text.parse::<Rule>() {
            prop_assert_eq!(rule.to_string().parse::<Rule>(), Ok(rule));
        }
    }

    #[test]
    fn every_law_prints_and_parses_back(operand in 0usize..9, op in prop::sample::select(&ReduceOp::ALL[..])) {
        for law in [
            Linear, Multilinear, LinearIn(operand), Affine, Increasing, IncreasingIn(operand), Decreasing,
            DecreasingIn(operand), Joint(op), Moves, MovesIn(operand),
        ] {
            prop_assert_eq!(law.to_string().parse::<Law>(), Ok(law));
        }
    }
}
