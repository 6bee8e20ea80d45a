// SPDX-License-Identifier: Apache-2.0
// An optimizer rule: the state it keeps and how it updates a range of elements.
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

/// The part of a parameter that a rule must see at once. Elementwise: AdamW. SegmentNorms: LAMB,
/// LARS (norms of the whole parameter, from sums over its chunks). WholeTensor: Adafactor, Muon
/// (the whole direction, gathered to one owner).
enum class Scope : std::uint8_t { Elementwise, SegmentNorms, WholeTensor };

/// The facts about a parameter, besides its values, that a rule may use.
struct ParamFacts {
  std::string name;
  std::int64_t rows = 1;     ///< of the matrix shape: the product of all dimensions but the last
  std::int64_t columns = 0;  ///< its last dimension; a vector has one row
  bool matrix = false;       ///< two or more dimensions
  bool embedding = false;    ///< a table or an output head over the vocabulary
  /// Several projections in one matrix (queries, keys and values): its rows are `row_groups` equal
  /// groups, each with the rows of every part in turn. Empty: one projection.
  std::int64_t row_groups = 1;
  std::vector<std::int64_t> row_parts = {};
  [[nodiscard]] std::int64_t numel() const { return rows * columns; }
};

/// Extent of a state. Elements: one value per weight, sharded as the weights are. Rows, Columns:
/// one per row or column of the matrix, complete at the owner of the parameter (WholeTensor rules
/// only).
enum class Extent : std::uint8_t { Elements, Rows, Columns };

struct StateSpec {
  std::string name;  ///< "exp_avg": the key in checkpoints
  DType dtype = DType::F32;
  Extent extent = Extent::Elements;
  /// A state of Extent::Elements that begins as a copy of the weights, and not with zeros.
  bool begins_as_weights = false;
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
  /// Of the parameter group: its rate is this times UpdateScalars::lr, even if the rule has a
  /// separate rate for such parameters.
  std::optional<double> lr_scale = {};
  std::optional<double> weight_decay = {};  ///< of the parameter group, instead of the rule's
  const ParamFacts* facts = nullptr;
  /// SegmentNorms and WholeTensor: square roots of the sums of the whole parameter that prepare()
  /// computed.
  std::span<const double> norms = {};
  /// WholeTensor: this range of the result of transform(); prepare() writes to it.
  float* direction = nullptr;
  Device device = {};  ///< device of all pointers except `norms`
};

/// A whole parameter at its owner.
struct MatrixView {
  float* direction = nullptr;  ///< [rows, columns]: from prepare() on entry, for update() on return
  std::vector<float*> state;   ///< one for each StateSpec of Extent::Rows or Columns, in order
  const ParamFacts* facts = nullptr;
  std::span<const double> norms = {};
};

class CompressedRule;

struct UpdateScalars {
  double lr = 0.0;
  double grad_scale = 1.0;  ///< clip coefficient divided by the loss scale
  std::int64_t step = 1;    ///< number of this update, from 1
  /// Instead of the rule's betas[0] or momentum, and betas[1], if a schedule changes them.
  std::optional<double> beta1 = {}, beta2 = {};
  double decay_scale = 1.0;  ///< factor on the weight decay, set by a schedule
  bool operator==(const UpdateScalars&) const = default;
};

/// An optimizer rule. Threads: one thread per rank calls the methods; they may use
/// at::get_num_threads() inside. All are pure functions of their arguments: everything a rule
/// remembers is in the state.
///
/// One update of a parameter. Elementwise: update() on every range. SegmentNorms: prepare() on
/// every range, the sums of all ranges reduced to norms, update(). WholeTensor: prepare(), the
/// direction gathered to one owner, transform() there, its result scattered, update().
class Rule {
 public:
  virtual ~Rule() = default;
  /// This rule where it is a compressed one (optim/compressed.h), else nullptr.
  [[nodiscard]] virtual const CompressedRule* compressed() const { return nullptr; }
  [[nodiscard]] virtual Scope scope(const ParamFacts& facts) const = 0;
  [[nodiscard]] virtual std::vector<StateSpec> state(const ParamFacts& facts) const = 0;
  /// Returns the number of norms of a parameter that update() needs; 0 for elementwise rules.
  [[nodiscard]] virtual int num_norms(const ParamFacts&) const { return 0; }
  /// Updates the state and writes what is needed from the whole parameter: `sums[k * chunks + c]`
  /// is the sum of squares of quantity k over chunk c (1024 elements, chunks = ceil(numel / 1024))
  /// in fp64, and view.direction for WholeTensor.
  virtual void prepare(const ShardView& /*view*/,
                       const UpdateScalars& /*scalars*/,
                       double* /*sums*/) const {}
  virtual void transform(const MatrixView& /*view*/, const UpdateScalars& /*scalars*/) const {}
  virtual void update(const ShardView& view, const UpdateScalars& scalars) const = 0;
  /// Returns whether the rule reads or writes weights itself instead of through ops/: it then only
  /// updates memory of the host.
  [[nodiscard]] virtual bool host_only() const { return compressed() != nullptr; }
  /// Returns whether the rule has betas: DeepSpeed's OneCycle only changes the momentum of such
  /// rules.
  [[nodiscard]] virtual bool has_betas() const { return true; }
  /// Returns the learning rate that the configuration's parameters set.
  [[nodiscard]] virtual double base_lr() const = 0;
  /// Returns whether the rule determines its rate by itself and base_lr() is only a factor on it:
  /// parameters then cannot have separate rates.
  [[nodiscard]] virtual bool makes_lr() const { return false; }
  /// Returns the weight decay that the parameters set, or the rule's default.
  [[nodiscard]] virtual double base_weight_decay() const = 0;
};

/// Creates a rule from optimizer.params. Problems of the parameters carry their places.
using RuleFactory = std::unique_ptr<Rule> (*)(const json::Value& params,
                                              config::Problems& problems,
                                              config::Origins& origins);
Registry<RuleFactory>& rules();
/// Returns the factory of an optimizer.type. Throws Error{Config} with the nearest name for an
/// unknown one.
RuleFactory rule_factory(std::string_view type);
#define TESSERA_OPTIMIZER(name, factory) \
  static const bool tessera_optimizer_##factory = ::tessera::optim::rules().add(name, factory)

/// Returns the square root of the sum of chunk sums in the order given. The order is fixed, so that
/// all layouts compute the same bits.
double gradient_norm(std::span<const double> chunk_sums);
/// Returns min(1, max_norm / (norm + 1e-6)); 1 if max_norm is 0. Source:
/// torch.nn.utils.clip_grad_norm_.
double clip_coefficient(double norm, double max_norm);

}  // namespace tessera::optim
