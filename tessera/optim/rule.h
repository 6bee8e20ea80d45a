// SPDX-License-Identifier: Apache-2.0
// An optimizer rule: which state it keeps and how it updates a range of elements.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/dtype.h"
#include "tessera/base/registry.h"
#include "tessera/config/fields.h"
#include "tessera/config/json.h"

namespace tessera::optim {

/// What a rule must see at once. Elementwise: AdamW. SegmentNorms: LAMB, LARS. WholeTensor:
/// Adafactor, Muon (gathered to an owner).
enum class Scope : std::uint8_t { Elementwise, SegmentNorms, WholeTensor };

struct StateSpec {
  std::string name;  ///< "exp_avg": key in checkpoints
  DType dtype = DType::F32;
};

/// A contiguous range of one parameter that this rank owns.
struct ShardView {
  float* master = nullptr;      ///< fp32 weights
  const float* grad = nullptr;  ///< fp32, before clipping
  std::uint16_t* working_bf16 =
      nullptr;  ///< receives the rounded weights; nullptr when the master is the working copy
  std::vector<float*> state;  ///< one for each StateSpec
  std::int64_t numel = 0;
  bool decay = true;  ///< weight decay applies to this parameter
};

struct UpdateScalars {
  double lr = 0.0;
  double grad_scale = 1.0;  ///< clip coefficient
  std::int64_t step = 1;    ///< of this update, from 1
};

/// Threads: one thread a rank calls update(); it may use at::get_num_threads() inside.
class Rule {
 public:
  virtual ~Rule() = default;
  [[nodiscard]] virtual Scope scope() const = 0;
  [[nodiscard]] virtual std::vector<StateSpec> state() const = 0;
  virtual void update(const ShardView& view, const UpdateScalars& scalars) const = 0;
  /// Learning rate that the parameters of the configuration ask for.
  [[nodiscard]] virtual double base_lr() const = 0;
};

/// optimizer.type and optimizer.params. Problems of the parameters carry their places.
using RuleFactory = std::unique_ptr<Rule> (*)(const json::Value& params,
                                              config::Problems& problems,
                                              config::Origins& origins);
Registry<RuleFactory>& rules();
/// The factory of an optimizer.type. Throws Error{Unsupported} "not built yet" for a name of
/// DeepSpeed's, torch's or BMTrain's that is not here, Error{Config} with the nearest name for any
/// other.
RuleFactory rule_factory(std::string_view type);
#define TESSERA_OPTIMIZER(name, factory) \
  static const bool tessera_optimizer_##factory = ::tessera::optim::rules().add(name, factory)

/// Sum of chunk sums in the order given; sqrt of it is the norm. Fixed order, so that layouts agree
/// to the bit.
double gradient_norm(std::span<const double> chunk_sums);
/// min(1, max_norm / (norm + 1e-6)); 1 when max_norm is 0. Source: torch.nn.utils.clip_grad_norm_.
double clip_coefficient(double norm, double max_norm);

}  // namespace tessera::optim
