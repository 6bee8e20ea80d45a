// SPDX-License-Identifier: Apache-2.0
// The working weights of one flat buffer on this rank. How a rank keeps them is a strategy, one
// file each in weights/: whole on every rank, or in parts that are gathered before a block uses
// them. Source: Rajbhandari et al. 2020, "ZeRO: memory optimizations toward training trillion
// parameter models".
#pragma once

#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>

#include "tessera/base/dtype.h"
#include "tessera/base/registry.h"
#include "tessera/comm/world.h"
#include "tessera/parallel/group_axes.h"
#include "tessera/parallel/packed_weights.h"
#include "tessera/parallel/resting_part.h"
#include "tessera/tensor/flat_buffer.h"

namespace tessera::parallel {

class Uploads;
struct WeightSizes;

/// Used only on the rank's own thread. post() and written() are collective over the ranks of the
/// buffer. Memory: see the file of the strategy.
class WorkingWeights {
 public:
  virtual ~WorkingWeights() = default;
  /// See WeightStrategy: of strategies that keep all weights in memory.
  static std::int64_t bytes(const WeightSizes& sizes);
  static std::int64_t gathered_bytes(std::int64_t /*numel*/, DType /*dtype*/) { return 0; }
  WorkingWeights& operator=(const WorkingWeights&) = delete;

  [[nodiscard]] DType dtype() const { return dtype_; }
  /// [layout.numel()]. If the weights come and go, its storage, shared by every view of it, has
  /// memory only while gathered; tensors that autograd saved become valid again with the next
  /// gather.
  [[nodiscard]] const at::Tensor& whole() const { return whole_; }
  /// The part that this rank writes, [layout.shard_numel()], or [layout.numel()] if every rank
  /// writes all. Undefined if packed() replaces it; has memory only while it is held if resting()
  /// is not nullptr (HeldPart), and else always.
  [[nodiscard]] const at::Tensor& own() const { return own_; }
  /// The weights of this rank in fewer bits, which replace own() and must be filled; else nullptr.
  [[nodiscard]] virtual PackedWeights* packed() const { return nullptr; }
  /// If own() rests in a tier between uses; else nullptr.
  [[nodiscard]] virtual RestingPart* resting() const { return nullptr; }
  /// Returns whether whole() has memory only while gathered.
  [[nodiscard]] virtual bool comes_and_goes() const { return false; }
  /// True if whole() is gathered or being gathered.
  [[nodiscard]] virtual bool gathered() const = 0;

  /// If weights rest in a tier: starts to read what wait() will need, if a buffer is free. Never
  /// waits.
  virtual void fetch() {
    if (RestingPart* const part = resting()) part->fetch();
  }
  /// Starts the gather of all parts into whole(), unless it is done or under way.
  virtual void post() = 0;
  /// Waits until whole() can be read; posts the gather first if needed.
  virtual void wait() = 0;
  /// If the weights come and go: frees the memory of whole(), after the collective operations under
  /// way have ended.
  virtual void release() = 0;
  /// Waits until this rank may write own(), because peers have read it. Gathered weights are stale
  /// after this.
  virtual void begin_write() = 0;
  /// Call after own() was written: starts to send it to the ranks that keep it.
  virtual void written() = 0;
  /// Waits until what written() started is done.
  virtual void settle() = 0;
  /// If the weights do not come and go, and nothing is under way: frees the memory; whole(), own()
  /// and their views must not be used again.
  virtual void forget();
  /// Returns weights that read the memory of these, which may end before them: whole() is the same
  /// tensor or, if the weights come and go, has memory of its own while gathered. These must be
  /// complete, and from then on nobody writes them. Not if packed() or
  /// resting(). Memory: none besides.
  [[nodiscard]] virtual std::unique_ptr<WorkingWeights> borrowed() const = 0;

 protected:
  explicit WorkingWeights(DType dtype) : dtype_(dtype) {}
  WorkingWeights(const WorkingWeights&) = default;

  DType dtype_;
  at::Tensor whole_, own_;
};

/// The arguments from which a strategy is made.
struct WeightPlace {
  comm::World& world;
  /// Each rank of `fold` writes its part of the buffer. If there are several ranks along `copies`,
  /// those along `inner` together hold all parts. Source: Wang et al. 2023, "ZeRO++" (hpZ); Zhang
  /// et al. 2022, "MiCS".
  GroupRanks ranks;
  const FlatLayout& layout;
  DType dtype = DType::F32;
  PackingOptions packing = {};  ///< for weights in fewer bits
  RestingPlace resting = {};    ///< for weights that rest in a tier
  /// The copies from the host to the device of a rank; nullptr on the CPU.
  std::shared_ptr<Uploads> uploads = nullptr;
};

/// The sizes from which a strategy computes its memory, without a world.
struct WeightSizes {
  const FlatLayout& layout;
  int inner = 1;  ///< number of ranks along GroupAxes::inner
  DType dtype = DType::F32;
  PackingOptions packing = {};
};

/// The functions that a strategy registers.
struct WeightStrategy {
  /// Creates weights that are zero. Throws Error{Memory} from the transport, and Error{Unsupported}
  /// if the strategy does not work on the world's device.
  std::unique_ptr<WorkingWeights> (*make)(const WeightPlace& place);
  /// The bytes of a rank, on the first rank, while the weights are not gathered. Pure.
  std::int64_t (*bytes)(const WeightSizes& sizes);
  /// The bytes of `numel` elements while they are gathered, if the weights come and go; else 0.
  std::int64_t (*gathered_bytes)(std::int64_t numel, DType dtype);
};
Registry<WeightStrategy>& weight_strategies();
/// Registers the class of a strategy, which is constructed from a WeightPlace and has the static
/// functions `bytes` and `gathered_bytes`.
#define TESSERA_WEIGHTS(name, Class)                                     \
  [[maybe_unused]] const bool TESSERA_UNIQUE(kWeights) =                 \
      ::tessera::parallel::weight_strategies().add(                      \
          name,                                                          \
          {.make = [](const ::tessera::parallel::WeightPlace& place)     \
               -> std::unique_ptr<::tessera::parallel::WorkingWeights> { \
             return std::make_unique<Class>(place);                      \
           },                                                            \
           .bytes = &Class::bytes,                                       \
           .gathered_bytes = &Class::gathered_bytes})

}  // namespace tessera::parallel
