// SPDX-License-Identifier: Apache-2.0
// The sections `bf16`, `amp`, `torch_autocast` and `data_types`; `fp16` is that of the loss scale.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "tessera/base/dtype.h"
#include "tessera/config/choices.h"
#include "tessera/config/fields.h"
#include "tessera/config/json.h"

namespace tessera::optim {

struct Bf16Options {
  bool enabled = false;
  bool bf16_master_weights_and_grads = false, bf16_optimizer_states = false;
  void describe(config::Fields& fields);
};
/// Apex's names of optimization levels.
enum class AmpLevel : std::uint8_t { O0, O1, O2, O3 };
inline constexpr auto kAmpLevels = std::to_array<config::Named<AmpLevel>>(
    {{AmpLevel::O0, "O0"}, {AmpLevel::O1, "O1"}, {AmpLevel::O2, "O2"}, {AmpLevel::O3, "O3"}});
struct AmpOptions {
  bool enabled = false;
  AmpLevel opt_level = AmpLevel::O1;
  json::Value loss_scale;  ///< "dynamic" or a number
  void describe(config::Fields& fields);
};
struct Fp16Options;
/// The loss scaling of `amp`; nothing at level O0, which is fp32. Reports a wrong loss_scale.
std::optional<Fp16Options> amp_scaling(const AmpOptions& amp,
                                       config::Problems& problems,
                                       const config::Origins& origins);
/// PyTorch's autocast, in DeepSpeed's notation.
struct TorchAutocastOptions {
  bool enabled = false;
  DType dtype = DType::BF16;
  void describe(config::Fields& fields);
};
struct DataTypesOptions {
  std::optional<DType> grad_accum_dtype;
  void describe(config::Fields& fields);
};

}  // namespace tessera::optim
