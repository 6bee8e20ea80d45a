// SPDX-License-Identifier: Apache-2.0
// The section `distill`: a teacher of the model that is trained, and a model that begins with
// some of the teacher's layers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/config/fields.h"
#include "tessera/config/json.h"
#include "tessera/models/family.h"

namespace tessera::models {

struct ModelSource;

struct DistillOptions {
  std::optional<std::string> teacher;  ///< absent: no distillation
  double temperature = 2.0, alpha = 0.5;
  std::optional<double> label_weight;  ///< absent: 1 - alpha
  json::Value layers;
  [[nodiscard]] bool enabled() const { return teacher.has_value() && alpha > 0.0; }
  void describe(config::Fields& fields);
};

/// The numbers in distill.layers, from 0; empty if there are none, or after it has reported why
/// they are not a list of ascending numbers.
std::vector<std::int64_t> teacher_layers(const DistillOptions& options, config::Problems& problems);

/// The initial weights of `trained`, whose layers are the given ones of the saved model; all other
/// parameters, such as embeddings, are those of the saved model, and a head that it lacks is
/// initialized as in first_weights(). Throws Error{Config} for a layer that the saved model lacks
/// or for layers of two kinds, and the errors of first_weights().
WeightSource weights_of_layers(const ModelSource& source,
                               const std::vector<std::int64_t>& layers,
                               const Resolved& trained,
                               std::uint64_t seed,
                               std::vector<std::string>& notes);

}  // namespace tessera::models
