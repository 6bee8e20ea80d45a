// SPDX-License-Identifier: Apache-2.0
// What Hugging Face's config.json says of a model's head: `architectures`, the labels and the kind
// of problem.
#pragma once

#include <optional>

#include "tessera/config/json.h"
#include "tessera/models/family.h"

namespace tessera::models {

/// The objective whose head `architectures` names ("...ForSequenceClassification"), with the number
/// of labels and the kind of problem as transformers read them: 2 labels where nothing is said, and
/// regression for one label. An encoder without a head ("...Model") has the objective embedding.
/// Without a name where `architectures` is absent or names another head: that of the family.
/// Error{Format} for keys that cannot be.
ObjectiveChoice objective_of_hf(const json::Value& hf_config);

/// The objective as checkpoints of tessera say it: {"name": ..., "options": {...}}. Nothing for
/// causal_lm, and for an objective without a name.
std::optional<json::Value> said_of(const ObjectiveChoice& objective);

/// Makes the config.json of a family say that its model has the head of the objective:
/// `architectures`, and for a classifier `id2label`, `label2id` and `problem_type`.
void say_objective(json::Value& hf_config, const ObjectiveChoice& objective);

}  // namespace tessera::models
