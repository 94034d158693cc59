//! What PyTorch does where it is easy to do something else: every entry of `golden/semantics.json`, which
//! `golden/semantics.py` has written.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A test may.

use dtensor_local::{DType, Interpolation, Scalar, Tensor, Unique, promote};
use serde_json::Value;

#[test]
fn awkward_semantics_are_those_of_pytorch() {
    let entries: Vec<Value> = serde_json::from_str(include_str!("golden/semantics.json")).unwrap();
    assert!(entries.len() > 300, "{}", entries.len());
    let failures: Vec<String> = entries.iter().filter_map(|entry| check(entry).err()).collect();
    assert!(failures.is_empty(), "{} differ:\n{}", failures.len(), failures.join("\n"));
}

/// Runs one entry; says how it differs.
fn check(entry: &Value) -> Result<(), String> {
    let operands: Vec<Tensor> = list(&entry["in"]).iter().map(tensor).collect();
    let wanted: Vec<Tensor> = list(&entry["out"]).iter().map(tensor).collect();
    let op = entry["op"].as_str().unwrap();
    let operands: Vec<&Tensor> = operands.iter().collect();
    let results = call(op, &operands, &Settings(&entry["set"]));
    if results.len() != wanted.len() {
        return Err(format!("{op}: {} results for {}", results.len(), wanted.len()));
    }
    for (got, want) in results.iter().zip(&wanted) {
        if (got.dtype(), got.shape()) != (want.dtype(), want.shape()) || !same(op, got, want) {
            return Err(format!(
                "{op} {}\n  of   {}\n  is   {got:?}\n  not  {want:?}",
                entry["set"], entry["in"]
            ));
        }
    }
    Ok(())
}

/// One call. Names are ours where they differ from PyTorch's.
fn call(op: &str, x: &[&Tensor], set: &Settings) -> Vec<Tensor> {
    let of_unique = |unique: Unique| vec![unique.values, unique.inverse, unique.counts];
    let pair = |(a, b): (Tensor, Tensor)| vec![a, b];
    let result = match op {
        "cast" => x[0].to_dtype(set.text("to").parse().unwrap()),
        "argmax" => x[0].argmax(set.optional_dim(), false),
        "argmin" => x[0].argmin(set.optional_dim(), false),
        "max" => return pair(x[0].max(set.dim(), false).unwrap()),
        "min" => return pair(x[0].min(set.dim(), false).unwrap()),
        "maximum" => x[0].maximum(x[1]),
        "minimum" => x[0].minimum(x[1]),
        "rem" => x[0].rem(x[1]),
        "fmod" => x[0].fmod(x[1]),
        "floor_div" => x[0].floor_div(x[1]),
        "div" => x[0].div(x[1]),
        "round" => x[0].round(),
        "trunc" => x[0].trunc(),
        "floor" => x[0].floor(),
        "ceil" => x[0].ceil(),
        "frac" => x[0].frac(),
        "sign" => x[0].sign(),
        "relu" => x[0].relu(),
        "abs" => x[0].abs(),
        "neg" => x[0].neg(),
        "pow" => x[0].pow(x[1]),
        "pow_scalar" => x[0].pow_scalar(set.number("exponent")),
        "atan2" => x[0].atan2(x[1]),
        "hypot" => x[0].hypot(x[1]),
        "logaddexp" => x[0].logaddexp(x[1]),
        "copysign" => x[0].copysign(x[1]),
        "cumsum" => x[0].cumsum(set.dim()),
        "cumprod" => x[0].cumprod(set.dim()),
        "logcumsumexp" => x[0].logcumsumexp(set.dim()),
        "cummax" => return pair(x[0].cummax(set.dim()).unwrap()),
        "cummin" => return pair(x[0].cummin(set.dim()).unwrap()),
        "sort" => return pair(x[0].sort(set.dim(), set.flag("descending")).unwrap()),
        "median" => return pair(x[0].median(set.dim(), false).unwrap()),
        "kthvalue" => {
            return pair(x[0].kthvalue(set.number("k") as usize, set.dim(), false).unwrap());
        }
        "std" => x[0].std(&[set.dim()], set.number("correction") as usize, false),
        "var" => x[0].var(&[set.dim()], set.number("correction") as usize, false),
        "quantile" => x[0].quantile(&set.numbers("q"), Some(set.dim()), false, set.interpolation()),
        "nanquantile" => {
            x[0].nanquantile(&set.numbers("q"), Some(set.dim()), false, set.interpolation())
        }
        "histc" => x[0].histc(set.number("bins") as usize, set.number("min"), set.number("max")),
        "histogram" => {
            let range = (set.number("min"), set.number("max"));
            return pair(x[0].histogram(set.number("bins") as usize, Some(range)).unwrap());
        }
        "histogram_of_edges" => x[0].histogram_of_edges(x[1]),
        "bincount" => x[0].bincount(x.get(1).copied(), set.number("min_length") as usize),
        "searchsorted" => x[0].searchsorted(x[1], set.flag("right")),
        "bucketize" => x[0].bucketize(x[1], set.flag("right")),
        "unique" => return of_unique(x[0].unique().unwrap()),
        "unique_consecutive" => return of_unique(x[0].unique_consecutive().unwrap()),
        "unique_dim" => return of_unique(x[0].unique_dim(set.dim()).unwrap()),
        "isin" => x[0].isin(x[1]),
        "isclose" => x[0].isclose(
            x[1],
            set.number("relative"),
            set.number("absolute"),
            set.flag("equal_nan"),
        ),
        "clamp" => x[0].clamp(Some(set.scalar("min")), Some(set.scalar("max"))),
        "nan_to_num" => x[0].nan_to_num(0.0, None, None),
        "promote" => {
            let met = x[0].maximum(x[1]).unwrap().dtype();
            if x[1].n_dims() > 0 {
                assert_eq!(met, promote(x[0].dtype(), x[1].dtype()));
            }
            Tensor::zeros(&[0], met)
        }
        "promote_scalar" => {
            Tensor::zeros(&[0], x[0].maximum_scalar(set.scalar("number")).unwrap().dtype())
        }
        _ => panic!("no call for {op}"),
    };
    vec![result.unwrap_or_else(|error| panic!("{op} {}: {error}", set.0))]
}

/// Whether all values are the same: zeros with their sign, NaN as NaN. Functions that are not rounded exactly
/// may differ in their last places.
fn same(op: &str, got: &Tensor, want: &Tensor) -> bool {
    if !got.dtype().is_float() {
        let integers = |x: &Tensor| x.to_dtype(DType::I64).unwrap().to_vec::<i64>().unwrap();
        return integers(got) == integers(want);
    }
    let inexact = ["atan2", "hypot", "logaddexp", "logcumsumexp", "std", "var", "pow"]
        .contains(&op)
        || op.ends_with("quantile");
    let tolerance = match got.dtype() {
        _ if !inexact => 0.0,
        DType::F64 => 1e-15,
        _ => 2e-7,
    };
    let floats = |x: &Tensor| x.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
    floats(got).iter().zip(floats(want)).all(|(got, want)| {
        got.is_nan() && want.is_nan()
            || got.to_bits() == want.to_bits()
            || (got - want).abs() <= tolerance * want.abs() && want != 0.0
    })
}

/// The settings of a call.
struct Settings<'a>(&'a Value);

impl Settings<'_> {
    fn text(&self, name: &str) -> &str {
        self.0[name].as_str().unwrap()
    }

    fn number(&self, name: &str) -> f64 {
        self.0[name].as_f64().unwrap()
    }

    fn numbers(&self, name: &str) -> Vec<f64> {
        list(&self.0[name]).iter().map(|number| number.as_f64().unwrap()).collect()
    }

    fn flag(&self, name: &str) -> bool {
        self.0[name].as_bool().unwrap()
    }

    fn dim(&self) -> isize {
        self.0["dim"].as_i64().unwrap() as isize
    }

    fn optional_dim(&self) -> Option<isize> {
        self.0["dim"].as_i64().map(|dim| dim as isize)
    }

    fn scalar(&self, name: &str) -> Scalar {
        match &self.0[name] {
            Value::Bool(value) => Scalar::Bool(*value),
            value => {
                value.as_i64().map_or_else(|| Scalar::Float(value.as_f64().unwrap()), Scalar::Int)
            }
        }
    }

    fn interpolation(&self) -> Interpolation {
        match self.text("how") {
            "linear" => Interpolation::Linear,
            "lower" => Interpolation::Lower,
            "higher" => Interpolation::Higher,
            "nearest" => Interpolation::Nearest,
            "midpoint" => Interpolation::Midpoint,
            other => panic!("{other}"),
        }
    }
}

fn tensor(value: &Value) -> Tensor {
    let dtype: DType = value["dtype"].as_str().unwrap().parse().unwrap();
    let shape: Vec<usize> =
        list(&value["shape"]).iter().map(|size| size.as_u64().unwrap() as usize).collect();
    let values = list(&value["values"]);
    if dtype.is_float() {
        let number = |value: &Value| match value.as_str() {
            Some(text) => text.parse::<f64>().unwrap(),
            None => value.as_f64().unwrap(),
        };
        let values = values.iter().map(number).collect();
        return Tensor::from_vec::<f64>(values, &shape).unwrap().to_dtype(dtype).unwrap();
    }
    let number =
        |value: &Value| value.as_i64().unwrap_or_else(|| i64::from(value.as_bool().unwrap()));
    let values = values.iter().map(number).collect();
    Tensor::from_vec::<i64>(values, &shape).unwrap().to_dtype(dtype).unwrap()
}

fn list(value: &Value) -> &Vec<Value> {
    value.as_array().unwrap()
}
