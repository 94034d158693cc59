//! Lists whose lengths only those know who have them.

use dtensor_dtype::Element;

use crate::{CommError, Group};

impl Group {
    /// The list of every rank, in their order; each may have any length, also none. As two calls: one with the lengths, one
    /// with the elements. Where all ranks know the lengths, [`all_gather_v`](Group::all_gather_v) is one.
    ///
    /// ```
    /// use dtensor_comm::{CommError, Runner};
    ///
    /// Runner::threads(3).run(|world| {
    ///     let own = vec![world.rank() as u8; world.rank()];
    ///     let all = world.group().all_gather_lists(&own)?;
    ///     assert_eq!(all, [vec![], vec![1], vec![2, 2]]);
    ///     Ok::<_, CommError>(())
    /// })?;
    /// # Ok::<(), dtensor_comm::RunError>(())
    /// ```
    pub fn all_gather_lists<T: Element>(&self, own: &[T]) -> Result<Vec<Vec<T>>, CommError> {
        let counts = self.lengths(own.len())?;
        let mut all = vec![T::default(); counts.iter().sum()];
        self.all_gather_v(own, &mut all, &counts)?;
        Ok(lists(&all, &counts))
    }

    /// The list of every rank on the root, and nothing on the others; see [`all_gather_lists`](Group::all_gather_lists).
    pub fn gather_lists<T: Element>(
        &self,
        own: &[T],
        root: usize,
    ) -> Result<Option<Vec<Vec<T>>>, CommError> {
        let counts = self.lengths(own.len())?;
        let is_root = self.rank() == root;
        let mut all = vec![T::default(); if is_root { counts.iter().sum() } else { 0 }];
        self.gather_v(own, is_root.then_some(&mut all[..]), &counts, root)?;
        Ok(is_root.then(|| lists(&all, &counts)))
    }

    /// The list that the root has, on every rank. What others give is not looked at.
    pub fn broadcast_list<T: Element>(
        &self,
        list: Option<Vec<T>>,
        root: usize,
    ) -> Result<Vec<T>, CommError> {
        let list = list.filter(|_| self.rank() == root);
        let mut length = [list.as_ref().map_or(0, |list| list.len() as i64)];
        self.broadcast(&mut length, root)?;
        let mut list = list.unwrap_or_else(|| vec![T::default(); length[0] as usize]);
        self.broadcast(&mut list, root)?;
        Ok(list)
    }

    /// Every rank's length.
    fn lengths(&self, own: usize) -> Result<Vec<usize>, CommError> {
        let mut lengths = vec![0_i64; self.size()];
        self.all_gather(&[own as i64], &mut lengths)?;
        Ok(lengths.into_iter().map(|length| length as usize).collect())
    }
}

/// The lists that lie one after the other.
fn lists<T: Element>(all: &[T], counts: &[usize]) -> Vec<Vec<T>> {
    let mut rest = all;
    let next = |count: &usize| {
        let (list, others) = rest.split_at(*count);
        rest = others;
        list.to_vec()
    };
    counts.iter().map(next).collect()
}
