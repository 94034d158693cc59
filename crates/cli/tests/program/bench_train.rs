//! `dtensor bench train`: that every mode runs, says everything, and learns the same.

use crate::support::{dtensor, json_lines};

#[test]
fn every_mode_has_a_line_and_the_same_loss() {
    let args = "bench train --shrink 16 --rounds 1 --warm 1 --steps 2 --json";
    let lines = json_lines(&dtensor(&args.split(' ').collect::<Vec<_>>()).ok());
    for (bench, modes) in [
        ("mlp_tp", &["single_2t", "tp2_dtensor", "single_1t"][..]),
        (
            "transformer_tp",
            &["single_2t", "tp2_sp_lp", "tp2_sp", "tp2", "fsdp2", "dp_replicate", "single_1t"],
        ),
    ] {
        let of_bench: Vec<_> = lines.iter().filter(|line| line["bench"] == bench).collect();
        let names: Vec<_> = of_bench.iter().map(|line| line["mode"].as_str().unwrap()).collect();
        assert_eq!(names, modes);
        let loss = of_bench[0]["loss_last"].as_f64().unwrap();
        for line in &of_bench {
            let off = (line["loss_last"].as_f64().unwrap() - loss).abs() / loss;
            assert!(off < 1e-5, "{line}");
            assert_eq!(line["n"], 2, "{line}");
            for key in ["min_ms", "median_ms", "tokens_per_s"] {
                assert!(line[key].as_f64().is_some_and(|value| value > 0.0), "{key}: {line}");
            }
            for key in ["fwd_ms", "bwd_ms", "opt_ms"] {
                assert!(line[key]["min"].as_f64() <= line[key]["median"].as_f64(), "{line}");
            }
            // Thread ranks are one process.
            assert_eq!(line["peak_rss_mib"].as_array().unwrap().len(), 1, "{line}");
        }
    }
    assert_eq!(lines.len(), 10);
}

#[test]
fn a_mode_that_does_not_exist_is_refused_with_those_that_do() {
    let refused = |line: &str| {
        dtensor(&format!("bench train {line}").split(' ').collect::<Vec<_>>()).error(2)
    };
    for line in ["--modes pp2", "--modes tp2,pp2,fsdp2"] {
        let error = refused(line);
        assert!(error.contains("there is no mode `pp2`") && error.contains("tp2_sp_lp"), "{error}");
    }
    let error = refused("--only mlp_tp --modes single_1t,fsdp2");
    assert!(error.contains("there is no mode `fsdp2` of mlp_tp"), "{error}");
    assert!(error.contains("there are single_1t, single_2t, tp2_dtensor"), "{error}");
    let error = refused("--only mlp");
    assert!(error.contains("there is no bench `mlp`"), "{error}");
    let table = "bench train --shrink 16 --rounds 1 --warm 0 --steps 1 --only mlp_tp";
    let table = dtensor(&table.split(' ').collect::<Vec<_>>()).ok();
    assert!(table.contains("tokens/s") && table.contains("tp2_dtensor"), "{table}");
}

/// As under mpirun, where all modes run in the processes of the ranks: what the larger model had is not the smaller one's, which
/// runs before it and once more after it.
#[cfg(target_os = "linux")]
#[test]
fn modes_of_one_process_have_peaks_of_their_own() {
    let args = "bench train --child --rounds 2 --warm 0 --steps 1 --shrink 4 --modes single_1t";
    let lines = json_lines(&dtensor(&args.split(' ').collect::<Vec<_>>()).ok());
    let peaks: Vec<f64> = lines.iter().map(|line| line["peak_mib"][0].as_f64().unwrap()).collect();
    let [mlp, transformer] = peaks[..] else { panic!("{peaks:?}") };
    assert!(mlp > 0.0 && mlp < 0.95 * transformer, "{peaks:?}");
}
