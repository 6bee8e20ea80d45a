// SPDX-License-Identifier: Apache-2.0
// Options of accumulating gradients and reducing them over the data-parallel ranks, and the buffers
// for it.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>

#include "tessera/base/dtype.h"
#include "tessera/parallel/byte_codes.h"

namespace tessera::parallel {

/// Each: every micro-batch is reduced and added, in the order of the global micro-batches. Once: a
/// rank first sums its own micro-batches, and the sum is reduced.
enum class Reduction : std::uint8_t { Each, Once };

/// Each rank adds what its gradients lost in codes to its next ones (SentResiduals).
struct FeedbackOptions {
  double beta = 0.8;          ///< weight of older losses in their moving average; 0: the last alone
  std::int64_t reset = 1024;  ///< the residuals become zero again after this number of steps
  bool operator==(const FeedbackOptions&) const = default;
};

struct ReductionOptions {
  int stage = 1;  ///< ZeRO stage; Reduction::Once depends on it
  Reduction mode = Reduction::Each;
  DType accumulate = DType::F32;  ///< F32, or BF16: rounded after every accumulation step
  /// Communication dtype for F32 sums: BF16 or F16 rounds the gradient of every micro-batch (Once
  /// in stages 0 and 1: this rank's sum), which halves the bytes sent; the sum stays in fp32. U8:
  /// rounds it to the codes of byte_codes.h, which quarters them (ZeRO++'s qgZ).
  DType comm_dtype = DType::F32;
  std::optional<FeedbackOptions> feedback;  ///< for gradients in codes
  /// Number of elements: blocks of a size get a second buffer if two fit into this.
  std::int64_t bucket = std::numeric_limits<std::int64_t>::max();
  /// Gradients of tables over the vocabulary are sent as rows if that is less. Gradients of a tied
  /// table's first use are sent as rows in any case, if both uses are on one stage and sums are in
  /// fp32.
  bool sparse_rows = false;
  int max_micros = 1;  ///< highest number of micro-batches in a step on this rank

  /// True if each rank sums whole gradients of its own.
  [[nodiscard]] bool locally() const { return mode == Reduction::Once && stage < 2; }
  /// True if the communication dtype is narrower than the sums.
  [[nodiscard]] bool narrow() const { return comm_dtype != DType::F32 && accumulate == DType::F32; }
  /// True if gradients are sent as codes.
  [[nodiscard]] bool in_codes() const { return narrow() && comm_dtype == DType::U8; }
  /// True if each of `ranks` ranks keeps residuals of the codes it sends. A rank that sums its
  /// gradients and sends them to nobody does not round them.
  [[nodiscard]] bool keeps_residuals(int ranks) const {
    return feedback && in_codes() && (ranks > 1 || !locally());
  }
  /// The number of values of `comm_dtype` that `numel` values take while they are sent.
  [[nodiscard]] std::int64_t sent(std::int64_t numel) const {
    return in_codes() ? byte_codes(numel) : numel;
  }
  /// True if the gradient of micro-batch `micro` is computed directly into the sum. `inputs`: the
  /// number of gradients that are summed for a micro-batch, GroupRanks::inputs().
  [[nodiscard]] bool direct(int inputs, int micro) const {
    return inputs == 1 && accumulate == DType::F32 && (locally() || (micro == 0 && !narrow()));
  }
};

/// The buffers in which gradients of one size are computed and from which they are sent,
/// Tag::GradientsInFlight.
struct InFlight {
  int buffers = 0;  ///< 0 to 2 at a time, with values of `type`
  DType type = DType::F32;
  bool reduced = false;   ///< each has a shard in the dtype of the sums
  bool received = false;  ///< each has the same amount again for what ranks send
  bool staging = false;   ///< and once more as fp32, which sinks write
  /// Bytes for gradients of `numel` elements with `options` that are summed over `ranks` ranks.
  /// `slices`: GroupRanks::slices.
  [[nodiscard]] std::int64_t bytes(const ReductionOptions& options,
                                   int ranks,
                                   std::int64_t numel,
                                   int slices = 1) const;
};
/// `uses`: number of blocks with gradients of `numel` elements.
InFlight in_flight(
    const ReductionOptions& options, int ranks, std::int64_t numel, int uses, int slices = 1);
/// Bytes of a rank's sum of gradients of `numel` elements, Tag::Gradients.
std::int64_t sum_bytes(const ReductionOptions& options,
                       int ranks,
                       std::int64_t numel,
                       int slices = 1);

}  // namespace tessera::parallel
