// SPDX-License-Identifier: Apache-2.0
// The parts of Hugging Face's config.json that describe a model's head: `architectures`, the labels
// and the problem type.
#pragma once

#include <optional>

#include "tessera/config/json.h"
#include "tessera/models/family.h"

namespace tessera::models {

/// The objective without a head.
inline constexpr const char* kEmbedding = "embedding";

/// The objective whose head `architectures` names ("...ForSequenceClassification"), with the number
/// of labels and the problem type as transformers reads them: 2 labels by default, and regression
/// for one label. An encoder without a head ("...Model") has the objective embedding. If
/// `architectures` is absent or names another head, the name is empty, which means the family's
/// objective. Throws Error{Format} for impossible keys.
ObjectiveChoice objective_of_hf(const json::Value& hf_config);

/// True if `architectures` names a model whose head is known, so that the tensors of its files are.
bool knows_head(const json::Value& hf_config);

/// The objective in the form of tessera's checkpoints: {"name": ..., "options": {...}}. Nothing for
/// causal_lm and for an objective without a name.
std::optional<json::Value> said_of(const ObjectiveChoice& objective);

/// Writes the head of the objective to a family's config.json: `architectures`, and for a
/// classifier `id2label`, `label2id` and `problem_type`, and what transformers does not read:
/// `label_heads`, `thresholds` and `class_weights`.
void say_objective(json::Value& hf_config, const ObjectiveChoice& objective);

}  // namespace tessera::models
