// SPDX-License-Identifier: Apache-2.0
// The updates of the optimizer rules other than AdamW on flat ranges, each in one pass over memory.
//
// Every element is computed in the same way, whatever its place in a range, with the same
// operations in the same order on every CPU; coefficients are rounded to fp32 once. In the formulas
// p is a weight, g its gradient (grad * grad_scale) and wd the weight decay. Threads:
// at::get_num_threads().
#pragma once

#include <cstdint>

#include "tessera/base/dtype.h"

namespace tessera::ops {

/// The memory that every update reads and writes.
struct RuleRange {
  float* master = nullptr;      ///< fp32 weights
  const float* grad = nullptr;  ///< fp32
  /// Receives the rounded weights; nullptr if the master is the working copy.
  std::uint16_t* working = nullptr;
  DType working_dtype = DType::BF16;  ///< BF16 or F16
  std::int64_t numel = 0;
  double grad_scale = 1.0;
  Device device = {};  ///< device of all pointers
};

struct SgdStep {
  double lr = 0.0, momentum = 0.0, weight_decay = 0.0;
  double add = 1.0;  ///< factor with which the gradient is added to the buffer
  bool nesterov = false;
};
/// g += wd p; b = momentum b + add g; p -= lr (nesterov ? g + momentum b : b). Without a buffer
/// (nullptr) b = add g.  Source: torch.optim.SGD; with lr 1 and add the local rate, LARS.
void sgd(const RuleRange& range, float* momentum_buffer, const SgdStep& step);

struct AdagradStep {
  double lr = 0.0, eps = 1e-10, weight_decay = 0.0;
  double initial = 0.0;  ///< initial value of the sum: set in the first step, else 0
};
/// g += wd p; s = (s + initial) + g^2; p -= lr g / (sqrt(s) + eps).  Source: torch.optim.Adagrad.
void adagrad(const RuleRange& range, float* sum, const AdagradStep& step);

struct LionStep {
  double lr = 0.0, beta1 = 0.9, beta2 = 0.99, weight_decay = 0.0;
};
/// p = p - lr wd p - lr sign(beta1 m + (1 - beta1) g), sign(0) = 0; m = beta2 m + (1 - beta2) g.
/// Source: Chen et al. 2023, algorithm 2.
void lion(const RuleRange& range, float* exp_avg, const LionStep& step);

struct RmspropStep {
  double lr = 0.0, alpha = 0.99, eps = 1e-8, momentum = 0.0, weight_decay = 0.0;
};
/// g += wd p; v = alpha v + (1 - alpha) g^2; a = alpha a + (1 - alpha) g; d = g / (sqrt(v - a^2) +
/// eps); b = momentum b + d; p -= lr b. Without grad_avg (nullptr) a = 0, without a buffer b = d. v
/// - a^2 below 0, which only rounding can cause, counts as 0. Source: torch.optim.RMSprop.
void rmsprop(const RuleRange& range,
             float* square_avg,
             float* momentum_buffer,
             float* grad_avg,
             const RmspropStep& step);

struct NAdamStep {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double grad_rate = 0.0;    ///< lr (1 - mu_t) / (1 - product of mu up to t)
  double avg_rate = 0.0;     ///< lr mu_(t+1) / (1 - product of mu up to t + 1)
  double correction2 = 1.0;  ///< 1 - beta2^t
  double l2 = 0.0;           ///< the decay if it is added to the gradient, else 0
  double decay = 0.0;        ///< lr wd where decay is decoupled, else 0
};
/// g += l2 p; m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2;
/// p = p - decay p - (grad_rate g + avg_rate m) / (sqrt(v / correction2) + eps).
/// Source: torch.optim.NAdam.
void nadam(const RuleRange& range, float* exp_avg, float* exp_avg_sq, const NAdamStep& step);

struct AdamaxStep {
  double rate = 0.0;  ///< lr / (1 - beta1^t)
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.0;
};
/// g += wd p; m = beta1 m + (1 - beta1) g; u = max(beta2 u, |g| + eps); p -= rate m / u.
/// Source: torch.optim.Adamax.
void adamax(const RuleRange& range, float* exp_avg, float* exp_inf, const AdamaxStep& step);

/// Chunk size of the returned sums: 1024 elements, as in flat buffers.
inline constexpr std::int64_t kRuleChunk = 1024;

struct LambStep {
  double beta1 = 0.9, beta2 = 0.999;
  double add = 0.1;  ///< factor with which the gradient is added to the first moment
  double correction1 = 1.0, correction2 = 1.0;  ///< of the moments
  double eps_inside = 0.0, eps_outside = 1e-8;  ///< inside and outside of the square root
  /// The decay if it is added to the gradient, else 0.
  double l2 = 0.0;
  double weight_decay = 0.0;  ///< the decay if it is added to the update, else 0
};
/// g += l2 p; m = beta1 m + add g; v = beta2 v + (1 - beta2) g^2. Returns the sums of squares of p
/// and of u = (m / correction1) / (sqrt(v / correction2 + eps_inside) + eps_outside) + wd p over
/// every chunk of the range, in fp64. Does not change the weights.
void lamb_prepare(const RuleRange& range,
                  float* exp_avg,
                  float* exp_avg_sq,
                  const LambStep& step,
                  double* weight_sums,
                  double* update_sums);
/// p -= rate u, with the moments from lamb_prepare().
void lamb_update(const RuleRange& range,
                 const float* exp_avg,
                 const float* exp_avg_sq,
                 const LambStep& step,
                 double rate);

/// b = momentum b + (1 - momentum) g; direction = nesterov ? (1 - momentum) g + momentum b : b.
/// Without a buffer (nullptr) direction = g. direction may be the same memory as the range's
/// gradient. Source: torch.optim.Muon.
void make_direction(const RuleRange& range,
                    float* momentum_buffer,
                    float* direction,
                    double momentum,
                    bool nesterov);

struct DirectionStep {
  double rate = 0.0;
  double decay = 0.0;  ///< lr wd
  double beta1 = 0.0;
};
/// d = rate direction; a = beta1 a + (1 - beta1) d; p = p - decay p - a. Without an average
/// (nullptr) a = d. The range's gradient is not read.
void apply_direction(const RuleRange& range,
                     const float* direction,
                     float* exp_avg,
                     const DirectionStep& step);

/// sums[c] = sum of x^2 over column c of the row-major matrix, in fp64 in row order.
void column_square_sums(
    const float* x_RC, std::int64_t rows, std::int64_t columns, double* sums_C, Device device = {});
/// x = (x * of_rows[row]) * of_columns[column], in place.
void scale_rows_columns(float* x_RC,
                        std::int64_t rows,
                        std::int64_t columns,
                        const float* of_rows_R,
                        const float* of_columns_C,
                        Device device = {});

}  // namespace tessera::ops
