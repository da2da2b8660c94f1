//! The files that describe wheel variants: in a wheel, the one that it is; in an index, all of a project.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::name::{WheelName, is_label};

/// The file in a wheel's metadata that says which variant it is.
pub(super) const FILE: &str = "variant.json";

/// The version of the format.
const SCHEMA: &str = "https://variants-schema.wheelnext.dev/peps/850/v0.2.0.json";

/// What AMD's provider, which finds the GPUs of a machine, calls their processors.
const NAMESPACE: &str = "amd";
const FEATURE: &str = "gfx_arch";
const PROVIDER: &str = "rocm-bootstrap>=0.3.0";
const PLUGIN: &str = "rocm_bootstrap.variant_provider:AMDVariantPlugin";

/// The name of the file that lists the variants of a project, beside its wheels in an index.
pub(super) fn index_name(wheel: &WheelName) -> String {
    format!("{}-{}-variants.json", wheel.distribution, wheel.version)
}

/// A file that describes these variants, by label.
pub(super) fn text(variants: &BTreeMap<String, Value>) -> Vec<u8> {
    format!("{:#}\n", metadata(variants)).into_bytes()
}

/// What a variant for these processors asks of a machine.
pub(super) fn properties(processors: &[String]) -> Value {
    if processors.is_empty() { json!({}) } else { json!({ NAMESPACE: { FEATURE: processors } }) }
}

/// The variants that an index lists; `None` if [`text`] would not write it so.
pub(super) fn listed(index: &[u8]) -> Option<BTreeMap<String, Value>> {
    let value: Value = serde_json::from_slice(index).ok()?;
    let variants: BTreeMap<String, Value> =
        value.get("variants")?.as_object()?.clone().into_iter().collect();
    let are_labels = variants.keys().all(|label| !label.is_empty() && is_label(label));
    (are_labels && metadata(&variants) == value).then_some(variants)
}

/// The variants that this `variant.json` describes.
pub(super) fn labels(bytes: &[u8]) -> Result<Vec<String>, String> {
    let value: Value = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    let variants = value
        .get("variants")
        .and_then(Value::as_object)
        .ok_or("no object `variants` in the file")?;
    Ok(variants.keys().cloned().collect())
}

fn metadata(variants: &BTreeMap<String, Value>) -> Value {
    json!({
        "$schema": SCHEMA,
        "default-priorities": { "namespace": [NAMESPACE] },
        "providers": { NAMESPACE: { "requires": [PROVIDER], "plugin-api": PLUGIN } },
        "variants": variants,
    })
}
