// SPDX-License-Identifier: Apache-2.0
// Starts of the CUDA kernels, on current_stream(). All pointers are memory of the current device.
// The declarations include nothing of CUDA. Updates and sums of squares have the bits of the CPU's
// kernels (ops/cpu/kernels.h), because both are compiled from ops/rules.inc or add in the same
// order.
#pragma once

#include <cstdint>

#include "tessera/base/dtype.h"
#include "tessera/ops/activation_kind.h"
#include "tessera/ops/fused_adamw.h"
#include "tessera/ops/fused_rules.h"

namespace tessera::ops::cuda {

/// The stream on which kernels of the calling thread are started: the current one of libtorch.
void* current_stream();

// The functions of fused_adamw.h and fused_rules.h, for the elements [0, end).
void adamw(const RuleRange& range,
           float* exp_avg,
           float* exp_avg_sq,
           const AdamWScalars& scalars,
           std::int64_t begin,
           std::int64_t end);
void sgd(const RuleRange& range,
         float* buffer,
         const SgdStep& step,
         std::int64_t begin,
         std::int64_t end);
void adagrad(const RuleRange& range,
             float* sum,
             const AdagradStep& step,
             std::int64_t begin,
             std::int64_t end);
void lion(const RuleRange& range,
          float* exp_avg,
          const LionStep& step,
          std::int64_t begin,
          std::int64_t end);
void rmsprop(const RuleRange& range,
             float* square_avg,
             float* buffer,
             float* grad_avg,
             const RmspropStep& step,
             std::int64_t begin,
             std::int64_t end);
void nadam(const RuleRange& range,
           float* exp_avg,
           float* exp_avg_sq,
           const NAdamStep& step,
           std::int64_t begin,
           std::int64_t end);
void adamax(const RuleRange& range,
            float* exp_avg,
            float* exp_inf,
            const AdamaxStep& step,
            std::int64_t begin,
            std::int64_t end);
void lamb_update(const RuleRange& range,
                 const float* exp_avg,
                 const float* exp_avg_sq,
                 const LambStep& step,
                 double rate,
                 std::int64_t begin,
                 std::int64_t end);
void make_direction(const RuleRange& range,
                    float* buffer,
                    float* direction,
                    double momentum,
                    bool nesterov,
                    std::int64_t begin,
                    std::int64_t end);
void apply_direction(const RuleRange& range,
                     const float* direction,
                     float* exp_avg,
                     const DirectionStep& step,
                     std::int64_t begin,
                     std::int64_t end);

/// As ops::lamb_prepare(); the sums are memory of the device.
void lamb_prepare(const RuleRange& range,
                  float* exp_avg,
                  float* exp_avg_sq,
                  const LambStep& step,
                  double* weight_sums,
                  double* update_sums);
/// As ops::chunk_square_sums(); `sums` is memory of the device.
void chunk_square_sums(const float* x, std::int64_t numel, std::int64_t chunk, double* sums);
/// *first, memory of the device, becomes the smallest index of a value that is NaN or infinite;
/// `numel` if there is none.
void first_nonfinite(const float* x, std::int64_t numel, unsigned long long* first);
/// As ops::scale_rows_columns() and ops::column_square_sums().
void scale_rows_columns(float* x_RC,
                        std::int64_t rows,
                        std::int64_t columns,
                        const float* of_rows_R,
                        const float* of_columns_C);
void column_square_sums(const float* x_RC, std::int64_t rows, std::int64_t columns, double* sums_C);

/// A tensor and the place of its elements in their samples, as in ops::DropoutKey and
/// ops::DropoutRuns. Pointers are memory of the device.
struct DropoutElements {
  std::uint64_t key;
  const std::int64_t* sample_ids;
  const std::int64_t* parts;  ///< or nullptr
  std::int64_t element_offset, column, columns, each, length, run, numel;
  std::uint32_t threshold;
  float scale;
};

/// Rows of ops/norm.h, of one dtype: fp32, bf16 or fp16. Weights and statistics are fp32.
struct NormRows {
  const void* x;
  const void* branch;  ///< or nullptr
  const float* weight;
  const float* bias;  ///< or nullptr
  void* y;
  void* sum;    ///< receives x + dropout(branch), if there is a branch
  float* mean;  ///< nullptr: a root-mean-square norm
  float* rstd;
  std::int64_t channels;
  double eps;
  /// Elements of the branch, all rows together; numel 0: the branch is not dropped.
  DropoutElements drop = {};
};
void norm(DType dtype, const NormRows& rows, std::int64_t count);

struct NormGradRows {
  const void *dy, *x;
  const float *mean, *rstd;  ///< mean: nullptr for a root-mean-square norm
  const float* weight;       ///< not read by norm_columns()
  const void* plus;          ///< or nullptr
  void* dx;                  ///< not written by norm_columns()
  std::int64_t channels;
  void* dbranch = nullptr;  ///< receives dropout(dx) of `drop`, or nullptr
  DropoutElements drop = {};
};
void norm_grad(DType dtype, const NormGradRows& rows, std::int64_t count);
/// The number of parts into which norm_columns() divides the rows.
std::int64_t norm_parts(std::int64_t rows);
/// Sums of each part, [parts, channels], for the gradients of weight and bias; nullptr: skipped.
void norm_columns(
    DType dtype, const NormGradRows& rows, std::int64_t count, float* of_weight, float* of_bias);
/// out = (accumulate ? out : 0) + the parts in their order.
void add_parts(
    const float* parts, std::int64_t count, std::int64_t channels, bool accumulate, float* out);

/// Rows of ops::cross_entropy_(). A label below 0 is ignored.
struct CrossEntropyRows {
  const float* logits;
  const std::int64_t* labels;
  double* losses;  ///< of each row
  void* gradient;  ///< nullptr: not wanted; may be the memory of the logits
  std::int64_t vocab;
  double smoothing;
};
void cross_entropy(DType gradient_dtype, const CrossEntropyRows& rows, std::int64_t count);

/// The operations of comm::Op.
enum class PartsOp : std::uint8_t { Sum, Max, Min, BitOr };
/// As ops::reduce_parts(), for a dtype that comm::can_reduce() allows.
void reduce_parts(DType dtype,
                  PartsOp op,
                  const void* parts,
                  std::int64_t count,
                  bool accumulate,
                  void* out,
                  std::int64_t numel);

// The functions of ops/activation.h on contiguous elements; `gated` reads rows of 2 x width.
void activate(DType dtype, const void* x, std::int64_t numel, Activation activation, void* y);
void activate_grad(DType dtype,
                   const void* dy,
                   const void* x,
                   std::int64_t numel,
                   Activation activation,
                   void* dx);
void gated(DType dtype,
           const void* x,
           std::int64_t rows,
           std::int64_t width,
           Activation activation,
           void* y);
void gated_grad(DType dtype,
                const void* dy,
                const void* x,
                std::int64_t rows,
                std::int64_t width,
                Activation activation,
                void* dx);

/// y = plus + dropout(x), rounded once; `plus` may be nullptr.
void dropout(
    DType dtype, const DropoutElements& elements, const void* x, const void* plus, void* y);

/// Token ids in ascending order, and the place of each in the batch; equal ids in the order of
/// their places.
struct SortedIds {
  const std::int64_t *ids, *places;
  std::int64_t count;
};
/// Adds the rows of dy to the rows of dw, in the order of the tokens.
void embedding_grad(
    DType dtype, const void* dy, const SortedIds& ids, std::int64_t channels, float* dw);

/// Rows of a matrix and the sums of the columns of each of norm_parts(rows) parts of them, in row
/// order: [parts, columns]. Elements are fp32, bf16 or fp16.
void column_sums(DType dtype, const void* x, std::int64_t rows, std::int64_t columns, float* parts);

/// Tensors of ops/rotary.h. x and y have contiguous channels; *_at: elements from one sample, head
/// and token to the next.
struct RotaryRows {
  const void* x;
  void* y;
  const float *cosine, *sine;  ///< [samples, tokens, pairs], or one sample for all
  std::int64_t samples, heads, tokens, channels, pairs;
  std::int64_t x_at[3], y_at[3];
  std::int64_t table_of_sample;  ///< elements of a sample's table; 0: one for all
  bool interleaved;
  float direction;
};
void rotary(DType dtype, const RotaryRows& rows);

/// The most channels of a head that paged_attention() takes.
inline constexpr int kMostPagedChannels = 256;
/// Arguments of ops/paged_attention.h: q and y are [samples, heads, channels].
struct PagedRows {
  const void* q;
  void* y;
  const void *keys, *values;               ///< [pages, groups, page_tokens, channels]
  const float *key_scales, *value_scales;  ///< of int8 pages, else nullptr
  const std::int64_t *table, *lengths;     ///< [samples, columns], [samples]
  const float* slopes;                     ///< of ALiBi, [heads], or nullptr
  const float* bias;                       ///< [heads, bias_keys], or nullptr
  std::int64_t heads, groups, page_tokens, channels, columns, bias_keys, window;
  std::int64_t chunk = 0;  ///< AttentionArgs::chunk
  float scale, softcap;
};
/// `pages`: fp32, bf16, fp16 or int8.
void paged_attention(DType dtype, DType pages, const PagedRows& rows, std::int64_t samples);

/// The numbers of a block of NF4, as ops::kNf4Block.
inline constexpr std::int64_t kNf4Numbers = 64;
/// base/quant_codes.h's numbers, as an argument of a kernel.
struct Nf4Table {
  float values[16], midpoints[15];
};
// As the functions of ops/int8_rows.h and ops/nf4.h.
void widen_int8(const std::int8_t* rows,
                const float* scales,
                std::int64_t numel,
                std::int64_t width,
                DType dtype,
                void* out);
void widen_nf4(const std::uint8_t* codes,
               const float* scales,
               const Nf4Table& table,
               std::int64_t numel,
               DType dtype,
               void* out);
void narrow_nf4(const float* values,
                std::int64_t numel,
                const Nf4Table& table,
                std::uint8_t* codes,
                float* scales);

/// The places of the results of the sampler in `found`.
inline constexpr int kBestToken = 0, kUndefinedLogit = 1, kDrawnToken = 2;
/// Writes the weights e^((logit - largest) / temperature) of the tokens, the token of the largest
/// logit, and the first logit that is not a number, or -1. weights: nullptr: not wanted.
void token_weights(const float* logits,
                   std::int64_t vocab,
                   double temperature,
                   double* weights,
                   std::int64_t* found);
/// Draws a token, ids[i] or i, by the share `uniform` of the sum of the weights, of which the first
/// ones that reach the share top_p are kept.
void draw_token(const double* weights,
                const std::int64_t* ids,
                std::int64_t count,
                double top_p,
                double uniform,
                std::int64_t* found);

}  // namespace tessera::ops::cuda
