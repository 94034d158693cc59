//! Every mesh of so many ranks, and every strategy on it, as arguments after `--mesh`. The tests under mpirun have this list too.

/// The ways to cut a model over so many ranks: axes in every order, all of more than one rank unless there is only one, with the
/// variants that their strategies have.
pub fn ways_to_cut(ranks: usize) -> Vec<String> {
    let mut ways = Vec::new();
    for axes in meshes(ranks, &["dp", "fsdp", "tp", "cp"]) {
        let names: Vec<&str> = axes.iter().map(|(name, _)| *name).collect();
        let sizes: Vec<String> = axes.iter().map(|(name, size)| format!("{name}={size}")).collect();
        let mesh = sizes.join(",");
        ways.push(mesh.clone());
        let recomputes = names.contains(&"fsdp");
        if recomputes {
            ways.push(format!("{mesh} --recompute"));
        }
        if names.contains(&"tp") {
            let sp = format!("{mesh} --parallel {}+sp", names.join("+"));
            if recomputes {
                ways.push(format!("{sp} --recompute"));
            }
            ways.push(sp);
        }
        // Other words for the same.
        if names.contains(&"dp") && !recomputes {
            let words = names.join("+").replace("dp", "fsdp");
            ways.push(format!("{mesh} --parallel {words}"));
        }
    }
    // An axis with one rank is one as well.
    match ranks {
        1 => ways.push("dp=1,fsdp=1,tp=1,cp=1".to_owned()),
        _ => {
            ways.push(format!("fsdp={ranks},tp=1"));
            ways.push(format!("dp=1,tp={ranks},cp=1"));
        }
    }
    ways
}

/// Axes of these names whose sizes have this product.
fn meshes<'a>(ranks: usize, names: &[&'a str]) -> Vec<Vec<(&'a str, usize)>> {
    let mut found = Vec::new();
    for name in names {
        found.push(vec![(*name, ranks)]);
        let others: Vec<&str> = names.iter().copied().filter(|other| other != name).collect();
        for size in (2..ranks).filter(|size| ranks.is_multiple_of(*size)) {
            for rest in meshes(ranks / size, &others) {
                found.push([vec![(*name, size)], rest].concat());
            }
        }
    }
    found
}
