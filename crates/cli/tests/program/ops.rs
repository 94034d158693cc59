//! `dtensor ops`: the table of operations.

use crate::support::{dtensor, json_lines};

#[test]
fn every_operation_has_a_line_with_its_rule() {
    let lines = json_lines(&dtensor(&["ops", "--json"]).ok());
    assert_eq!(lines.len(), dtensor::ops::ops().count());
    let find = |name: &str| lines.iter().find(|line| line["name"] == name).unwrap();
    assert_eq!(find("matmul")["rule"], "... m k, ... k n -> ... m n");
    assert_eq!(find("matmul")["laws"], serde_json::json!(["Multilinear"]));
    assert_eq!(find("exp")["family"], "elementwise");
    assert_eq!(
        (&find("exp")["gradient"], &find("argmax")["gradient"]),
        (&true.into(), &false.into())
    );
}

#[test]
fn the_table_has_families_and_a_number() {
    let table = dtensor(&["ops", "--only", "matmul"]).ok();
    assert!(
        table.starts_with(
            "products (1)\n  matmul  ... m k, ... k n -> ... m n  Multilinear  gradient\n"
        ),
        "{table}"
    );
    assert!(table.ends_with("\n1 operation\n"), "{table}");
    let message = dtensor(&["ops", "--only", "nonsense"]).error(2);
    assert!(message.starts_with("error: --only nonsense: no such operation"), "{message}");
}
