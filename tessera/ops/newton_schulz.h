// SPDX-License-Identifier: Apache-2.0
// Orthogonalizes a matrix approximately, with matrix products only.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "tessera/base/dtype.h"

namespace tessera::ops {

struct NewtonSchulz {
  /// One set for each step; after the last comes the first again.
  std::vector<std::array<double, 3>> coefficients = {{3.4445, -4.7750, 2.0315}};
  int steps = 5;
  double eps = 1e-7;  ///< minimum norm by which the matrix is divided
};
/// Replaces the matrix M_RC in place by p(...p(M / |M|)) with p(X) = a X + (b A + c A^2) X, A = X
/// X^T, and |M| the root of its sum of squares: M = U S V^T becomes U S' V^T, and with the
/// coefficients above S' is close to 1. A tall matrix is processed as its transpose.
///
/// Cost: steps * (4 n^2 m + 2 n^3) operations, with n the smaller
/// and m the larger side; fp32 products by ATen. Threads: at::get_num_threads(). Source: Jordan et
/// al. 2024, Muon.
void orthogonalize(float* matrix_RC,
                   std::int64_t rows,
                   std::int64_t columns,
                   const NewtonSchulz& how);
/// The parts of a matrix: its rows are `groups` equal groups, each with the rows of every part in
/// turn, and the part's result is multiplied by its factor.
struct MatrixParts {
  struct Part {
    std::int64_t rows = 0;  ///< in each group
    double factor = 1.0;
  };
  std::int64_t groups = 1;
  std::vector<Part> parts;
};
/// The same for each part of a matrix, which is a matrix of its own.
void orthogonalize_parts(float* matrix_RC,
                         std::int64_t columns,
                         const MatrixParts& parts,
                         const NewtonSchulz& how);

/// While it exists, orthogonalize() on this thread takes matrices in the memory of `device` instead
/// of the host's.
class ScopedMatrixDevice {
 public:
  explicit ScopedMatrixDevice(Device device);
  ~ScopedMatrixDevice();
  ScopedMatrixDevice(const ScopedMatrixDevice&) = delete;
  ScopedMatrixDevice& operator=(const ScopedMatrixDevice&) = delete;

 private:
  Device before_;
};

}  // namespace tessera::ops
