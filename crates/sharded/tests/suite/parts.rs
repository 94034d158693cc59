//! A module for tests.

use std::collections::BTreeMap;

use dtensor_sharded::{
    Result,
    module::{ModuleTensor, OutputRule, ShardableModule},
};

use crate::support::numbered;

/// A module of anything: tensors and modules by name.
#[derive(Default)]
pub struct Parts {
    pub tensors: BTreeMap<String, ModuleTensor>,
    modules: BTreeMap<String, Box<dyn ShardableModule>>,
    output: OutputRule,
}

impl Parts {
    pub fn tensor(mut self, name: &str, tensor: impl Into<ModuleTensor>) -> Parts {
        self.tensors.insert(name.into(), tensor.into());
        self
    }

    pub fn module(mut self, name: &str, module: impl ShardableModule + 'static) -> Parts {
        self.modules.insert(name.into(), Box::new(module));
        self
    }
}

impl ShardableModule for Parts {
    fn tensors(&self) -> Vec<(String, &ModuleTensor)> {
        self.tensors.iter().map(|(name, tensor)| (name.clone(), tensor)).collect()
    }

    fn tensors_mut(&mut self) -> Vec<(String, &mut ModuleTensor)> {
        self.tensors.iter_mut().map(|(name, tensor)| (name.clone(), tensor)).collect()
    }

    fn children(&self) -> Vec<(String, &dyn ShardableModule)> {
        self.modules.iter().map(|(name, module)| (name.clone(), &**module)).collect()
    }

    fn children_mut(&mut self) -> Vec<(String, &mut dyn ShardableModule)> {
        let mut list: Vec<(String, &mut dyn ShardableModule)> = Vec::new();
        for (name, module) in &mut self.modules {
            list.push((name.clone(), &mut **module));
        }
        list
    }

    fn set_child(&mut self, name: &str, child: Box<dyn ShardableModule>) -> Result<()> {
        self.modules.insert(name.into(), child);
        Ok(())
    }

    fn set_output(&mut self, output: OutputRule) -> Result<()> {
        self.output = output;
        Ok(())
    }
}

pub fn model() -> Parts {
    let layer = |n: usize| {
        Parts::default().tensor("weight", numbered(&[n, 3])).tensor("bias", numbered(&[n]))
    };
    Parts::default().module("fc1", layer(6)).module("fc2", layer(5)).module("fc", layer(2))
}
