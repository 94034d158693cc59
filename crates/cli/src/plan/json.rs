use dtensor_layout::{
    Layout,
    plan::{Cost, Plan, Step, Topology},
};
use serde_json::{Map, Value, json};

use crate::layout::mesh_json;

use super::{Answer, axis_names};

/// The whole answer in one value. `plan` is the text that parses back into the plan.
pub fn answer(answer: &Answer) -> Value {
    let Answer { plan, cost, greedy, topology } = answer;
    let greedy = match greedy {
        Ok((greedy, cost)) => {
            let mut fields = cost_fields(cost);
            fields.insert("steps".into(), json!(greedy.steps().len()));
            fields.insert("exceeds_memory_bound".into(), json!(greedy.exceeds_memory_bound()));
            fields.insert("plan".into(), json!(greedy.to_string()));
            Value::Object(fields)
        }
        Err(why) => json!({"error": why}),
    };
    json!({
        "shape": plan.from().global_shape(),
        "dtype": plan.from().dtype().name(),
        "from": layout(plan.from()),
        "to": layout(plan.to()),
        "steps": steps(plan, topology),
        "total": cost_fields(cost),
        "exceeds_memory_bound": plan.exceeds_memory_bound(),
        "greedy": greedy,
        "topology": topology_fields(topology),
        "plan": plan.to_string(),
    })
}

fn layout(layout: &Layout) -> Value {
    json!({"mesh": mesh_json(layout.mesh(), true), "placements": layout.placement_texts()})
}

fn steps(plan: &Plan, topology: &Topology) -> Value {
    let one = |step: &Step| {
        let mut fields = Map::new();
        fields.insert("kind".into(), json!(step.kind.name()));
        fields.insert("over".into(), json!(axis_names(step)));
        fields.insert("placements".into(), json!(step.to.placement_texts()));
        fields.extend(cost_fields(&step.cost(topology)));
        Value::Object(fields)
    };
    plan.steps().iter().map(one).collect()
}

fn cost_fields(cost: &Cost) -> Map<String, Value> {
    // Beyond 2^64 bytes JSON readers would round it anyway.
    let bytes_sent = match u64::try_from(cost.bytes_sent) {
        Ok(bytes) => json!(bytes),
        Err(_) => json!(cost.bytes_sent as f64),
    };
    Map::from_iter([
        ("bytes_sent".to_string(), bytes_sent),
        ("bytes_per_rank".to_string(), json!(cost.bytes_per_rank)),
        ("calls".to_string(), json!(cost.calls)),
        ("peak_bytes".to_string(), json!(cost.peak_bytes)),
        ("time_us".to_string(), json!(cost.time_us())),
    ])
}

fn topology_fields(topology: &Topology) -> Value {
    let link = |link: dtensor_layout::plan::Link| json!({"latency_us": link.latency_us, "gigabytes_per_s": link.gigabytes_per_s});
    // One host of any size has no number of ranks.
    let ranks = (topology.ranks_per_host != usize::MAX).then_some(topology.ranks_per_host);
    json!({
        "ranks_per_host": ranks,
        "launch_us": topology.launch_us,
        "inside": link(topology.inside),
        "between": link(topology.between),
    })
}
