// SPDX-License-Identifier: Apache-2.0
// Master weights and optimizer state, sharded over data-parallel ranks (ZeRO stages 1 to 3) or
// replicated (stage 0). Source: Rajbhandari et al. 2020, "ZeRO: memory optimizations toward
// training trillion parameter models".
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/comm/world.h"
#include "tessera/optim/rule.h"
#include "tessera/parallel/compressed_state.h"
#include "tessera/parallel/gradient_fold.h"
#include "tessera/parallel/held.h"
#include "tessera/parallel/model_instance.h"

namespace tessera::parallel {

/// Types of what is kept between updates: F32, or the type of working weights of 16 bits. Without
/// fp32 masters the working weights are the only ones; every update widens a parameter, and rounds
/// it to nearest.
struct KeptTypes {
  DType masters = DType::F32;
  DType states = DType::F32;  ///< of Extent::Elements
};
/// How one parameter is updated, beside the rule's own options.
struct ParamSetting {
  bool decay = true;
  std::optional<double> lr_scale = {};  ///< as optim::ShardView's
  std::optional<double> weight_decay = {};
};
using ParamSettings = std::function<ParamSetting(const ParamInfo&)>;
/// What a rule may know of a parameter. Tables and output heads count as embeddings.
optim::ParamFacts facts_of(const ParamInfo& info);

/// In a checkpoint, F64 [1]: updates of the training before the state of a parameter began; absent
/// where it began with the training.
std::string beginning_of(std::string_view parameter);
/// Updates that a checkpoint counts.
std::int64_t updates_in(const checkpoint::Meta& meta);
/// Those before the state of the parameter began. Error{Format} for what is no count of them.
std::int64_t updates_before(const checkpoint::Checkpoint& checkpoint, std::string_view parameter);

/// Memory of a parameter: fp32 working: 0 + state; 16-bit working: 4 (masters of 16 bits: 0) +
/// state; divided by n from stage 1 on. Masters or states of 16 bits: one parameter in fp32 during
/// an update, all of them between pieces() and what ends it. Threads: the rank's own. All methods
/// are collective.
///
/// Rules that need norms fold sums over (parameter, 1024 elements) in one order; rules that need
/// whole tensors send the direction of each to one owner, the load of matrix products balanced over
/// the ranks, and get it back. Both give the same bits on any number of ranks. A
/// optim::CompressedRule works in stages 0 and 1, with the same bits in both on the same ranks; one
/// with local_weights() in stage 0. Where tensor-parallel ranks hold boxes of the parameters, norms
/// are sums over the boxes, whole tensors are put together of them, and there is no compression.
class ShardedOptimizer {
 public:
  /// stage: 0 to 3, as the model's weights are spread. `rule` must outlive this.
  ShardedOptimizer(comm::World& world,
                   ModelInstance& model,
                   const optim::Rule& rule,
                   int stage,
                   ParamSettings settings,
                   KeptTypes kept = {});
  ~ShardedOptimizer();

  /// First weights: every rank fills only what it owns, then whole working weights are gathered.
  void fill(const FillRange& source);
  /// One update from the folded gradients; the gather of whole weights is only posted.
  void update(GradientFold& gradients, const optim::UpdateScalars& scalars);
  /// Whether update `step` takes the gradients that ranks kept (GradientFold::keep_own).
  [[nodiscard]] bool compresses(std::int64_t step) const;
  /// Until every rank has the working weights that it keeps.
  void wait_weights();

  /// What this rank owns: master weights under the parameter's name, state as
  /// "optimizer.<state>.<name>", all fp32. With `for_save` every element of the job appears on
  /// exactly one rank; without it on every rank that needs it. Call wait_weights() first, and
  /// publish() or release_pieces() after.
  [[nodiscard]] std::vector<checkpoint::PieceBytes> pieces(bool for_save);
  /// After pieces() were read.
  void release_pieces() { widened_.clear(); }
  /// Everything of a checkpoint that any layout wrote, and working weights from it, gathered. For a
  /// parameter of which it has no state the rule counts updates from here on, as torch does.
  void load(const checkpoint::Checkpoint& checkpoint);

 private:
  /// The range of one parameter that this rank updates.
  struct Part {
    const Segment* segment = nullptr;
    int group = 0;
    int segment_index = 0;
    std::int64_t at = 0;     ///< in the slot's range
    std::int64_t first = 0;  ///< element of what this rank holds of the parameter
    std::int64_t numel = 0;  ///< 0 where the rank only owns the whole tensor's transform
    ParamSetting setting;
    optim::ParamFacts facts;
    std::vector<at::Tensor> state;  ///< of Extent::Elements, in the type that is kept
    at::Tensor direction;           ///< during an update
    std::vector<double> norms;      ///< during an update
  };
  /// A parameter whose direction is transformed whole.
  struct Whole {
    int group = 0, segment = 0;
    int owner = 0;                  ///< index in the data-parallel group
    std::vector<at::Tensor> state;  ///< of Extent::Rows and Columns, at the owner
    std::vector<double> norms;
    optim::ParamFacts facts;
  };
  struct Slot {
    std::int64_t begin = 0, numel = 0;  ///< the range of the flat buffer that this rank updates
    at::Tensor master_storage;  ///< private fp32 masters; undefined where the working weights are
                                ///< the masters
    float* master = nullptr;    ///< nullptr: masters of 16 bits
    std::vector<Part> parts;
  };
  /// One part as a rule sees it: what is kept in 16 bits is widened, and rounded back by keep().
  class Wide;
  optim::ShardView view_of_part(Part& part, const float* gradient);
  void make_parts(std::size_t group);
  void assign_owners();
  [[nodiscard]] bool owns(const Whole& whole) const {
    return stage_ == 0 || whole.owner == group_.index;
  }
  [[nodiscard]] const Segment& segment_of(const Whole& whole) const {
    return model_.groups()[static_cast<std::size_t>(whole.group)]
        .layout.segments()[static_cast<std::size_t>(whole.segment)];
  }
  at::Tensor gradient(GradientFold& gradients, std::size_t group);
  float* wide_copy(const at::Tensor& narrow);
  void prepare(GradientFold& gradients, const optim::UpdateScalars& scalars);
  void fold_norms(std::vector<double> sums, const std::vector<std::int64_t>& offsets);
  void add_boxes(std::vector<double>& totals, const std::vector<const ParamInfo*>& of);
  void transform(const optim::UpdateScalars& scalars);
  void transform_one(Whole& whole, const optim::UpdateScalars& scalars);
  at::Tensor whole_of(const ParamInfo& info, const at::Tensor& held);
  Part* part_of(int group, int segment);
  void update_group(std::size_t group,
                    GradientFold& gradients,
                    const optim::UpdateScalars& scalars);
  void publish();
  void publish_group(std::size_t group);
  void load_beginnings(const checkpoint::Checkpoint& checkpoint);
  void add_beginnings(std::vector<checkpoint::PieceBytes>& out);
  [[nodiscard]] optim::UpdateScalars scalars_of(const optim::ParamFacts& facts,
                                                optim::UpdateScalars scalars) const;
  // Of a compressed rule, in compressed_update.cpp.
  [[nodiscard]] at::Tensor new_state(const Part& part, std::size_t index, const std::string& name);
  [[nodiscard]] bool stands_elsewhere(std::size_t index, const std::string& state, bool for_save);
  void add_compressed_pieces(std::vector<checkpoint::PieceBytes>& out, bool for_save);
  void update_compressed(GradientFold& gradients, optim::UpdateScalars scalars);
  void start_compressed();
  void make_vectors(GradientFold& gradients, const optim::UpdateScalars& scalars);
  void measure(const optim::UpdateScalars& scalars);
  optim::CompressedView compressed_view(Part& part);
  optim::CompressedView whole_view(CompressedState::Tensor& tensor, const at::Tensor& gradient);
  [[nodiscard]] bool local_weights() const {
    return compressed_ != nullptr && compressed_->rule().local_weights();
  }

  comm::World& world_;
  ModelInstance& model_;
  const comm::Group& group_;
  const optim::Rule& rule_;
  int stage_;
  ParamSettings settings_;
  KeptTypes kept_;
  std::vector<Slot> slots_;
  std::vector<Whole> wholes_;
  std::unique_ptr<CompressedState> compressed_;  ///< of a compressed rule
  bool elementwise_ = true;
  /// Of trainable parameters here whose state began after the first update: beginning_of().
  std::map<std::string, double> beginnings_;
  /// Between pieces() and publish() or release_pieces(): fp32 copies of what is kept in 16 bits.
  std::vector<std::pair<at::Tensor, at::Tensor>> widened_;
};

}  // namespace tessera::parallel
