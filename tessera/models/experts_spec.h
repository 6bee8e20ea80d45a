// SPDX-License-Identifier: Apache-2.0
// The description of a sparse feed-forward network (mixture of experts): the router, the experts,
// shared experts, and the terms of the loss that balance them. docs/experts.md explains the values.
#pragma once

#include <cstdint>
#include <string>

#include "tessera/nn/balance.h"
#include "tessera/ops/router.h"
#include "tessera/tensor/param.h"

namespace tessera::models {

/// The activation between the two projections of an expert.
struct ExpertActivation {
  std::string name = "silu";  ///< of ops::activation_from_name()
  bool gated = true;          ///< activation(gate) * up; else activation(up)
  /// gpt_oss: (min(max(up, -limit), limit) + 1) * gate * sigmoid(1.702 gate) with gate =
  /// min(gate, limit), instead of `name`; 0: not this form.
  double clamp = 0.0;
};

/// Experts that every token uses, as one MLP.
struct SharedExpertsSpec {
  std::int64_t ffn_hidden_size = 0;  ///< of all of them together; 0: none
  std::string input_name = "mlp.shared_expert.gate_up_proj",
              output_name = "mlp.shared_expert.down_proj";
  /// If not empty, the output is multiplied by sigmoid(x w^T) with the weight of this name [1, C].
  std::string gate_name;
};

/// A sparse feed-forward network in a layer. Names of parameters are without ".weight".
struct ExpertsSpec {
  std::int64_t hidden_size = 0;
  std::int64_t ffn_hidden_size = 0;  ///< of one expert
  std::int64_t num_experts = 0;
  ops::RouterSpec router;
  /// In training, each number that the router reads is multiplied by a random one of [1 - jitter, 1
  /// + jitter).
  double jitter = 0.0;
  /// `router_name`.weight [E, C], with router.bias also `router_name`.bias [E].
  std::string router_name = "mlp.gate";
  /// With router.correction: [E], not trained by gradients.
  std::string correction_name = "mlp.gate.e_score_correction_bias";
  /// Stacked over the experts: `input_name`.weight [E, 2, F, C] with the gate first, or [E, F, C]
  /// without a gate; `output_name`.weight [E, C, F].
  std::string input_name = "mlp.experts.gate_up_proj", output_name = "mlp.experts.down_proj";
  bool bias = false;               ///< `input_name`.bias [E, 2, F], `output_name`.bias [E, C]
  std::string sum_bias_name = {};  ///< a bias [C] of the sum over experts (JetMoE); empty: none
  ExpertActivation activation;
  SharedExpertsSpec shared;
  nn::BalanceSpec balance;
  ops::CapacitySpec capacity;
  Init router_init, input_init, output_init;
};

}  // namespace tessera::models
