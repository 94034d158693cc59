//! `dp=2,tp=4`; with strides and a base where they are not row-major: `tp=4:1,dp=2:8@16`.

use std::{fmt, str::FromStr};

use super::{Factor, Mesh, MeshAxis};
use crate::{LayoutError, Result, text::bad};

impl fmt::Display for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = self.is_row_major();
        for (index, axis) in self.axes().iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{}=", axis.name())?;
            if plain {
                write!(f, "{}", axis.size())?;
                continue;
            }
            for (position, factor) in axis.factors().iter().enumerate() {
                let times = if position == 0 { "" } else { "*" };
                write!(f, "{times}{}:{}", factor.size, factor.stride)?;
            }
        }
        match self.base() {
            0 => Ok(()),
            base => write!(f, "@{base}"),
        }
    }
}

impl fmt::Debug for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mesh({self})")
    }
}

impl FromStr for Mesh {
    type Err = LayoutError;

    /// Parses what [`Display`](fmt::Display) prints, and plain sizes: `2,4` or `2x4`.
    fn from_str(text: &str) -> Result<Mesh> {
        let number = |digits: &str| {
            digits
                .trim()
                .parse::<usize>()
                .map_err(|_| bad(text, "mesh", "expected for example dp=2,tp=4 or 2,4 or 2x4"))
        };
        let trimmed = text.trim();
        if trimmed.is_empty() {
            return Err(LayoutError::EmptyMesh);
        }
        if !trimmed.contains('=') {
            let sizes = trimmed.split([',', 'x']).map(number).collect::<Result<Vec<_>>>()?;
            return Mesh::from_sizes(&sizes);
        }
        let (axes_text, base) = match trimmed.split_once('@') {
            Some((axes, base)) => (axes, number(base)?),
            None => (trimmed, 0),
        };
        let pairs = axes_text
            .split(',')
            .map(|axis| {
                axis.split_once('=')
                    .ok_or_else(|| bad(text, "mesh", "every axis is name=size, or none is"))
            })
            .collect::<Result<Vec<_>>>()?;
        if !axes_text.contains(':') {
            if base != 0 {
                return Err(bad(text, "mesh", "a base needs strides: name=size:stride"));
            }
            let axes = pairs
                .iter()
                .map(|(name, size)| Ok((name.trim(), number(size)?)))
                .collect::<Result<Vec<_>>>()?;
            return Mesh::new(&axes);
        }
        let mut axes = Vec::with_capacity(pairs.len());
        for (name, factors) in pairs {
            let factors = factors
                .split('*')
                .map(|factor| {
                    let (size, stride) = factor.split_once(':').ok_or_else(|| {
                        bad(text, "mesh", "strides are given for every axis or for none")
                    })?;
                    Ok(Factor { size: number(size)?, stride: number(stride)? })
                })
                .collect::<Result<Vec<_>>>()?;
            let sizes: Vec<usize> = factors.iter().map(|factor| factor.size).collect();
            super::checked_product("mesh sizes", &sizes)?;
            axes.push(MeshAxis::new(name.trim(), factors));
        }
        Mesh::from_axes(axes, base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meshes_print_and_parse_back() {
        let cube = Mesh::new(&[("pp", 2), ("dp", 3), ("tp", 4)]).unwrap();
        for mesh in [
            cube.clone(),
            cube.slice(&["tp", "pp"], &[1, 2, 3]).unwrap(),
            cube.slice(&["pp", "tp"], &[0, 0, 0]).unwrap().flatten("pp_tp").unwrap(),
            cube.slice(&["dp"], &[1, 0, 1]).unwrap(),
        ] {
            assert_eq!(mesh.to_string().parse(), Ok(mesh));
        }
    }

    #[track_caller]
    fn check(text: &str, want: &str) {
        assert_eq!(text.parse::<Mesh>().unwrap_err().to_string(), want);
    }

    #[test]
    fn bad_meshes_say_what_is_wrong_and_what_to_do() {
        check("", "a mesh needs at least one axis; give for example dp=2,tp=4");
        check("dp=2,dp=2", "mesh axis name `dp` is given twice; names must differ");
        check("dp=0", "mesh axis `dp` has size 0; every axis needs at least one rank");
        check("dp=2,4", "`dp=2,4` is not a mesh: every axis is name=size, or none is");
        check("dp=two", "`dp=two` is not a mesh: expected for example dp=2,tp=4 or 2,4 or 2x4");
        check(
            "9=2",
            "mesh axis name `9` must start with a letter or `_` and go on with letters, digits, `_`, `-` or `.`",
        );
        check(
            "a=4294967296,b=4294967296",
            "the product of mesh sizes [4294967296, 4294967296] overflows; make it smaller",
        );
        let seventeen = vec!["1"; 17].join(",");
        check(&seventeen, "a mesh of 17 axes; at most 16 are supported: flatten some of them");
        assert!("a=2:1,b=2:1".parse::<Mesh>().is_err());
        assert!("a=2:18446744073709551615,b=2:3".parse::<Mesh>().is_err());
    }

    #[test]
    fn plain_sizes_get_plain_names() {
        let mesh: Mesh = "2x3".parse().unwrap();
        assert_eq!(mesh.to_string(), "axis0=2,axis1=3");
        assert_eq!("2,3".parse(), Ok(mesh));
    }
}
