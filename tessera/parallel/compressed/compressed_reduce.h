// SPDX-License-Identifier: Apache-2.0
// The mean over ranks of vectors of which only the signs are sent, with error feedback. Source:
// Tang et al. 2021, "1-bit Adam", algorithm 1; padding as in DeepSpeed.
//
// x of rank i, padded to a whole number of bytes of signs for every rank:
//   y = x + e_i;  a_i = |y| / sqrt(len);  e_i = y - a_i sgn(y);  sgn(0) = +1
// Rank j owns part j of it (len_j elements):
//   z = (a_0 sgn_0 + a_1 sgn_1 + ...) / n + s_j;  b_j = |z| / sqrt(len_j);  s_j = z - b_j sgn(z)
// and all ranks receive b_j sgn(z) of every part.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/comm/world.h"

namespace tessera::parallel {

/// Memory: 4 (1 + 1 / n) bytes per element for the error feedback, and 3/8 byte for message
/// buffers. Traffic: 2 bits per element and 4 (n + n) bytes per vector. Used only on the rank's own
/// thread.
class CompressedReduce {
 public:
  /// A vector in the flat buffer that mean() takes: numel elements from `begin` on, followed by
  /// padding up to the next vector.
  struct Vector {
    std::int64_t begin = 0, numel = 0, padded = 0;
  };

  /// The arguments must be equal on every rank. World and group must outlive this.
  CompressedReduce(comm::World& world,
                   const comm::Group& group,
                   const std::vector<std::int64_t>& lengths);
  /// Waits until peers have read the last messages, unless the job has failed.
  ~CompressedReduce();
  CompressedReduce(const CompressedReduce&) = delete;
  CompressedReduce& operator=(const CompressedReduce&) = delete;

  /// The length that gives each of `ranks` equal parts a whole number of bytes of signs.
  static std::int64_t padded_length(std::int64_t numel, int ranks);
  [[nodiscard]] std::span<const Vector> vectors() const { return vectors_; }
  [[nodiscard]] std::int64_t numel() const { return numel_; }  ///< size of the flat buffer

  /// Computes the mean in place, with the same bits on every rank; the padding's contents are
  /// ignored. Collective.
  void mean(float* flat);
  /// Sets the error feedback to zero.
  void forget();

  /// Error feedback of this rank's vectors, [padded]: what compression has lost so far.
  [[nodiscard]] std::span<float> worker_error(std::size_t vector);
  /// Error feedback of the means that this rank computes as an owner, [padded / n].
  [[nodiscard]] std::span<float> server_error(std::size_t vector);

 private:
  [[nodiscard]] std::size_t sign_bytes() const;
  [[nodiscard]] std::size_t message_bytes() const;
  void compress(const float* flat);
  void serve();
  void spread(float* flat) const;
  void wait_reusable();

  comm::World& world_;
  const comm::Group& group_;
  std::vector<Vector> vectors_;
  std::int64_t numel_ = 0;
  at::Tensor worker_error_, server_error_;
  // Message buffers, to and from every owner. A message holds the signs of one part of every
  // vector, then one scale per vector.
  comm::RegionPtr to_owners_, from_owners_;
  at::Tensor received_;
  comm::WorkPtr scatter_, gather_;
};

}  // namespace tessera::parallel
