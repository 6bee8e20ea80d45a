// SPDX-License-Identifier: Apache-2.0
// The kernels behind the operations: one implementation per kind of device.
//
// A public function of this folder checks its arguments, opens its OpScope, allocates its result
// and calls the backend of its tensors' device. On meta it calls none, so that a run on meta
// tensors gives the work of a training and, with meta_device.h, its memory. A backend is a folder
// (ops/cpu, ops/aten) that registers itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include <c10/core/Device.h>

#include "tessera/base/registry.h"
#include "tessera/ops/activation.h"
#include "tessera/ops/attention.h"
#include "tessera/ops/cross_entropy.h"
#include "tessera/ops/dropout.h"
#include "tessera/ops/fused_adamw.h"
#include "tessera/ops/fused_rules.h"
#include "tessera/ops/int8_rows.h"
#include "tessera/ops/linear.h"
#include "tessera/ops/norm.h"
#include "tessera/ops/paged_attention.h"
#include "tessera/ops/reduce_parts.h"
#include "tessera/ops/rotary.h"
#include "tessera/ops/sampler.h"

namespace tessera::ops {

/// Layer norm, or RMS norm if `mean_N` is undefined.
struct NormArgs {
  const at::Tensor &x_NC, &weight_C;
  const at::Tensor& bias_C;     ///< or undefined
  const at::Tensor& branch_NC;  ///< or undefined
  double eps;
  // Destinations.
  const at::Tensor &y_NC, &mean_N, &rstd_N;
  const at::Tensor& sum_NC;  ///< x + dropout(branch), if there is a branch
  /// The dropout of the branch, whose first dim is that of the samples; nullptr: none.
  const DropoutKey* key = nullptr;
};
/// The backward of a layer norm, or of an RMS norm if `mean_N` is undefined.
struct NormGradArgs {
  const at::Tensor &dy_NC, &x_NC, &mean_N, &rstd_N;
  const at::Tensor& weight_C;  ///< undefined if dx is not needed
  const at::Tensor& plus_NC;   ///< or undefined
  // Destinations; undefined if not needed.
  const at::Tensor &dx_NC, &dweight_C, &dbias_C;
  bool accumulate_weight, accumulate_bias;
  /// dropout(dx) by this key, into `dbranch_NC`; nullptr: not needed.
  const DropoutKey* key = nullptr;
  at::Tensor dbranch_NC = {};
};

/// The kernels for one kind of device. backend_ops.inc lists the operations and states the rules
/// for their arguments.
class Backend {
 public:
  /// The products of linear.h; a scaled one has a factor.
  enum class Product { Linear, InputGrad, WeightGrad, ScaledWeightGrad };

  Backend() = default;
  virtual ~Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  [[nodiscard]] virtual bool runs_on(c10::DeviceType type) const = 0;

#define TESSERA_OP(result, name, parameters) virtual result name parameters const = 0;
#include "tessera/ops/backend_ops.inc"
};

/// All backends by name; static objects register them.
Registry<const Backend*>& backends();
#define TESSERA_BACKEND(name, backend) \
  static const bool tessera_backend_##name = ::tessera::ops::backends().add(#name, &(backend))

/// A number that changes with the list of operations and with the sizes of their arguments. A
/// plugin compares its own one with that of the library.
std::uint64_t operations_of_library();
constexpr std::uint64_t hash_of(std::string_view text, std::initializer_list<std::size_t> sizes) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;  // FNV-1a
  const auto add = [&](std::uint64_t value) { hash = (hash ^ value) * 0x100000001b3ULL; };
  for (const char c : text)
    add(static_cast<unsigned char>(c));
  for (const std::size_t size : sizes)
    add(size);
  return hash;
}
#define TESSERA_OP(result, name, parameters) #result " " #name #parameters ";"
#define TESSERA_OP_VALUE TESSERA_OP
inline constexpr std::uint64_t kOperations = hash_of(
#include "tessera/ops/backend_ops.inc"
    , {sizeof(NormArgs),  sizeof(NormGradArgs), sizeof(AttentionArgs),  sizeof(AttentionOut),
       sizeof(KvPages),   sizeof(RotaryTable),  sizeof(DropoutKey),     sizeof(SamplerOptions),
       sizeof(RuleRange), sizeof(Int8Rows),     sizeof(AttentionGrads), sizeof(AdamWScalars),
       sizeof(SgdStep),   sizeof(AdagradStep),  sizeof(LionStep),       sizeof(RmspropStep),
       sizeof(NAdamStep), sizeof(AdamaxStep),   sizeof(LambStep),       sizeof(DirectionStep)});

/// The backend for tensors on `device`. For the CPU: "batch_invariant" within a BatchInvariance,
/// else the one that TESSERA_KERNELS names (read once), by default "cpu"; throws Error{Config} for
/// a name that does not run there. For another device: the one of a plugin with the device's
/// name and "_plugin" ("cuda_plugin"), else the one with its name ("cuda"), else "aten". Can be
/// called from any thread.
const Backend& backend(c10::Device device);
const Backend& backend(Device device);

}  // namespace tessera::ops
