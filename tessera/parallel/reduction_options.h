// SPDX-License-Identifier: Apache-2.0
// How gradients are accumulated and reduced over the data-parallel ranks, and the buffers that this
// takes.
#pragma once

#include <cstdint>
#include <limits>

#include "tessera/base/dtype.h"

namespace tessera::parallel {

/// Each: every micro-batch is reduced, and added in the order of the global micro-batch. Once: what
/// a rank adds by itself first is reduced.
enum class Reduction : std::uint8_t { Each, Once };

struct ReductionOptions {
  int stage = 1;  ///< of ZeRO; Reduction::Once depends on it
  Reduction mode = Reduction::Each;
  DType accumulate = DType::F32;  ///< F32, or BF16: rounded after every accumulation step
  /// Communication dtype of F32 sums: BF16 or F16 rounds the gradient of every micro-batch (Once in
  /// stages 0 and 1: this rank's sum), which halves the bytes that are sent; the sum stays in fp32.
  DType comm_dtype = DType::F32;
  /// Elements: a second buffer for blocks of a size is made where two fit into this.
  std::int64_t bucket = std::numeric_limits<std::int64_t>::max();
  /// Gradients of tables over the vocabulary are sent as rows where that is less. Those of a tied
  /// table's first use are anyway, where both uses lie on one stage and sums are in fp32.
  bool sparse_rows = false;
  int max_micros = 1;  ///< most micro-batches a step will have on this rank

  /// Each rank sums whole gradients of its own.
  [[nodiscard]] bool locally() const { return mode == Reduction::Once && stage < 2; }
  /// What is sent is narrower than the sums.
  [[nodiscard]] bool narrow() const { return comm_dtype != DType::F32 && accumulate == DType::F32; }
  /// The gradient of micro-batch `micro` is made where the sum is.
  [[nodiscard]] bool direct(int ranks, int micro) const {
    return ranks == 1 && accumulate == DType::F32 && (locally() || (micro == 0 && !narrow()));
  }
};

/// The buffers that gradients of one size are made in and sent from, Tag::GradientsInFlight.
struct InFlight {
  int buffers = 0;  ///< 0 to 2 at a time, of values of `type`
  DType type = DType::F32;
  bool reduced = false;   ///< each with a shard in the type of the sums
  bool received = false;  ///< each with as much again for what ranks send
  bool staging = false;   ///< and once as fp32, where sinks write
  /// Of gradients of `numel` elements with `options` on `ranks` ranks.
  [[nodiscard]] std::int64_t bytes(const ReductionOptions& options,
                                   int ranks,
                                   std::int64_t numel) const;
};
/// `uses`: blocks that make gradients of `numel` elements.
InFlight in_flight(const ReductionOptions& options, int ranks, std::int64_t numel, int uses);

}  // namespace tessera::parallel
