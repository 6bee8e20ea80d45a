// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/cpu/attention_blocks.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tessera/ops/cpu/attention_parts.h"
#include "tessera/ops/cpu/attention_tiles.h"
#include "tessera/ops/cpu/gemm.h"
#include "tessera/ops/cpu/isa.h"
#include "tessera/ops/cpu/tensors.h"

namespace tessera::ops::cpu {
namespace {

/// Scores of one block, their probabilities and a head's sums stay within a core's cache.
constexpr std::int64_t kQueries = 128, kKeys = 512;

GemmOperand matrix(const StridedRows& rows, bool transposed = false) {
  return {rows.data, rows.stride, transposed};
}
GemmOperand dense(const void* data, std::int64_t columns, bool transposed = false) {
  return {data, columns, transposed};
}

/// The block of queries [query, query + queries) and keys [key, key + keys).
struct Block {
  std::int64_t query, queries, key, keys, first_visible;
};

/// What all blocks share.
struct Problem {
  Problem(const at::Tensor& q, const at::Tensor& k, const AttentionBlocks& options)
      : dtype(q.scalar_type()),
        type(float_of(q)),
        heads(q.size(0) * q.size(1)),
        group(q.size(1) / k.size(1)),
        T(q.size(2)),
        S(k.size(2)),
        K(q.size(3)),
        how(options) {}
  [[nodiscard]] std::int64_t query_blocks() const { return (T + kQueries - 1) / kQueries; }
  [[nodiscard]] std::int64_t key_blocks() const { return (S + kKeys - 1) / kKeys; }
  /// Without keys that none of its queries sees; keys <= 0: nothing to do.
  [[nodiscard]] Block block(std::int64_t i, std::int64_t j) const {
    Block b{i * kQueries, std::min(kQueries, T - i * kQueries), j * kKeys, 0, 0};
    const std::int64_t seen = how.causal ? how.query_offset + b.query + b.queries : S;
    b.keys = std::min({kKeys, S - b.key, seen - b.key});
    b.first_visible = how.causal ? how.query_offset + b.query + 1 - b.key : b.keys;
    return b;
  }
  void multiply(std::int64_t m,
                std::int64_t n,
                std::int64_t inner,
                const GemmOperand& a,
                const GemmOperand& b,
                float* c,
                bool accumulate) const {
    gemm_to_fp32(dtype, m, n, inner, a, b, c, n, accumulate);
  }

  at::ScalarType dtype;
  Float type;
  std::int64_t heads, group, T, S, K;  ///< `group` heads share keys and values
  AttentionBlocks how;
};

constexpr std::int64_t kScores = kQueries * kKeys;
/// The floats of memory that a block's scores take in the inputs' type.
std::int64_t narrow_scores(const Problem& p) {
  return p.type == kF32 ? kScores : kScores / 2;
}

class Forward {
 public:
  Forward(const Problem& p, Heads q, Heads k, Heads v, Heads y, float* log_sum)
      : p_(p), q_(q), k_(k), v_(v), y_(y), log_sum_(log_sum) {}
  static std::int64_t floats(const Problem& p) {
    return kScores + narrow_scores(p) + kQueries * p.K + 3 * kQueries;
  }

  void run(std::int64_t head, std::int64_t i, Scratch::Mine scratch) const {
    float* scores = scratch.take(kScores);
    void* probabilities = scratch.take(narrow_scores(p_));
    float* sums = scratch.take(kQueries * p_.K);
    float *max = scratch.take(kQueries), *sum = scratch.take(kQueries),
          *shrink = scratch.take(kQueries);
    std::fill_n(max, kQueries, -std::numeric_limits<float>::infinity());
    std::fill_n(sum, kQueries, 0.0F);
    const Kernels& kernel = kernels();
    Block b{};
    for (std::int64_t j = 0; j < p_.key_blocks(); ++j) {
      b = p_.block(i, j);
      if (b.keys <= 0) break;
      const StridedRows q = q_.rows(head, b.query), k = k_.rows(head / p_.group, b.key);
      p_.multiply(b.queries, b.keys, p_.K, matrix(q), matrix(k, true), scores, false);
      kernel.attend[p_.type]({.scores = scores,
                              .probabilities = probabilities,
                              .max = max,
                              .sum = sum,
                              .shrink = shrink,
                              .keys = b.keys,
                              .first_visible = b.first_visible,
                              .scale = p_.how.scale},
                             0,
                             b.queries);
      if (j > 0) kernel.scale_rows(sums, shrink, p_.K, b.queries);
      p_.multiply(b.queries,
                  p_.K,
                  b.keys,
                  dense(probabilities, b.keys),
                  matrix(v_.rows(head / p_.group, b.key)),
                  sums,
                  j > 0);
    }
    const std::int64_t first = i * kQueries, queries = std::min(kQueries, p_.T - first);
    for (std::int64_t row = 0; row < queries; ++row) {
      log_sum_[head * p_.T + first + row] = max[row] + std::log(sum[row]);
      shrink[row] = 1.0F / sum[row];
    }
    kernel.round_rows[p_.type](sums, shrink, p_.K, y_.rows(head, first), queries);
  }

 private:
  const Problem& p_;
  Heads q_, k_, v_, y_;
  float* log_sum_;
};

class Backward {
 public:
  struct Tensors {
    Heads dy, q, k, v, y, dq, dk, dv;
    const float* log_sum;
  };
  Backward(const Problem& p, const Tensors& tensors) : p_(p), x_(tensors) {}
  static std::int64_t floats(const Problem& p) {
    return 2 * kScores + 2 * narrow_scores(p) + Scratch::on_lines(p.T * p.K) +
           2 * kept_blocks(p) * kKeys * p.K + Scratch::on_lines(p.T);
  }

  /// The heads that share keys and values, one after the other.
  void run(std::int64_t shared, Scratch::Mine scratch) const {
    float *scores = scratch.take(kScores), *dprobabilities = scratch.take(kScores);
    void *probabilities = scratch.take(narrow_scores(p_)),
         *dscores = scratch.take(narrow_scores(p_));
    const std::int64_t K = p_.K, sums = kept_blocks(p_) * kKeys * K;
    float *dq = scratch.take(p_.T * K), *all_dk = scratch.take(sums), *all_dv = scratch.take(sums),
          *mean = scratch.take(p_.T);
    const Kernels& kernel = kernels();
    for (std::int64_t head = shared * p_.group; head < (shared + 1) * p_.group; ++head) {
      const bool first = head == shared * p_.group, last = head + 1 == (shared + 1) * p_.group;
      kernel.row_dots[p_.type](x_.dy.rows(head, 0), x_.y.rows(head, 0), K, mean, p_.T);
      // Blocks of keys one after the other: their gradients stay in the cache.
      for (std::int64_t j = 0; j < p_.key_blocks(); ++j) {
        const std::int64_t key = j * kKeys, keys = std::min(kKeys, p_.S - key);
        const std::int64_t place = p_.group == 1 ? 0 : key * K;
        float *dk = all_dk + place, *dv = all_dv + place;
        if (first) {
          std::fill_n(dk, keys * K, 0.0F);
          std::fill_n(dv, keys * K, 0.0F);
        }
        const StridedRows k = x_.k.rows(shared, key), v = x_.v.rows(shared, key);
        for (std::int64_t i = 0; i < p_.query_blocks(); ++i) {
          const Block b = p_.block(i, j);
          if (b.keys <= 0) continue;
          const StridedRows q = x_.q.rows(head, b.query), dy = x_.dy.rows(head, b.query);
          p_.multiply(b.queries, b.keys, K, matrix(q), matrix(k, true), scores, false);
          p_.multiply(b.queries, b.keys, K, matrix(dy), matrix(v, true), dprobabilities, false);
          kernel.attend_grad[p_.type]({.scores = scores,
                                       .dprobabilities = dprobabilities,
                                       .probabilities = probabilities,
                                       .dscores = dscores,
                                       .log_sum = x_.log_sum + head * p_.T + b.query,
                                       .mean = mean + b.query,
                                       .keys = b.keys,
                                       .first_visible = b.first_visible,
                                       .scale = p_.how.scale},
                                      0,
                                      b.queries);
          p_.multiply(
              b.keys, K, b.queries, dense(probabilities, b.keys, true), matrix(dy), dv, true);
          p_.multiply(b.keys, K, b.queries, dense(dscores, b.keys, true), matrix(q), dk, true);
          p_.multiply(
              b.queries, K, b.keys, dense(dscores, b.keys), matrix(k), dq + b.query * K, j > 0);
        }
        if (last) {
          kernel.round_rows[p_.type](dk, nullptr, K, x_.dk.rows(shared, key), keys);
          kernel.round_rows[p_.type](dv, nullptr, K, x_.dv.rows(shared, key), keys);
        }
      }
      kernel.round_rows[p_.type](dq, nullptr, K, x_.dq.rows(head, 0), p_.T);
    }
  }

 private:
  /// Blocks of keys whose gradients are summed at a time: all of them, until the last head that
  /// shares them was here.
  static std::int64_t kept_blocks(const Problem& p) { return p.group == 1 ? 1 : p.key_blocks(); }

  const Problem& p_;
  Tensors x_;
};

bool has_products(at::ScalarType dtype) {
  if (dtype == at::kFloat) return isa() >= Isa::Avx512 && has_gemm_to_fp32(dtype);
  return dtype == at::kBFloat16 && native_bf16_to_fp32() && has_gemm_to_fp32(dtype);
}

/// Too few queries to put the keys into the order of tiles for.
constexpr std::int64_t kFewQueries = 16;

bool in_tiles(const at::Tensor& q_BHTK) {
  return isa() == Isa::Amx && q_BHTK.scalar_type() == at::kBFloat16 &&
         (q_BHTK.size(2) >= kFewQueries || !has_products(q_BHTK.scalar_type()));
}

}  // namespace

bool attention_blocks_fit(at::ScalarType dtype) {
  return has_products(dtype) || (dtype == at::kBFloat16 && isa() == Isa::Amx);
}

void attention_blocks(const at::Tensor& q_BHTK,
                      const at::Tensor& k_BGSK,
                      const at::Tensor& v_BGSK,
                      const AttentionBlocks& how,
                      const at::Tensor& y_BHTK,
                      const at::Tensor& log_sum_BHT) {
  if (in_tiles(q_BHTK)) {
    attention_tiles(q_BHTK, k_BGSK, v_BGSK, how, y_BHTK, log_sum_BHT);
    return;
  }
  const Problem p(q_BHTK, k_BGSK, how);
  const Forward forward(
      p, Heads(q_BHTK), Heads(k_BGSK), Heads(v_BGSK), Heads(y_BHTK), log_sum_BHT.data_ptr<float>());
  const Scratch scratch(Forward::floats(p), q_BHTK);
  const std::int64_t blocks = p.query_blocks();
  parallel(p.heads * blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t unit = begin; unit < end; ++unit)
      forward.run(unit / blocks, unit % blocks, scratch.mine());
  });
}

void attention_blocks_backward(const at::Tensor& dy_BHTK,
                               const at::Tensor& q_BHTK,
                               const at::Tensor& k_BGSK,
                               const at::Tensor& v_BGSK,
                               const at::Tensor& y_BHTK,
                               const at::Tensor& log_sum_BHT,
                               const AttentionBlocks& how,
                               const at::Tensor& dq_BHTK,
                               const at::Tensor& dk_BGSK,
                               const at::Tensor& dv_BGSK) {
  if (in_tiles(q_BHTK)) {
    attention_tiles_backward(
        dy_BHTK, q_BHTK, k_BGSK, v_BGSK, y_BHTK, log_sum_BHT, how, dq_BHTK, dk_BGSK, dv_BGSK);
    return;
  }
  const Problem p(q_BHTK, k_BGSK, how);
  const Backward backward(p,
                          {.dy = Heads(dy_BHTK),
                           .q = Heads(q_BHTK),
                           .k = Heads(k_BGSK),
                           .v = Heads(v_BGSK),
                           .y = Heads(y_BHTK),
                           .dq = Heads(dq_BHTK),
                           .dk = Heads(dk_BGSK),
                           .dv = Heads(dv_BGSK),
                           .log_sum = log_sum_BHT.data_ptr<float>()});
  const Scratch scratch(Backward::floats(p), q_BHTK);
  parallel(p.heads / p.group, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t shared = begin; shared < end; ++shared)
      backward.run(shared, scratch.mine());
  });
}

}  // namespace tessera::ops::cpu
