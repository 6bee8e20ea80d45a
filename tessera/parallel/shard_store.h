// SPDX-License-Identifier: Apache-2.0
// The master weights and optimizer states that a rank owns: which range of which flat group, in
// which dtype, in which memory, and as which pieces of a checkpoint.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/comm/world.h"
#include "tessera/optim/rule.h"
#include "tessera/parallel/held.h"
#include "tessera/parallel/kept_state.h"
#include "tessera/parallel/model_instance.h"
#include "tessera/parallel/state_beginnings.h"

namespace tessera::parallel {

/// Dtypes of the values kept between updates: F32, or the dtype of 16-bit working weights. Without
/// fp32 masters the working weights are the only weights; every update widens a parameter to fp32
/// and rounds it to nearest.
struct KeptTypes {
  DType masters = DType::F32;
  DType states = DType::F32;  ///< states of Extent::Elements
  bool operator==(const KeptTypes&) const = default;
};
/// Settings for the update of one parameter, in addition to the rule's options.
struct ParamSetting {
  bool decay = true;
  std::optional<double> lr_scale = {};  ///< see optim::ShardView
  std::optional<double> weight_decay = {};
};
using ParamSettings = std::function<ParamSetting(const ParamInfo&)>;

/// A state of Extent::Elements for a range of a parameter, such as its momentum.
struct ShardState {
  std::string name;  ///< see optim::StateSpec
  KeptState kept;    ///< values of the range
  /// True if the store's pieces for a save, and for a load, contain the state. If not, the pieces
  /// of the update strategy contain it.
  bool in_saves = true, in_loads = true;
  bool begins_as_weights = false;  ///< see optim::StateSpec
};

/// The range of one parameter, or of one matrix of a stacked parameter, that this rank updates.
struct ParamShard {
  const Segment* segment = nullptr;
  int group = 0;
  int segment_index = 0;
  std::int64_t at = 0;  ///< offset in the group's shard
  /// Offset in the part of the parameter, or of the matrix, that the model-parallel rank holds.
  std::int64_t first = 0;
  std::int64_t numel = 0;
  ParamSetting setting;
  optim::ParamFacts facts;
  std::vector<ShardState> states;
  at::Tensor direction;       ///< only during an update
  std::vector<double> norms;  ///< only during an update
};

/// Receives a range of a trained parameter: its weights and its gradient, fp32 on the host; the
/// gradient is undefined if it is not known.
using TrainedVisitor = std::function<void(
    const ParamInfo& info, const at::Tensor& weights, const at::Tensor& gradient)>;

/// Memory per parameter element: fp32 working weights: 0 + states; 16-bit working weights: 4 (with
/// 16-bit masters: 0) + states; frozen: 0; divided by the number of ranks of the buffer's fold from
/// stage 1 on. Used only on the rank's own thread.
class ShardStore {
 public:
  struct Options {
    int stage = 0;  ///< ZeRO stage; 0: every rank updates the whole buffers
    ParamSettings settings = {};
    KeptTypes kept = {};
    /// A rank's working weights are master + states[0], so fp32 masters are stored separately.
    bool local_weights = false;
    /// Pieces contain trained parameters only, because another file holds the others.
    bool trained_alone = false;
    /// Parameters whose state is missing in a checkpoint count their updates from that checkpoint
    /// on.
    bool counts_from_beginnings = true;
    /// Allocates state `index` of a shard; if unset, states are zeros in the kept dtype.
    std::function<ShardState(const ParamShard&, std::size_t index, const std::string& name)>
        make_state = {};
  };

  /// World, model and rule must outlive this.
  ShardStore(comm::World& world, ModelInstance& model, const optim::Rule& rule, Options options);
  ShardStore(const ShardStore&) = delete;
  ShardStore& operator=(const ShardStore&) = delete;

  [[nodiscard]] std::size_t num_groups() const { return slots_.size(); }
  /// The shards of a flat group in the order of the buffer, including those of frozen groups.
  [[nodiscard]] std::vector<ParamShard>& shards(std::size_t group) { return slots_[group].shards; }
  /// Returns nullptr if another rank updates all of the parameter.
  [[nodiscard]] ParamShard* find(int group, int segment);
  /// A shard as the rule sees it; `gradient` points to its first element. Pointers to values stored
  /// in fewer bits are null.
  [[nodiscard]] optim::ShardView view(ParamShard& shard, const float* gradient);
  [[nodiscard]] const Options& options() const { return options_; }
  [[nodiscard]] const StateBeginnings& beginnings() const { return beginnings_; }

  /// Follows ModelInstance::freeze_sets() for a group that changed: if it is trained now, its
  /// masters are the working weights, its states are new, and its updates count from `updates` on;
  /// if it is frozen now, masters and states are freed. Not for stores with local weights.
  void follow_model(std::size_t group, std::int64_t updates);
  /// Initializes the weights: fills the ranges that this rank owns, then calls publish().
  void fill(const FillRange& source);
  /// Swaps the fp32 masters of trainable parameters with their state of that name, if both are
  /// fp32, then calls publish(). A second call restores the exact bits.
  void exchange_masters(std::string_view state);
  /// Initializes states that begin as the weights; `lacks` returns whether a checkpoint lacks a
  /// piece.
  void begin_as_weights(const std::function<bool(const std::string& piece)>& lacks);
  /// Copies the masters into the working weights and starts their gather.
  void publish();
  /// Copies the masters of one group, without the gather.
  void publish_group(std::size_t group);

  /// Appends masters and states as fp32. With `for_save` every element of the job appears on
  /// exactly one rank; without it, on every rank that needs it. The pieces are valid until
  /// publish() or release_pieces().
  void add_pieces(std::vector<checkpoint::PieceBytes>& out, bool for_save);
  /// Calls `visit` for ranges of all trained parameters, so that every element of the job is
  /// visited on exactly one rank. `gradient_of` returns the gradient of a group's shard, or an
  /// undefined tensor, and is called for every trained group in ascending order on every rank.
  void visit_trained(const std::function<at::Tensor(std::size_t group)>& gradient_of,
                     const TrainedVisitor& visit);
  /// Appends the beginnings of this stage's parameters to the pieces of a save, on one rank of the
  /// stage.
  void add_beginnings(std::vector<checkpoint::PieceBytes>& out);
  void load_beginnings(const checkpoint::Checkpoint& checkpoint);
  void release_pieces() { widened_.clear(); }

 private:
  friend class WidenedShard;
  struct Slot {
    OwnedRange range;           ///< range of the flat buffer that this rank updates
    at::Tensor master_storage;  ///< fp32 masters separate from the working weights; else undefined
    float* master = nullptr;    ///< nullptr: 16-bit masters
    std::vector<ParamShard> shards;
  };
  static void begin_as_weights(const Slot& slot,
                               const std::function<bool(const std::string& piece)>& lacks);
  void make_masters(std::size_t group);
  void make_shards(std::size_t group);
  [[nodiscard]] ShardState make_state(const ParamShard& shard, const optim::StateSpec& spec) const;
  /// The 16-bit masters of the shard, a view.
  [[nodiscard]] at::Tensor working_of(const ParamShard& shard) const;
  float* widen(const KeptState& kept);
  /// The range of the shard that the pieces contain; empty if another rank has all of it.
  [[nodiscard]] std::optional<Segment> piece_range(std::size_t group,
                                                   const ParamShard& shard,
                                                   bool for_save) const;
  void add_shard_pieces(const Segment& range,
                        ParamShard& shard,
                        float* masters,
                        bool for_save,
                        std::vector<checkpoint::PieceBytes>& out);

  comm::World& world_;
  ModelInstance& model_;
  const optim::Rule& rule_;
  Options options_;
  c10::Device device_;  ///< device of weights and states
  std::vector<Slot> slots_;
  StateBeginnings beginnings_;
  /// Between add_pieces() and publish() or release_pieces(): fp32 copies on the host of states that
  /// are stored in fewer bits or on a device, and the states they copy.
  std::vector<std::pair<at::Tensor, KeptState>> widened_;
};

/// A shard for one call of a rule, with values of fewer bits copied to fp32.
class WidenedShard {
 public:
  /// `gradient` points to the first element of the group's shard.
  WidenedShard(ShardStore& store, ParamShard& shard, const float* gradient);
  [[nodiscard]] const optim::ShardView& view() const { return view_; }
  /// Rounds the states that the rule changed to their dtype. The rule itself rounds the weights.
  void write_back();

 private:
  ParamShard& shard_;
  at::Tensor master_;
  std::vector<at::Tensor> states_;
  optim::ShardView view_;
};

}  // namespace tessera::parallel
