// SPDX-License-Identifier: Apache-2.0
// Published closed forms of memory, with which a plan's own prediction can be compared.
#pragma once

#include <cstdint>

namespace tessera::predict {

/// Bytes of weights, gradients and Adam's states of a rank in mixed precision: 2, 2 and 12 for each
/// parameter, which ZeRO stages 1 to 3 divide among `ranks`. Source: Rajbhandari et al. 2020,
/// section 3.1.
double zero_state_bytes(double parameters, int stage, int ranks);

/// The sizes of a transformer in Korthikanti's notation.
struct ActivationSizes {
  double layers = 1, heads = 1, hidden = 1, length = 1, micro = 1;
  int tensor = 1, pipeline = 1, chunks = 1;
};
enum class Kept : std::uint8_t {
  All,                ///< nothing is recomputed
  Sequence,           ///< sequence parallelism
  Selective,          ///< attention is recomputed
  SequenceSelective,  ///< both
  Inputs              ///< everything is recomputed from the inputs of the layers
};
/// Bytes that the first stage of a pipeline keeps for backward, in 16 bits with dropout masks of
/// one byte. Interleaved schedules keep 1 + (p - 1) / (p v) times as much as 1F1B. Source:
/// Korthikanti et al. 2022, table 2.
double activation_bytes(const ActivationSizes& sizes, Kept kept);
/// Bytes of weights, gradients and optimizer of a rank in Megatron-LM, without embeddings: 18 for
/// each of 12 x layers x hidden^2 parameters.
double layer_state_bytes(const ActivationSizes& sizes);

}  // namespace tessera::predict
