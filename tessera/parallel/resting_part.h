// SPDX-License-Identifier: Apache-2.0
// The part of a buffer's working weights that this rank writes, if it rests in a tier between uses.
// Source: Rajbhandari et al. 2021, "ZeRO-Infinity" (parameters on NVMe).
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "tessera/base/byte_source.h"
#include "tessera/base/dtype.h"
#include "tessera/parallel/unit_buffers.h"

namespace tessera::parallel {

class WorkingWeights;

/// The buffers of a rank, and which of their units the part is. Its memory is that of the buffers.
struct RestingPlace {
  std::shared_ptr<UnitBuffers> buffers;  ///< nullptr: weights do not rest
  std::size_t unit = 0;
};

/// Zero at first. Errors: those of the tier. Used only on the rank's own thread.
class RestingPart {
 public:
  /// `own`: the weights, whose storage has memory only while they are held (hollow()). `what` names
  /// them in errors.
  RestingPart(RestingPlace place, at::Tensor own, const std::string& what);

  /// Starts to read the weights if a buffer is free. Never waits.
  void fetch();
  /// Lets the weights be in memory until let_go(), which is called once for each hold(). At most as
  /// many parts can be held at a time as there are buffers.
  void hold();
  /// The last call frees the memory; if any said that the weights `changed`, it starts to store
  /// them.
  void let_go(bool changed);
  /// Waits until the weights are stored, which frees their buffer.
  void settle();
  /// The bytes as they are now. Not while the part is held.
  [[nodiscard]] std::shared_ptr<const ByteSource> snapshot();

 private:
  RestingPlace place_;
  at::Tensor own_;
  int holds_ = 0;
  bool changed_ = false;
};

/// Holds the weights of a buffer while it exists, if they rest in a tier.
class HeldPart {
 public:
  HeldPart() = default;
  /// `changed`: the weights are written meanwhile.
  HeldPart(const WorkingWeights& weights, bool changed);
  HeldPart(HeldPart&& other) noexcept;
  HeldPart& operator=(HeldPart&& other) noexcept;
  ~HeldPart() { let_go(); }
  void let_go();

 private:
  RestingPart* part_ = nullptr;
  bool changed_ = false;
};

/// Returns fp32 values as a source, made from a source of values of `dtype`.
std::shared_ptr<const ByteSource> widened(std::shared_ptr<const ByteSource> narrow, DType dtype);

}  // namespace tessera::parallel
