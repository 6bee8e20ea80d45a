// SPDX-License-Identifier: Apache-2.0
// The model of a plan: its blocks, its first weights, and which of its parameters are trained.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/models/adapter.h"
#include "tessera/models/distillation.h"
#include "tessera/models/family.h"
#include "tessera/parallel/freezing.h"
#include "tessera/parallel/param_groups.h"
#include "tessera/parallel/parameter_rules.h"

namespace tessera::parallel {
class ProbeCache;
}

namespace tessera::planner {

/// The measured memory needs of a model's blocks (parallel/probe_cache.h). A copy of a model begins
/// with an empty cache, because it is made in order to change the model.
class Probes {
 public:
  Probes();
  Probes(const Probes& /*other*/) : Probes() {}
  Probes& operator=(const Probes& other);
  Probes(Probes&&) = default;
  Probes& operator=(Probes&&) = default;
  ~Probes() = default;
  [[nodiscard]] parallel::ProbeCache& cache() const { return *cache_; }

 private:
  std::shared_ptr<parallel::ProbeCache> cache_;
};

struct ModelPlan {
  models::ModelOptions options;  ///< the section `model`, with the options of model.from
  models::Resolved resolved;     ///< the model that is trained: with its adapter, if there is one
  /// The adapter of the section `adapter`; nullptr: there is none, and the whole model is trained.
  std::shared_ptr<const models::Adapter> adapter;
  std::optional<models::Resolved> base;  ///< the model without the adapter
  /// Fingerprint of the base's weights, which checkpoints store instead of the weights; empty if
  /// they contain the weights.
  std::string base_fingerprint;
  models::WeightSource weights;  ///< of model.from; empty: initialized from the seed
  models::DistillOptions distill;
  std::int64_t teacher_bytes = 0;  ///< of a rank, for the teacher of distill
  std::vector<parallel::ParamGroup> groups;
  parallel::FreezeSchedule freezing;  ///< of parameters that are trained in a part of the training
  parallel::ParameterRules rules;     ///< what the parameters need of their buffers
  Probes probes;
};

}  // namespace tessera::planner
