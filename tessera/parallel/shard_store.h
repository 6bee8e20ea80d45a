// SPDX-License-Identifier: Apache-2.0
// The master weights and optimizer states that a rank owns: which range of which flat group, in
// which dtype, in which memory, and as which pieces of a checkpoint. Values are used through leases
// only, because they may rest outside of working memory between updates.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
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
#include "tessera/memory/tiers/tier.h"
#include "tessera/optim/rule.h"
#include "tessera/parallel/held.h"
#include "tessera/parallel/kept_state.h"
#include "tessera/parallel/model_instance.h"
#include "tessera/parallel/state_beginnings.h"
#include "tessera/parallel/unit_buffers.h"
#include "tessera/parallel/update_units.h"

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

/// The name of a state in checkpoints.
std::string piece_name(const ShardState& state, const ParamInfo& info);

/// The range of one parameter, or of one matrix of a stacked parameter, that this rank updates at
/// once.
struct ParamShard {
  const Segment* segment = nullptr;
  int group = 0;
  int segment_index = 0;
  std::size_t unit = 0;  ///< index of ShardStore::units()
  std::int64_t at = 0;   ///< offset in the group's shard
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

/// The place of masters and states between updates, and their division into units.
struct StatePlace {
  memory::Tier* tier = nullptr;  ///< nullptr: working memory
  /// Maximum number of elements that are in memory, travel and are updated at once; at least
  /// kChunk.
  std::int64_t unit_elements = std::numeric_limits<std::int64_t>::max();
  int buffers = 3;  ///< units in memory at a time, at least 1; see update_actions()
  /// Of each part of a buffer, the units that begin within this share of it rest in the tier.
  double share = 1.0;
  /// True if the unit does, if the buffer is trained.
  [[nodiscard]] static bool rests(const Unit& unit, std::int64_t numel, double share) {
    return static_cast<double>(unit.begin) < share * static_cast<double>(numel);
  }
  /// True if masters and states are in the host's memory although the model is on a device. The
  /// host then updates them, with gradients that are copied down, and weights that are copied up,
  /// through pinned memory. Source: Ren et al. 2021, "ZeRO-Offload". With a tier the model is on
  /// the host, or this is true.
  bool on_host = false;
  bool early_updates = false;  ///< EarlyUpdates, where the rule and the place allow them
  /// With a tier on the CPU: ShardedOptimizer::begin_step() lets a group be updated as soon as its
  /// gradient is complete, because nothing that comes later changes the update.
  bool streamed = false;
};

/// Masters and states that rest on a disk between updates.
struct StateOffload {
  std::string folder;  ///< absolute
  std::int64_t unit_elements = std::int64_t{1} << 24;
  int buffers = 3;         ///< StatePlace::buffers
  double share = 1.0;      ///< of each rank's part of a buffer
  bool gradients = false;  ///< the sums of gradients rest there too
  bool operator==(const StateOffload&) const = default;
};

/// The purpose of a lease. Values that were leased for Write are stored when the lease ends.
enum class Access : std::uint8_t { Read, Write };

/// Memory per parameter element: fp32 working weights: 0 (4 if they are in other memory than the
/// states) + states;
/// 16-bit working weights: 4 (with 16-bit masters: 0) + states; frozen: 0; divided by the number of
/// ranks of the buffer's fold from stage 1 on. In a tier, masters and states take none, but
/// StatePlace::buffers units of them are in memory. Working weights that rest in a tier are held
/// while a unit of them is leased. Used only on the rank's own thread.
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
    StatePlace place = {};
    /// Allocates state `index` of a shard; if unset, states are zeros in the kept dtype. Not
    /// together with a tier.
    std::function<ShardState(const ParamShard&, std::size_t index, const std::string& name)>
        make_state = {};
  };

  /// World, model and rule must outlive this.
  ShardStore(comm::World& world, ModelInstance& model, const optim::Rule& rule, Options options);
  ShardStore(const ShardStore&) = delete;
  ShardStore& operator=(const ShardStore&) = delete;

  [[nodiscard]] std::size_t num_groups() const { return slots_.size(); }
  /// The shards of a flat group in the order of the buffer, including those of frozen groups. Their
  /// states may be used only while their unit is leased.
  [[nodiscard]] std::vector<ParamShard>& shards(std::size_t group) { return slots_[group].shards; }
  /// Returns nullptr if another rank updates all of the parameter. For parameters that are in one
  /// unit.
  [[nodiscard]] ParamShard* find(int group, int segment);

  /// All units, ascending by group and place.
  [[nodiscard]] std::span<const Unit> units() const { return units_; }
  /// The units [first, second) of a flat group.
  [[nodiscard]] std::pair<std::size_t, std::size_t> units_of(std::size_t group) const {
    return {slots_[group].first_unit, slots_[group].first_unit + slots_[group].num_units};
  }
  class Lease;
  /// Waits until the values of the unit are in working memory, and keeps them there until the lease
  /// ends. At most StatePlace::buffers units can be leased at a time, each once.
  [[nodiscard]] Lease acquire(std::size_t unit, Access access);
  /// Starts to read the unit if it rests in a tier and a buffer is free. Never waits.
  void fetch(std::size_t unit);
  /// Waits until the unit's last lease is stored, which frees its buffer.
  void settle(std::size_t unit);
  /// Masters of a unit, and the states of its shards, in order: handles to the same memory.
  struct Values {
    KeptState masters;
    std::vector<KeptState> states;
  };
  [[nodiscard]] Values values(std::size_t unit);
  /// Exchanges the values of a unit in working memory, which has masters of its own, with another
  /// set of the same kinds; copies nothing.
  void exchange_values(std::size_t unit, Values& other);
  [[nodiscard]] const Options& options() const { return options_; }
  /// See StatePlace::on_host; false if the model itself is on the host.
  [[nodiscard]] bool on_host() const { return on_host_; }
  [[nodiscard]] const StateBeginnings& beginnings() const { return beginnings_; }

  /// Follows ModelInstance::freeze_sets() for a group that changed: if it is trained now, its
  /// masters are the working weights, its states are new, and its updates count from `updates` on;
  /// if it is frozen now, masters and states are freed. Not for stores with local weights.
  void follow_model(std::size_t group, std::int64_t updates);
  /// Holds the working weights of a flat group, which will be written, if they rest in a tier;
  /// those of the next such group are read meanwhile. Call it group by group.
  [[nodiscard]] HeldPart hold(std::size_t group);
  /// Calls `work` with leases of the units [first, last), one after the other. The next unit is
  /// read and the one before is written meanwhile, as far as buffers allow; all are stored on
  /// return.
  void visit(std::size_t first,
             std::size_t last,
             Access access,
             const std::function<void(const Lease&)>& work);

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
  /// exactly one rank; without it, on every rank that needs it, except for values that rest in a
  /// tier. The pieces are valid until publish() or release_pieces().
  void add_pieces(std::vector<checkpoint::PieceBytes>& out, bool for_save);
  /// Calls `load` with pieces, to be written, of the values that rest in a tier, one unit after the
  /// other.
  void load_resting(const std::function<void(std::vector<checkpoint::PieceBytes>&)>& load);
  /// Calls `take` for ranges of all trained parameters, so that every element of the job is
  /// visited on exactly one rank. `gradient_of` returns the gradient of a group's shard, or an
  /// undefined tensor, and is called for every trained group in ascending order on every rank.
  void visit_trained(const std::function<at::Tensor(std::size_t group)>& gradient_of,
                     const TrainedVisitor& take);
  /// Appends the beginnings of this stage's parameters to the pieces of a save, on one rank of the
  /// stage.
  void add_beginnings(std::vector<checkpoint::PieceBytes>& out);
  void load_beginnings(const checkpoint::Checkpoint& checkpoint);
  void release_pieces() { widened_.clear(); }

 private:
  struct Slot {
    OwnedRange range;  ///< range of the flat buffer that this rank updates
    std::size_t first_unit = 0, num_units = 0;
    std::vector<ParamShard> shards;
  };
  /// The parts of a unit of units_.
  struct UnitValues {
    std::size_t first = 0, count = 0;  ///< among the shards of its slot
    c10::Device device = c10::DeviceType::CPU;
    KeptState masters;  ///< fp32 masters separate from the working weights; else undefined
  };
  void cut(std::size_t group);
  void make_values(std::size_t group);
  void add_shard(std::size_t unit, std::size_t segment);
  [[nodiscard]] KeptState make_kept(std::size_t unit,
                                    optim::KeptIn kept_in,
                                    DType type,
                                    std::int64_t numel) const;
  [[nodiscard]] ShardState make_state(const ParamShard& shard, const optim::StateSpec& spec) const;
  [[nodiscard]] std::span<ParamShard> shards_of(std::size_t unit);
  /// The part of the working weights that belongs to the unit.
  [[nodiscard]] at::Tensor working_of(std::size_t unit) const;
  /// The unit's masters as they are stored; undefined for packed weights.
  [[nodiscard]] at::Tensor masters_of(std::size_t unit) const;
  /// True if the working weights of a group are in other memory than its masters and states: one is
  /// on a device, the other on its host.
  [[nodiscard]] bool apart(std::size_t group) const;
  [[nodiscard]] WorkingWeights& weights_of(std::size_t unit) const {
    return *model_.groups()[units_[unit].group].weights;
  }
  /// True if the unit's masters are working weights that rest in a tier.
  [[nodiscard]] bool masters_rest(std::size_t unit) const {
    return !values_[unit].masters.defined() && weights_of(unit).resting() != nullptr;
  }
  /// Calls `fn` with the unit's values, and their places in its bytes, if it travels.
  void each_value(std::size_t unit,
                  const std::function<void(KeptState& kept, std::int64_t at)>& fn);
  [[nodiscard]] std::int64_t bytes_of(std::size_t unit);
  void begin_as_weights(std::size_t unit,
                        const std::function<bool(const std::string& piece)>& lacks);
  float* widen(const KeptState& kept);
  /// The range of the shard that the pieces contain; empty if another rank has all of it.
  [[nodiscard]] std::optional<Segment> piece_range(std::size_t group,
                                                   const ParamShard& shard,
                                                   bool for_save) const;
  /// Bytes that rest in a tier, in a save: of the units of a group, and of its working weights.
  struct RestingBytes {
    std::shared_ptr<const ByteSource> units, weights;
  };
  void add_unit_pieces(std::size_t unit, bool for_save, std::vector<checkpoint::PieceBytes>& out);
  void add_sources(std::size_t unit,
                   const RestingBytes& resting,
                   std::vector<checkpoint::PieceBytes>& out);

  comm::World& world_;
  ModelInstance& model_;
  const optim::Rule& rule_;
  Options options_;
  std::vector<Slot> slots_;
  std::vector<Unit> units_;
  std::vector<UnitValues> values_;        ///< one for each unit
  std::unique_ptr<UnitBuffers> buffers_;  ///< nullptr: all values are in working memory
  bool on_host_ = false;
  StateBeginnings beginnings_;
  /// Between add_pieces() and publish() or release_pieces(): fp32 copies on the host of states that
  /// are stored in fewer bits or on a device, and the states they copy. Those that rest in a tier
  /// are widened while they are read (widened_state.h).
  std::vector<std::pair<at::Tensor, KeptState>> widened_;
};

/// The values of a unit in working memory.
class ShardStore::Lease {
 public:
  Lease(ShardStore& store, std::size_t unit, Access access);
  Lease(Lease&& other) noexcept;
  Lease& operator=(Lease&&) = delete;
  ~Lease();

  [[nodiscard]] std::size_t unit() const { return unit_; }
  [[nodiscard]] std::span<ParamShard> shards() const { return store_->shards_of(unit_); }
  /// A shard of the unit as the rule sees it; `gradient` points to its first element. Pointers to
  /// values stored in fewer bits are null.
  [[nodiscard]] optim::ShardView view(ParamShard& shard, const float* gradient) const;
  /// The masters of a shard as they are stored: fp32, or the dtype of the working weights.
  [[nodiscard]] at::Tensor masters(const ParamShard& shard) const;
  /// Before an update on the host of a device's weights: view() then has 16-bit weights in pinned
  /// memory. Nothing elsewhere.
  void stage_weights();
  /// After it: starts to copy the weights to the device; in fp32 they are the masters. Neither the
  /// host nor the device waits.
  void send_weights();
  /// Starts to copy these weights of the unit, on the host, to the device, as send_weights() does.
  void send(const at::Tensor& weights) const;

 private:
  ShardStore* store_;
  std::size_t unit_;
  Access access_;
  HeldPart weights_;
  at::Tensor staged_;  ///< of stage_weights()
};

/// A shard for one call of a rule, with values of fewer bits copied to fp32.
class WidenedShard {
 public:
  /// `gradient` points to the first element of the group's shard.
  WidenedShard(const ShardStore::Lease& lease, ParamShard& shard, const float* gradient);
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
