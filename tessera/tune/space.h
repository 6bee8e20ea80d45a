// SPDX-License-Identifier: Apache-2.0
// The layouts of a training: what a search may choose, and a choice as keys of a configuration.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tessera/config/json.h"
#include "tessera/parallel/flat_group_plan.h"
#include "tessera/parallel/pipeline/stage_layout.h"
#include "tessera/parallel/shard_store.h"
#include "tessera/planner/plan.h"
#include "tessera/predict/described_machine.h"
#include "tessera/predict/step_time.h"

namespace tessera::tune {

enum class Recompute : std::uint8_t { None, Selective, Full };
/// What rests on a disk. AsGiven: no folder is known, and the search does not choose.
enum class Offload : std::uint8_t { AsGiven, None, Optimizer, Weights };

/// One choice of everything that a search may change. A layout never changes the result of a
/// training except by the order of sums (docs/parallelism.md).
struct Choice {
  int ranks = 1;
  std::string mode = "1d";  ///< of tensor parallelism
  int tensor = 1;
  bool sequence = false;
  int context = 1;
  bool ulysses = false;
  int pipeline = 1, chunks = 1;
  std::string schedule = "1f1b";
  int zero = 0;
  std::int64_t micro = 1, accumulation = 1;
  Recompute recompute = Recompute::None;
  int threads = 0;          ///< of a rank; 0: as the configuration says
  std::int64_t bucket = 0;  ///< reduce_bucket_size; 0: as the configuration says
  /// Ranks that divide the experts of a layer (parallel.expert), data-parallel ones or also those
  /// of context and tensor; 0: there are none.
  int expert = 0;
  bool splits_experts = false;  ///< parallel.expert_tensor is the number of tensor-parallel ranks
  Offload offload = Offload::AsGiven;  ///< Weights: and the optimizer's states
  [[nodiscard]] int data() const { return ranks / (tensor * context * pipeline); }
  /// Of `expert`, the data-parallel ranks, as the plan spreads them; 0: they cannot be spread so,
  /// or there are none.
  [[nodiscard]] int data_experts() const;
  auto operator<=>(const Choice&) const = default;
};

/// The choice of a plan.
Choice choice_of(const planner::Plan& plan);
/// The keys of a configuration for a choice, with all their values.
std::vector<std::pair<std::string, json::Value>> keys_of(const Choice& choice);
/// The configuration with this choice.
json::Value with_choice(const json::Value& source, const Choice& choice);
/// The keys with which `choice` differs from `from`: "zero_optimization.stage 0 -> 1".
std::vector<std::string> differences(const Choice& from, const Choice& choice);
/// One line: "data 4 x tensor 2, ZeRO 1, micro-batch 4 x 8, recompute full".
std::string text_of(const Choice& choice);
json::Value to_json(const Choice& choice);
/// Throws Error{Format} for a value that is not of to_json().
Choice choice_from_json(const json::Value& value);

/// The values that a search keeps as the configuration has them.
struct Fixed {
  bool tensor = false, context = false, pipeline = false, schedule = false, zero = false,
       micro = false, recompute = false, threads = false, bucket = false, expert = false,
       offload = false;
};
/// Fixed for the names of keys: "zero_optimization.stage", or a section: "parallel". Throws
/// Error{Config} for a key that no search changes, with those that it changes.
Fixed fixed_of(const std::vector<std::string>& keys);

/// Fixes also what `more` fixes.
void add(Fixed& fixed, const Fixed& more);

/// A model whose layouts are compared: the plans of its choices, made on demand and kept.
class Space {
 public:
  /// `source`: the configuration; `name`: of its file. Throws the errors of the plan with the
  /// configuration's own layout.
  Space(const json::Value& source, int ranks, std::string name, predict::DescribedMachine machine);

  [[nodiscard]] const planner::Plan& base() const { return base_; }
  [[nodiscard]] const json::Value& source() const { return source_; }
  [[nodiscard]] const predict::DescribedMachine& machine() const { return machine_; }
  [[nodiscard]] const Choice& own() const { return own_; }
  predict::WorkCache& cache() { return cache_; }
  /// The smallest number of experts of a layer; 0: the model has none.
  [[nodiscard]] int experts() const { return experts_; }
  /// True if the configuration names the folder in which weights would rest.
  [[nodiscard]] bool weights_have_folder() const { return weight_offload_.has_value(); }
  /// The share of masters and states that rests on a disk if the optimizer is offloaded.
  [[nodiscard]] double offloaded_share() const;
  /// Bytes of a working weight, and of a sum of gradients.
  [[nodiscard]] double working_bytes() const;
  [[nodiscard]] double sum_bytes() const;

  /// The plan of a choice, without the rules between keys that only make_plan() checks. Throws an
  /// Error if ranks cannot share the layers or the tokens of this model in that way. Cost: a few
  /// milliseconds for the first choice with these ranks for layers and tokens.
  planner::Plan plan(const Choice& choice);
  /// The plan as a training would make it, which throws the errors of all rules.
  [[nodiscard]] planner::Plan checked_plan(const Choice& choice) const;

 private:
  using Shape = std::tuple<int, std::string, bool, int, bool, int, int>;
  void find_offload(int ranks);
  json::Value source_;
  std::string name_;
  predict::DescribedMachine machine_;
  planner::Plan base_;
  Choice own_;
  int experts_ = 0;
  // The folders and sizes of what may rest on a disk; nothing: no folder is given.
  std::optional<parallel::StateOffload> state_offload_;
  std::optional<parallel::WeightOffload> weight_offload_;
  predict::WorkCache cache_;
  std::map<Shape, std::pair<std::optional<planner::Plan>, std::string>> shapes_;
  /// By pipeline, schedule and chunks: they do not depend on the ranks that share a layer.
  std::map<std::tuple<int, std::string, int>, parallel::StageLayout> stages_;
};

}  // namespace tessera::tune
