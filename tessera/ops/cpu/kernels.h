// SPDX-License-Identifier: Apache-2.0
// The table of tessera's CPU kernels. The source (variant.inc) is compiled once per instruction
// set; every variant does the same operations in the same order, so a result depends neither on the
// CPU nor on an element's place in a vector. Legend: N rows, C channels, V vocabulary, T queries, S
// keys.
#pragma once

#include <cstdint>
#include <limits>

#include "tessera/ops/fused_adamw.h"
#include "tessera/ops/fused_rules.h"

namespace tessera::ops::cpu {

/// Element type of a kernel's data: fp32, or bf16 or fp16 as their 16 bits. A value that is too
/// large for fp16 is stored as infinity.
enum Float : int { kF32 = 0, kBF16 = 1, kF16 = 2 };
inline constexpr int kFloats = 3;

struct NormRows {
  const void* x;
  const float* weight;
  const float* bias;  // or nullptr
  void* y;
  float* mean;  // only for layer_norm
  float* rstd;
  std::int64_t channels;
  double eps;
  const void* plus = nullptr;  // or added to x first
  void* sum = nullptr;         // with `plus`: receives x + plus, rounded, which is normalized
};
struct NormGradRows {
  const void* dy;
  const void* x;
  const float* mean;  // only for layer_norm
  const float* rstd;
  const float* weight;  // only for dx
  void* dx;             // or nullptr
  std::int64_t channels;
  const void* plus = nullptr;  // or added to dx
};
/// Heads of tokens whose channels are rotated: channel c < pairs together with channel pairs + c,
/// by the angle in row `batch * table_tokens + token` of the table. Channels beyond these pairs are
/// copied.
struct RotaryRows {
  struct Strides {
    std::int64_t batch, token, head;
  };
  const void* x;  // channels are contiguous
  void* y;        // must not overlap x
  Strides from, to;
  std::int64_t tokens, heads, channels, pairs;
  const float *cosine, *sine;  // [.., pairs]
  std::int64_t table_tokens;   // 0: one table for the whole batch
  float direction;             // 1, or -1 to rotate back
  bool interleaved = false;    // channels 2 p and 2 p + 1 are a pair, else p and `pairs` + p
};
struct EntropyRows {
  float* logits;  // overwritten if there are dlogits
  const std::int64_t* labels;
  double* losses;  // one per row; 0 if the row is ignored
  std::int64_t vocab;
  std::int64_t ignored;
  double smoothing;
  void* dlogits;  // rows like the logits, may be the same memory; or nullptr
};
/// The operations on products of queries and keys before the softmax, in this order; row r is r
/// positions after row 0.
struct ScoreForm {
  float scale = 1.0F;
  float cap = 0.0F;                 // cap * tanh(. / cap); 0: none
  const float* of_keys = nullptr;   // [keys], added to each row
  const float* of_pairs = nullptr;  // [rows, keys] in rows of `pair_stride`, added
  std::int64_t pair_stride = 0;
  float slope = 0.0F;         // adds slope * (position of the key - position of the query); 0: none
  std::int64_t distance = 0;  // position of key 0 minus position of row 0
};
/// A value of first_begin with which row 0 sees all keys from the first on.
inline constexpr std::int64_t kFromTheFirst = std::numeric_limits<std::int64_t>::min() / 4;
/// Rows of an attention block: scores [rows, keys] of queries and keys; row r sees the keys
/// [first_begin + r, first_visible + r) of the block.
struct AttendRows {
  float* scores;  // overwritten if the form is more than a scale
  // [rows, keys]: e^(score - max), 0 for invisible keys; if fp32, may be the memory of the scores.
  void* probabilities;
  // One per row: over all blocks so far; factor by which earlier sums shrink.
  float *max, *sum, *shrink;
  std::int64_t keys, first_visible;
  std::int64_t first_begin = kFromTheFirst;
  ScoreForm form;
  const float* kept = nullptr;  // [rows, keys]: dropout's factors of the probabilities
};
struct AttendGradRows {
  float* scores;  // overwritten if the form is more than a scale
  const float* dprobabilities;
  void *probabilities, *dscores;  // if fp32, may be the memory of the scores and dprobabilities
  const float *log_sum, *mean;    // one per row; mean: sum of dprobabilities * probabilities
  std::int64_t keys, first_visible;
  std::int64_t first_begin = kFromTheFirst;
  ScoreForm form;
  const float* kept = nullptr;
  float* cap_slopes = nullptr;  // [keys], scratch if the form has a cap
  // Gradient of form.of_pairs, with row stride `dpair_stride`: added to.
  float* dpairs = nullptr;
  std::int64_t dpair_stride = 0;
};
/// Converts rows of 8-bit integers: to[r][c] = rows[r][c] * scales[r].
struct Int8Widening {
  const std::int8_t* rows;  // [rows, columns]
  const float* scales;
  std::int64_t columns;
  void* to;
};
/// Number of 4-bit codes in a block.
inline constexpr std::int64_t kNf4Numbers = 64;
/// Decoding of 4-bit blocks: table[code] * scale.
struct Nf4Widening {
  const std::uint8_t* codes;  // two codes per byte, the first one in the upper half
  const float* scales;        // one per block
  const float* table;         // 16
  void* to;
};
/// Encoding: the nearest number of a table, by the 15 midpoints of its neighbours.
struct Nf4Narrowing {
  const float* from;
  const float* midpoints;
  std::uint8_t* codes;
  float* scales;
};
/// Products of vectors and the rows of a matrix: y[v][o] = (x[v] . weight[o]) * scales[o] +
/// bias[o].
struct RowProducts {
  const float* x;  // [vectors, inputs]
  std::int64_t vectors, inputs, outputs;
  const void* weight;   // [outputs, inputs]
  const float* scales;  // one per output, or nullptr for 1
  const float* bias;    // one per output, or nullptr for 0
  float* y;             // [vectors, outputs]
};
/// Rows of contiguous elements.
struct StridedRows {
  void* data;
  std::int64_t stride;
};
/// A query of one head and all keys and values that it sees.
struct AttendOne {
  const float* query;        // [channels]
  StridedRows keys, values;  // [count, channels]
  std::int64_t count, channels;
  ScoreForm form;
  float* scores;  // [count], scratch
  float *y, *log_sum;
};
/// A query of one head and all keys and values that it sees, in pages of `page` rows with
/// contiguous channels. Pages of 8-bit integers have a scale for each row.
struct AttendPages {
  const float* query;                                    // [channels]
  const void *const *keys, *const *values;               // one per page: [page, channels]
  const float *const *key_scales, *const *value_scales;  // one per page: [page]; or nullptr
  std::int64_t page;
  std::int64_t first, count;  // the row of the first key in the first page; number of keys
  std::int64_t channels;
  ScoreForm form;
  float* scores;  // [count], scratch
  float* y;
};
/// Ranges are [begin, end) of rows or elements; the caller divides them among its threads.
struct Kernels {
  void (*layer_norm[kFloats])(const NormRows&, std::int64_t begin, std::int64_t end);
  /// dweight, dbias: the sums over these rows are added to them; nullptr: skipped.
  void (*layer_norm_grad[kFloats])(
      const NormGradRows&, float* dweight, float* dbias, std::int64_t begin, std::int64_t end);
  /// Without a mean, and with the root mean square instead of the standard deviation.
  void (*rms_norm[kFloats])(const NormRows&, std::int64_t begin, std::int64_t end);
  void (*rms_norm_grad[kFloats])(
      const NormGradRows&, float* dweight, float* dbias, std::int64_t begin, std::int64_t end);
  /// sums[c] += x[row][c] over the rows in order.
  void (*column_sums[kFloats])(
      const void* x, std::int64_t columns, float* sums, std::int64_t begin, std::int64_t end);
  /// activation: 0 gelu_tanh, 1 gelu, 2 relu, 3 silu, 4 quick_gelu, 5 relu2.
  void (*activate[kFloats])(
      const void* x, void* y, int activation, std::int64_t begin, std::int64_t end);
  void (*activate_grad[kFloats])(const void* dy,
                                 const void* x,
                                 void* dx,
                                 int activation,
                                 std::int64_t begin,
                                 std::int64_t end);
  /// Rows of x hold gates, followed by the values that they multiply: y[r][f] = activation(x[r][f])
  /// * x[r][features + f].
  void (*gated[kFloats])(const void* x,
                         void* y,
                         std::int64_t features,
                         int activation,
                         std::int64_t begin,
                         std::int64_t end);
  void (*gated_grad[kFloats])(const void* dy,
                              const void* x,
                              void* dx,
                              std::int64_t features,
                              int activation,
                              std::int64_t begin,
                              std::int64_t end);
  /// Rotates the tokens [begin, end) of all batches, one batch after the other.
  void (*rotary[kFloats])(const RotaryRows&, std::int64_t begin, std::int64_t end);
  /// y = (plus ? plus : 0) + (kept ? x * scale : 0), rounded once; element i of the range is
  /// element `first + i` of the sample. y may be the same memory as x or plus.
  void (*dropout[kFloats])(const void* x,
                           const void* plus,
                           void* y,
                           std::int64_t numel,
                           std::uint64_t key,
                           std::uint64_t sample,
                           std::uint64_t first,
                           std::uint32_t threshold,
                           float scale);
  /// table[id] += dy for all tokens in order, columns [begin, end).
  void (*embedding_grad[kFloats])(const void* dy,
                                  const std::int64_t* ids,
                                  float* table,
                                  std::int64_t tokens,
                                  std::int64_t channels,
                                  std::int64_t begin,
                                  std::int64_t end);
  /// Indexed by the type of dlogits.
  void (*cross_entropy[kFloats])(const EntropyRows&, std::int64_t begin, std::int64_t end);
  /// Replaces x[r][c] by e^(x[r][c] - largest[r]), where largest[r] is the row's maximum; sums[r]
  /// receives the sum of the new values.
  void (*exp_rows)(float* x,
                   std::int64_t columns,
                   double* largest,
                   double* sums,
                   std::int64_t begin,
                   std::int64_t end);
  void (*attend[kFloats])(const AttendRows&, std::int64_t begin, std::int64_t end);
  void (*attend_grad[kFloats])(const AttendGradRows&, std::int64_t begin, std::int64_t end);
  /// dots[r] = sum of x[r] * y[r].
  void (*row_dots[kFloats])(const StridedRows& x,
                            const StridedRows& y,
                            std::int64_t columns,
                            float* dots,
                            std::int64_t rows);
  /// y[r] = x[r] * factors[r]; factors: nullptr for 1.
  void (*round_rows[kFloats])(const float* x,
                              const float* factors,
                              std::int64_t columns,
                              const StridedRows& y,
                              std::int64_t rows);
  /// y[r] = x[r] in fp32, with contiguous rows.
  void (*widen_rows[kFloats])(const StridedRows& x,
                              std::int64_t columns,
                              float* y,
                              std::int64_t rows);
  void (*scale_rows)(float* x, const float* factors, std::int64_t columns, std::int64_t rows);
  void (*adamw)(const RuleRange&,
                float* exp_avg,
                float* exp_avg_sq,
                const AdamWScalars&,
                std::int64_t begin,
                std::int64_t end);
  void (*square_sums)(const float* x,
                      std::int64_t numel,
                      std::int64_t chunk,
                      double* sums,
                      std::int64_t begin,
                      std::int64_t end);
  std::int64_t (*first_nonfinite)(const float* x, std::int64_t numel);
  /// The optimizer rules: formulas and arguments as in fused_rules.h.
  void (*sgd)(
      const RuleRange&, float* buffer, const SgdStep&, std::int64_t begin, std::int64_t end);
  void (*adagrad)(
      const RuleRange&, float* sum, const AdagradStep&, std::int64_t begin, std::int64_t end);
  void (*lion)(
      const RuleRange&, float* exp_avg, const LionStep&, std::int64_t begin, std::int64_t end);
  void (*rmsprop)(const RuleRange&,
                  float* square_avg,
                  float* buffer,
                  float* grad_avg,
                  const RmspropStep&,
                  std::int64_t begin,
                  std::int64_t end);
  void (*nadam)(const RuleRange&,
                float* exp_avg,
                float* exp_avg_sq,
                const NAdamStep&,
                std::int64_t begin,
                std::int64_t end);
  void (*adamax)(const RuleRange&,
                 float* exp_avg,
                 float* exp_inf,
                 const AdamaxStep&,
                 std::int64_t begin,
                 std::int64_t end);
  /// For chunks [begin, end) of the range.
  void (*lamb_prepare)(const RuleRange&,
                       float* exp_avg,
                       float* exp_avg_sq,
                       const LambStep&,
                       double* weight_sums,
                       double* update_sums,
                       std::int64_t begin,
                       std::int64_t end);
  void (*lamb_update)(const RuleRange&,
                      const float* exp_avg,
                      const float* exp_avg_sq,
                      const LambStep&,
                      double rate,
                      std::int64_t begin,
                      std::int64_t end);
  void (*make_direction)(const RuleRange&,
                         float* buffer,
                         float* direction,
                         double momentum,
                         bool nesterov,
                         std::int64_t begin,
                         std::int64_t end);
  void (*apply_direction)(const RuleRange&,
                          const float* direction,
                          float* exp_avg,
                          const DirectionStep&,
                          std::int64_t begin,
                          std::int64_t end);
  /// For columns [begin, end).
  void (*column_square_sums)(const float* x,
                             std::int64_t rows,
                             std::int64_t columns,
                             double* sums,
                             std::int64_t begin,
                             std::int64_t end);
  /// For rows [begin, end).
  void (*scale_rows_columns)(float* x,
                             std::int64_t columns,
                             const float* of_rows,
                             const float* of_columns,
                             std::int64_t begin,
                             std::int64_t end);
  void (*attend_one[kFloats])(const AttendOne&);
  /// For outputs [begin, end), indexed by the type of the matrix.
  void (*row_products[kFloats])(const RowProducts&, std::int64_t begin, std::int64_t end);
  void (*row_products_int8)(const RowProducts&, std::int64_t begin, std::int64_t end);
  /// For rows [begin, end), indexed by the type of the output.
  void (*widen_int8[kFloats])(const Int8Widening&, std::int64_t begin, std::int64_t end);
  /// Decode the blocks [begin, end); one function per output type.
  void (*widen_nf4[kFloats])(const Nf4Widening&, std::int64_t begin, std::int64_t end);
  void (*narrow_nf4)(const Nf4Narrowing&, std::int64_t begin, std::int64_t end);
  void (*attend_pages[kFloats])(const AttendPages&);
  void (*attend_pages_int8)(const AttendPages&);
};

/// The kernels of isa().
const Kernels& kernels();

const Kernels& portable_kernels();
const Kernels& avx2_kernels();
const Kernels& avx512_kernels();
const Kernels& avx512_bf16_kernels();

}  // namespace tessera::ops::cpu
