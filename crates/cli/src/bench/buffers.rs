use dtensor_layout::chunk;

/// Whether all ranks have equally much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    Even,
    Uneven,
}

impl Shape {
    pub const ALL: [Shape; 2] = [Shape::Even, Shape::Uneven];

    pub fn name(self) -> &'static str {
        match self {
            Shape::Even => "even",
            Shape::Uneven => "uneven",
        }
    }
}

/// How many elements each rank sends to each in every case.
///
/// The uneven shape is a matrix of one row more and one column fewer than the square one, which is
/// cut as a tensor would be: rows by `torch.chunk`, so that the last ranks have less.
pub struct Counts {
    /// Elements of the whole vector.
    pub total: usize,
    /// Elements of each rank's piece of it.
    pub pieces: Vec<usize>,
    /// What each rank sends to each in an all-to-all, by sender: about `total` for each rank.
    pub matrix: Vec<Vec<usize>>,
}

impl Counts {
    pub fn new(shape: Shape, elements: usize, ranks: usize) -> Counts {
        match shape {
            Shape::Even => {
                let piece = elements / ranks;
                Counts {
                    total: piece * ranks,
                    pieces: vec![piece; ranks],
                    matrix: vec![vec![piece; ranks]; ranks],
                }
            }
            Shape::Uneven => {
                let side = elements.isqrt();
                let (rows, columns) = (side + 1, side.saturating_sub(1));
                let rows_of: Vec<usize> =
                    (0..ranks).map(|rank| chunk(rows, ranks, rank).len()).collect();
                let columns_of = |rank| chunk(columns * ranks, ranks, rank).len();
                Counts {
                    total: rows * columns,
                    pieces: rows_of.iter().map(|rows| rows * columns).collect(),
                    matrix: rows_of
                        .iter()
                        .map(|rows| (0..ranks).map(|to| rows * columns_of(to)).collect())
                        .collect(),
                }
            }
        }
    }

    /// What a rank receives from each in an all-to-all.
    pub fn received(&self, rank: usize) -> Vec<usize> {
        self.matrix.iter().map(|row| row[rank]).collect()
    }

    /// The most elements that any rank needs on one side of any case.
    pub fn largest(&self) -> usize {
        let sent = self.matrix.iter().map(|row| row.iter().sum());
        let received = (0..self.pieces.len()).map(|rank| self.received(rank).iter().sum());
        sent.chain(received).chain([self.total]).max().unwrap_or(0)
    }
}

/// Two buffers that are used again and again: fresh memory costs more than moving data through it.
pub struct Buffers {
    pub send: Vec<f32>,
    pub recv: Vec<f32>,
}

impl Buffers {
    pub fn new(elements: usize) -> Buffers {
        // Ones rather than zeros: the pages of memory that is only ever zero need not exist.
        Buffers { send: vec![1.0; elements], recv: vec![1.0; elements] }
    }
}

/// Bytes of memory that are free or can be freed, where the system says so.
pub fn available_memory() -> Option<usize> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: usize = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_add_up_in_both_directions() {
        for ranks in [1, 2, 3, 4, 7] {
            for shape in Shape::ALL {
                let counts = Counts::new(shape, 10_000, ranks);
                assert_eq!(counts.pieces.iter().sum::<usize>(), counts.total, "{shape:?} {ranks}");
                let sent: usize = counts.matrix.iter().flatten().sum();
                let received: usize =
                    (0..ranks).map(|rank| counts.received(rank).iter().sum::<usize>()).sum();
                assert_eq!(sent, received);
                assert!(counts.largest() >= counts.total);
            }
        }
    }

    #[test]
    fn uneven_is_uneven_and_64_mib_are_the_matrix_of_4097_by_4095() {
        let counts = Counts::new(Shape::Uneven, 16 << 20, 2);
        assert_eq!(counts.total, 4097 * 4095);
        assert_eq!(counts.pieces, [2049 * 4095, 2048 * 4095]);
    }
}
