//! 1,024 ranks on a few cores.

use dtensor_comm::{CommError, ReduceOp, Runner};

const RANKS: usize = 1024;

#[test]
fn a_thousand_ranks_reduce_gather_and_meet() {
    let sums = Runner::threads(RANKS)
        .run(|world| {
            let group = world.group();
            let mut small = [world.rank() as f32, 1.0];
            group.all_reduce(&mut small, ReduceOp::Sum)?;
            group.barrier()?;
            let mut large = vec![1.0_f64; 3 * RANKS];
            group.all_reduce(&mut large, ReduceOp::Sum)?;
            assert!(large.iter().all(|&x| x == RANKS as f64));
            let mut all = vec![0_i64; RANKS];
            group.all_gather(&[world.rank() as i64], &mut all)?;
            assert!(all.iter().enumerate().all(|(rank, &x)| x == rank as i64));
            // A row and a column of 32 x 32, at once.
            let row: Vec<usize> = (0..32).map(|i| world.rank() / 32 * 32 + i).collect();
            let column: Vec<usize> = (0..32).map(|i| world.rank() % 32 + 32 * i).collect();
            let in_row = world.subgroup(&row)?.start_all_reduce(vec![1_i32; 40], ReduceOp::Sum)?;
            let mut in_column = [world.rank() as i64];
            world.subgroup(&column)?.all_reduce(&mut in_column, ReduceOp::Max)?;
            assert_eq!(in_column, [(world.rank() % 32 + 32 * 31) as i64]);
            assert_eq!(in_row.wait()?, vec![32; 40]);
            group.barrier()?;
            Ok::<_, CommError>(small)
        })
        .unwrap();
    // 0 + 1 + ... + 1023 is exact in f32.
    assert_eq!(sums, vec![[523_776.0, 1024.0]; RANKS]);
}

#[test]
fn a_thousand_ranks_stop_when_one_of_them_fails() {
    let error = Runner::threads(RANKS)
        .run(|world| {
            if world.rank() == 777 {
                return Err("no more".into());
            }
            world.group().barrier().map_err(|error| error.to_string())
        })
        .unwrap_err();
    assert_eq!(error.rank(), Some(777));
    assert!(
        error.to_string().starts_with("rank 777 of 1024 returned an error: no more"),
        "{error}"
    );
}
