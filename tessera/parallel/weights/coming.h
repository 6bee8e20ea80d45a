// SPDX-License-Identifier: Apache-2.0
// Weights whose whole() has memory only while a block uses them.
#pragma once

#include <cstdint>

#include "tessera/parallel/working_weights.h"

namespace tessera::parallel {

/// Creates a tensor whose storage has no memory yet.
at::Tensor hollow(std::int64_t numel, DType dtype, c10::Device device);

/// Manages the memory of whole(), numel elements while gathered: an allocation of this rank that
/// post() attaches to the storage of whole() and release() frees. Views of whole() stay valid,
/// because the storage object is always the same.
class ComingWeights : public WorkingWeights {
 public:
  static std::int64_t gathered_bytes(std::int64_t numel, DType dtype) {
    return numel * static_cast<std::int64_t>(size_of(dtype));
  }
  [[nodiscard]] bool comes_and_goes() const override { return true; }
  [[nodiscard]] bool gathered() const override { return gathered_; }
  void post() final;
  void release() final;

 protected:
  ComingWeights(comm::World& world, std::int64_t numel, DType dtype);
  /// A copy of `other` that is not gathered: its whole() is another tensor of the same size.
  ComingWeights(const ComingWeights& other);
  /// Starts to fill whole(), which has memory of undefined contents.
  virtual void start() = 0;

 private:
  bool gathered_ = false;
};

}  // namespace tessera::parallel
