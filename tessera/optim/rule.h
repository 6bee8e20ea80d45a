// SPDX-License-Identifier: Apache-2.0
// An optimizer rule: which state it keeps and how it updates a range of elements.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/dtype.h"
#include "tessera/base/registry.h"
#include "tessera/config/fields.h"
#include "tessera/config/json.h"

namespace tessera::optim {

/// What a rule must see at once of a parameter. Elementwise: AdamW. SegmentNorms: LAMB, LARS (norms
/// of the whole parameter, from sums over its chunks). WholeTensor: Adafactor, Muon (the whole
/// direction, gathered to one owner).
enum class Scope : std::uint8_t { Elementwise, SegmentNorms, WholeTensor };

/// What a rule may know about a parameter apart from its values.
struct ParamFacts {
  std::string name;
  std::int64_t rows = 1;     ///< of the matrix shape; all dimensions but the last
  std::int64_t columns = 0;  ///< its last dimension; a vector has one row
  bool matrix = false;       ///< two or more dimensions
  bool embedding = false;    ///< a table or a head over the vocabulary
  [[nodiscard]] std::int64_t numel() const { return rows * columns; }
};

/// Elements: one value for each weight, sharded as the weights are. Rows, Columns: one for each row
/// or column of the matrix, whole at the parameter's owner (WholeTensor rules only).
enum class Extent : std::uint8_t { Elements, Rows, Columns };

struct StateSpec {
  std::string name;  ///< "exp_avg": key in checkpoints
  DType dtype = DType::F32;
  Extent extent = Extent::Elements;
};

/// A contiguous range of one parameter that this rank owns. It begins at a multiple of 1024
/// elements of the parameter.
struct ShardView {
  float* master = nullptr;      ///< fp32 weights
  const float* grad = nullptr;  ///< fp32, before clipping
  /// Receives the rounded weights; nullptr when the master is the working copy.
  std::uint16_t* working = nullptr;
  DType working_dtype = DType::BF16;  ///< BF16 or F16
  std::vector<float*> state;          ///< one for each StateSpec of Extent::Elements, in order
  std::int64_t numel = 0;
  bool decay = true;  ///< weight decay applies to this parameter
  /// Of the parameter's group: its rate is this times UpdateScalars::lr, also where the rule has a
  /// rate of its own for such parameters.
  std::optional<double> lr_scale = {};
  std::optional<double> weight_decay = {};  ///< of the parameter's group, instead of the rule's
  const ParamFacts* facts = nullptr;
  /// SegmentNorms and WholeTensor: square roots of the whole parameter's sums that prepare() made.
  std::span<const double> norms = {};
  /// WholeTensor: this range of what transform() made; written by prepare().
  float* direction = nullptr;
};

/// A whole parameter at its owner.
struct MatrixView {
  float* direction = nullptr;  ///< [rows, columns]: prepare()'s on entry, what update() takes after
  std::vector<float*> state;   ///< one for each StateSpec of Extent::Rows or Columns, in order
  const ParamFacts* facts = nullptr;
  std::span<const double> norms = {};
};

class CompressedRule;

struct UpdateScalars {
  double lr = 0.0;
  double grad_scale = 1.0;  ///< clip coefficient, divided by the loss scale
  std::int64_t step = 1;    ///< of this update, from 1
  /// Instead of the rule's betas[0] or momentum (a schedule moves it), and betas[1].
  std::optional<double> beta1 = {}, beta2 = {};
  double decay_scale = 1.0;  ///< of the weight decay (a schedule moves it)
};

/// Threads: one thread a rank calls these; they may use at::get_num_threads() inside. All are pure
/// functions of their arguments: what a rule remembers is in the state.
///
/// One update of a parameter: Elementwise: update() on every range. SegmentNorms: prepare() on
/// every range, the sums of all ranges folded into norms, update(). WholeTensor: prepare(), the
/// direction gathered to one owner, transform() there, its result scattered, update().
class Rule {
 public:
  virtual ~Rule() = default;
  /// This rule where it is a compressed one (optim/compressed.h), else nullptr.
  [[nodiscard]] virtual const CompressedRule* compressed() const { return nullptr; }
  [[nodiscard]] virtual Scope scope(const ParamFacts& facts) const = 0;
  [[nodiscard]] virtual std::vector<StateSpec> state(const ParamFacts& facts) const = 0;
  /// How many norms of a parameter update() needs; 0 for elementwise rules.
  [[nodiscard]] virtual int num_norms(const ParamFacts&) const { return 0; }
  /// Moves the state and writes what must be known of the whole: `sums[k * chunks + c]` is the sum
  /// of squares of quantity k over chunk c (1024 elements, chunks = ceil(numel / 1024)) in fp64,
  /// and for WholeTensor view.direction.
  virtual void prepare(const ShardView& /*view*/,
                       const UpdateScalars& /*scalars*/,
                       double* /*sums*/) const {}
  virtual void transform(const MatrixView& /*view*/, const UpdateScalars& /*scalars*/) const {}
  virtual void update(const ShardView& view, const UpdateScalars& scalars) const = 0;
  /// Whether its parameters have betas: DeepSpeed's OneCycle moves the momentum of no other.
  [[nodiscard]] virtual bool has_betas() const { return true; }
  /// Learning rate that the parameters of the configuration ask for.
  [[nodiscard]] virtual double base_lr() const = 0;
  /// Whether the rule makes its rate by itself and base_lr() only multiplies it: then no parameter
  /// can have a rate of its own.
  [[nodiscard]] virtual bool makes_lr() const { return false; }
  /// Weight decay that they ask for, or that the rule has without them.
  [[nodiscard]] virtual double base_weight_decay() const = 0;
};

/// optimizer.type and optimizer.params. Problems of the parameters carry their places.
using RuleFactory = std::unique_ptr<Rule> (*)(const json::Value& params,
                                              config::Problems& problems,
                                              config::Origins& origins);
Registry<RuleFactory>& rules();
/// The factory of an optimizer.type. Throws Error{Config} with the nearest name for one that is not
/// here.
RuleFactory rule_factory(std::string_view type);
#define TESSERA_OPTIMIZER(name, factory) \
  static const bool tessera_optimizer_##factory = ::tessera::optim::rules().add(name, factory)

/// Sum of chunk sums in the order given; sqrt of it is the norm. Fixed order, so that layouts agree
/// to the bit.
double gradient_norm(std::span<const double> chunk_sums);
/// min(1, max_norm / (norm + 1e-6)); 1 when max_norm is 0. Source: torch.nn.utils.clip_grad_norm_.
double clip_coefficient(double norm, double max_norm);

}  // namespace tessera::optim
