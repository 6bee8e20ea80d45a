// SPDX-License-Identifier: Apache-2.0
// The keys `model.moe`: experts instead of the MLP in some or all layers of a decoder.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/config/fields.h"
#include "tessera/models/experts_spec.h"
#include "tessera/models/sizes.h"

namespace tessera::models {

/// The description of the section, which is the last one of a family.
inline constexpr const char* kMoeSentence =
    "Experts instead of the MLP in some or all layers, in all families of decoders with RMS norms, "
    "and in the default family. Families with experts have other defaults.";

struct MoeOptions {
  struct Router {
    std::string score = "softmax";
    bool normalize = true;
    double normalize_eps = 0.0;
    double scale = 1.0;
    std::int64_t groups = 1, top_groups = 1;
    std::string group_rank = "best_two";
    std::string choice = "best";
    double mixer_eps = 0.01;
    bool bias = false, correction = false;
    double bias_update = 0.0;
    bool weighs_inputs = false;
    void describe(config::Fields& fields);
  };
  struct Losses {
    double balance = 0.01, sequence_balance = 0.0, z = 0.0;
    bool pooled_layers = false, per_choice = true;
    void describe(config::Fields& fields);
  };

  std::int64_t num_experts = 0;  ///< 0: every layer has an MLP
  std::int64_t top_k = 2;
  std::int64_t first_dense = 0, every = 1;
  std::vector<double> layers;  ///< numbers of the sparse layers; empty: by first_dense and every
  std::optional<std::int64_t> ffn_hidden_size;
  std::int64_t shared = 0;
  std::optional<std::int64_t> shared_ffn_hidden_size;
  bool shared_gate = false;
  double capacity = 0.0;
  std::int64_t min_capacity = 0;
  std::string drop = "position";
  bool normalize_after_drop = false;
  Router router;
  Losses losses;

  void describe(config::Fields& fields);
  [[nodiscard]] bool sparse(std::int64_t layer) const;
  /// Width of the shared experts together, for experts of the given width.
  [[nodiscard]] std::int64_t shared_width(std::int64_t expert_width) const;
};

/// The values that the specification of experts takes from a model with these options.
struct MoeModel {
  std::int64_t num_layers = 0, hidden_size = 0, ffn_hidden_size = 0;
  std::string activation;
  bool gated = true, bias = false;
  double init_std = 0.02;
};
/// The experts of a model, with the default names of parameters. Requires num_experts > 0.
ExpertsSpec experts_of(const MoeOptions& options, const MoeModel& model);
/// Reports values that contradict each other.
void check_experts(const MoeOptions& options, const MoeModel& model, Checks& checks);

/// Makes the description of a model without experts, or whose router chooses the best ones, what it
/// was before there were experts and other choices: removes the section, or the key.
void leave_out_usual_experts(json::Value& description, std::int64_t num_experts);

}  // namespace tessera::models
