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

/// Block sizes with which scores, probabilities and a head's sums stay within a core's cache.
constexpr std::int64_t kQueries = 64;

GemmOperand matrix(const StridedRows& rows, bool transposed = false) {
  return {rows.data, rows.stride, transposed};
}
GemmOperand dense(const void* data, std::int64_t columns, bool transposed = false) {
  return {data, columns, transposed};
}

/// The block of queries [query, query + queries) and keys [key, key + keys); row r sees its keys
/// [first_begin + r, first_visible + r).
struct Block {
  std::int64_t query, queries, key, keys, first_visible, first_begin;
  bool begins;  ///< the first block of its queries
  [[nodiscard]] Run seen(std::int64_t row) const {
    const std::int64_t end = std::clamp<std::int64_t>(first_visible + row, 0, keys);
    return {std::clamp<std::int64_t>(first_begin + row, 0, end), end};
  }
};

/// True if MKL multiplies these 16-bit numbers faster than fp32.
bool narrow_products(at::ScalarType dtype) {
  return dtype == at::kBFloat16 && native_bf16_to_fp32() && has_gemm_to_fp32(dtype);
}

constexpr std::int64_t kScores = kQueries * kKeys;

/// The values that all blocks share.
class Problem {
 public:
  Problem(const at::Tensor& q, const at::Tensor& k, const AttentionBlocks& options)
      : how(options),
        batch_heads(q.size(1)),
        heads(q.size(0) * q.size(1)),
        group(q.size(1) / k.size(1)),
        T(q.size(2)),
        S(k.size(2)),
        K(q.size(3)),
        given(float_of(q)),
        product(narrow_products(q.scalar_type()) ? given : kF32),
        dtype_(product == kF32 ? at::kFloat : q.scalar_type()) {}
  [[nodiscard]] std::int64_t query_blocks() const { return (T + kQueries - 1) / kQueries; }
  [[nodiscard]] std::int64_t key_blocks() const { return (S + kKeys - 1) / kKeys; }
  /// The keys that a block of queries sees.
  [[nodiscard]] Run seen(std::int64_t i) const {
    return how.band.of(i * kQueries, std::min(kQueries, T - i * kQueries), S);
  }
  /// Excludes keys that none of the block's queries sees, except for alignment to a cache line;
  /// keys <= 0: nothing to do.
  [[nodiscard]] Block block(std::int64_t i, std::int64_t j) const {
    constexpr std::int64_t kLine = 16;
    const Run keys = seen(i);
    const std::int64_t query = i * kQueries, key = std::max(j * kKeys, keys.begin / kLine * kLine);
    return {.query = query,
            .queries = std::min(kQueries, T - query),
            .key = key,
            .keys = keys.begin == keys.end ? 0 : std::min((j + 1) * kKeys, keys.end) - key,
            .first_visible = how.band.end + query - key,
            .first_begin = how.band.begin + query - key,
            .begins = j == keys.begin / kKeys};
  }
  void multiply(std::int64_t m,
                std::int64_t n,
                std::int64_t inner,
                const GemmOperand& a,
                const GemmOperand& b,
                float* c,
                bool accumulate) const {
    gemm_to_fp32(dtype_, {m, n, inner, a, b, c, n, accumulate});
  }

  /// Number of floats for `rows` rows of channels, if they are widened.
  [[nodiscard]] std::int64_t room(std::int64_t rows) const {
    return product == given ? 0 : rows * K;
  }
  /// The rows as the products read them; widened rows are written to `room`.
  [[nodiscard]] StridedRows ready(const StridedRows& x, std::int64_t rows, float* room) const {
    if (product == given) return x;
    kernels().widen_rows[given](x, K, room, rows);
    return {room, K};
  }
  /// Number of floats for the result of a block of scores; fp32 needs none, because it stays in
  /// place.
  [[nodiscard]] std::int64_t narrow() const { return product == kF32 ? 0 : kScores / 2; }
  [[nodiscard]] std::int64_t dropped() const { return how.dropout == nullptr ? 0 : kScores; }
  /// The rows from `row` on of the result of ready().
  [[nodiscard]] StridedRows from(const StridedRows& x, std::int64_t row) const {
    const std::int64_t width = product == kF32 ? 4 : 2;
    return {static_cast<std::byte*>(x.data) + row * x.stride * width, x.stride};
  }

  [[nodiscard]] ScoreForm form(std::int64_t head, const Block& b) const {
    return score_form(how, batch_heads, head, b.query, b.key);
  }
  /// Writes dropout's factors for the visible probabilities of the block.
  [[nodiscard]] const float* kept(std::int64_t head, const Block& b, float* factors) const {
    if (how.dropout == nullptr) return nullptr;
    for (std::int64_t row = 0; row < b.queries; ++row) {
      const Run seen = b.seen(row);
      if (seen.begin == seen.end) continue;
      draw_kept(*how.dropout,
                {.sample = head / batch_heads,
                 .matrix = head % batch_heads,
                 .row = b.query + row,
                 .column = b.key + seen.begin},
                seen.end - seen.begin,
                factors + row * b.keys + seen.begin);
    }
    return factors;
  }

  AttentionBlocks how;
  std::int64_t batch_heads;            ///< per sample
  std::int64_t heads, group, T, S, K;  ///< `group` heads share keys and values
  Float given, product;                ///< dtypes of the tensors and of the products

 private:
  at::ScalarType dtype_;
};

class Forward {
 public:
  Forward(const Problem& p, Heads q, Heads k, Heads v, Heads y, float* log_sum)
      : p_(p), q_(q), k_(k), v_(v), y_(y), log_sum_(log_sum) {}
  static std::int64_t floats(const Problem& p) {
    return kScores + p.narrow() + p.dropped() + Scratch::on_lines(p.room(kQueries)) +
           2 * Scratch::on_lines(p.room(kKeys)) + kQueries * p.K + 3 * kQueries;
  }

  void run(std::int64_t head, std::int64_t i, Scratch::Mine scratch) const {
    float* scores = scratch.take(kScores);
    void* probabilities = p_.narrow() == 0 ? scores : scratch.take(p_.narrow());
    float *factors = scratch.take(p_.dropped()), *q_room = scratch.take(p_.room(kQueries)),
          *k_room = scratch.take(p_.room(kKeys)), *v_room = scratch.take(p_.room(kKeys));
    float* sums = scratch.take(kQueries * p_.K);
    float *max = scratch.take(kQueries), *sum = scratch.take(kQueries),
          *shrink = scratch.take(kQueries);
    std::fill_n(max, kQueries, -std::numeric_limits<float>::infinity());
    std::fill_n(sum, kQueries, 0.0F);
    const Kernels& kernel = kernels();
    const std::int64_t first = i * kQueries, queries = std::min(kQueries, p_.T - first);
    const StridedRows q = p_.ready(q_.rows(head, first), queries, q_room);
    const Run seen = p_.seen(i);
    if (seen.begin == seen.end) std::fill_n(sums, queries * p_.K, 0.0F);
    for (std::int64_t j = seen.begin / kKeys; j * kKeys < seen.end; ++j) {
      const Block b = p_.block(i, j);
      const StridedRows k = p_.ready(k_.rows(head / p_.group, b.key), b.keys, k_room),
                        v = p_.ready(v_.rows(head / p_.group, b.key), b.keys, v_room);
      p_.multiply(queries, b.keys, p_.K, matrix(q), matrix(k, true), scores, false);
      kernel.attend[p_.product]({.scores = scores,
                                 .probabilities = probabilities,
                                 .max = max,
                                 .sum = sum,
                                 .shrink = shrink,
                                 .keys = b.keys,
                                 .first_visible = b.first_visible,
                                 .first_begin = b.first_begin,
                                 .form = p_.form(head, b),
                                 .kept = p_.kept(head, b, factors)},
                                0,
                                queries);
      if (!b.begins) kernel.scale_rows(sums, shrink, p_.K, queries);
      p_.multiply(queries, p_.K, b.keys, dense(probabilities, b.keys), matrix(v), sums, !b.begins);
    }
    for (std::int64_t row = 0; row < queries; ++row) {
      log_sum_[head * p_.T + first + row] = max[row] + std::log(sum[row]);
      shrink[row] = inverse_sum(sum[row]);
    }
    kernel.round_rows[p_.given](sums, shrink, p_.K, y_.rows(head, first), queries);
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
    return 2 * kScores + 2 * p.narrow() + p.dropped() + 2 * Scratch::on_lines(p.room(kQueries)) +
           2 * Scratch::on_lines(p.room(kKeys)) + Scratch::on_lines(p.T * p.K) +
           2 * kept_blocks(p) * kKeys * p.K + Scratch::on_lines(p.T) + cap_slopes(p.how);
  }

  /// Processes the heads that share keys and values, one after the other.
  void run(std::int64_t shared, Scratch::Mine scratch) const {
    const std::int64_t K = p_.K, sums = kept_blocks(p_) * kKeys * K;
    const Room room = {.scores = scratch.take(kScores),
                       .dprobabilities = scratch.take(kScores),
                       .probabilities = scratch.take(p_.narrow()),
                       .dscores = scratch.take(p_.narrow()),
                       .factors = scratch.take(p_.dropped()),
                       .q = scratch.take(p_.room(kQueries)),
                       .dy = scratch.take(p_.room(kQueries)),
                       .dq = scratch.take(p_.T * K),
                       .mean = scratch.take(p_.T),
                       .cap_slopes = scratch.take(cap_slopes(p_.how))};
    float *k_room = scratch.take(p_.room(kKeys)), *v_room = scratch.take(p_.room(kKeys)),
          *all_dk = scratch.take(sums), *all_dv = scratch.take(sums);
    const Kernels& kernel = kernels();
    for (std::int64_t head = shared * p_.group; head < (shared + 1) * p_.group; ++head) {
      const bool first = head == shared * p_.group, last = head + 1 == (shared + 1) * p_.group;
      kernel.row_dots[p_.given](x_.dy.rows(head, 0), x_.y.rows(head, 0), K, room.mean, p_.T);
      for (std::int64_t i = 0; i < p_.query_blocks(); ++i) {
        const std::int64_t query = i * kQueries;
        if (const Run seen = p_.seen(i); seen.begin == seen.end)
          std::fill_n(room.dq + query * K, std::min(kQueries, p_.T - query) * K, 0.0F);
      }
      // Processes the blocks of keys one after the other, so that their gradients stay in the
      // cache.
      for (std::int64_t j = 0; j < p_.key_blocks(); ++j) {
        const std::int64_t key = j * kKeys, keys = std::min(kKeys, p_.S - key);
        const std::int64_t place = p_.group == 1 ? 0 : key * K;
        const Keys block = {.key = key,
                            .k = p_.ready(x_.k.rows(shared, key), keys, k_room),
                            .v = p_.ready(x_.v.rows(shared, key), keys, v_room),
                            .dk = all_dk + place,
                            .dv = all_dv + place};
        if (first) {
          std::fill_n(block.dk, keys * K, 0.0F);
          std::fill_n(block.dv, keys * K, 0.0F);
        }
        for (std::int64_t i = 0; i < p_.query_blocks(); ++i) {
          if (const Block b = p_.block(i, j); b.keys > 0) add(head, b, block, room);
        }
        if (last) {
          kernel.round_rows[p_.given](block.dk, nullptr, K, x_.dk.rows(shared, key), keys);
          kernel.round_rows[p_.given](block.dv, nullptr, K, x_.dv.rows(shared, key), keys);
        }
      }
      kernel.round_rows[p_.given](room.dq, nullptr, K, x_.dq.rows(head, 0), p_.T);
    }
  }

 private:
  /// A thread's scratch memory.
  struct Room {
    float *scores, *dprobabilities, *probabilities, *dscores, *factors, *q, *dy, *dq, *mean,
        *cap_slopes;
  };
  /// A block of keys and values, and the sums of their gradients.
  struct Keys {
    std::int64_t key;
    StridedRows k, v;
    float *dk, *dv;
  };

  /// Adds the contribution of a block of queries to the gradients.
  void add(std::int64_t head, const Block& b, const Keys& block, const Room& room) const {
    const std::int64_t K = p_.K, skipped = b.key - block.key;
    const StridedRows k = p_.from(block.k, skipped), v = p_.from(block.v, skipped);
    float *const dk = block.dk + skipped * K, *const dv = block.dv + skipped * K;
    const StridedRows q = p_.ready(x_.q.rows(head, b.query), b.queries, room.q),
                      dy = p_.ready(x_.dy.rows(head, b.query), b.queries, room.dy);
    void* const probabilities = p_.narrow() == 0 ? room.scores : room.probabilities;
    void* const dscores = p_.narrow() == 0 ? room.dprobabilities : room.dscores;
    p_.multiply(b.queries, b.keys, K, matrix(q), matrix(k, true), room.scores, false);
    p_.multiply(b.queries, b.keys, K, matrix(dy), matrix(v, true), room.dprobabilities, false);
    kernels().attend_grad[p_.product](
        {.scores = room.scores,
         .dprobabilities = room.dprobabilities,
         .probabilities = probabilities,
         .dscores = dscores,
         .log_sum = x_.log_sum + head * p_.T + b.query,
         .mean = room.mean + b.query,
         .keys = b.keys,
         .first_visible = b.first_visible,
         .first_begin = b.first_begin,
         .form = p_.form(head, b),
         .kept = p_.kept(head, b, room.factors),
         .cap_slopes = room.cap_slopes,
         .dpairs = bias_gradient(p_.how, p_.batch_heads, head, b.query, b.key),
         .dpair_stride = p_.S},
        0,
        b.queries);
    p_.multiply(b.keys, K, b.queries, dense(probabilities, b.keys, true), matrix(dy), dv, true);
    p_.multiply(b.keys, K, b.queries, dense(dscores, b.keys, true), matrix(q), dk, true);
    p_.multiply(
        b.queries, K, b.keys, dense(dscores, b.keys), matrix(k), room.dq + b.query * K, !b.begins);
  }

  /// Number of blocks of keys whose gradients are summed at a time: all of them, until the last
  /// head that shares them was processed.
  static std::int64_t kept_blocks(const Problem& p) { return p.group == 1 ? 1 : p.key_blocks(); }

  const Problem& p_;
  Tensors x_;
};

/// Below this number of queries packing the keys into tiles does not pay off.
constexpr std::int64_t kFewQueries = 16;

bool in_tiles(const at::Tensor& q_BHTK) {
  return isa() >= Isa::Avx512Bf16 && q_BHTK.scalar_type() == at::kBFloat16 &&
         (q_BHTK.size(2) >= kFewQueries || !narrow_products(q_BHTK.scalar_type()));
}

}  // namespace

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
    const GemmsOnThisThread alone;  // a single block runs outside of a parallel region
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
  const std::int64_t units = shared_units(how, k_BGSK);
  parallel(units, 1, [&](std::int64_t begin, std::int64_t end) {
    const GemmsOnThisThread alone;
    for (std::int64_t unit = begin; unit < end; ++unit) {
      for (std::int64_t shared = unit; shared < p.heads / p.group; shared += units)
        backward.run(shared, scratch.mine());
    }
  });
}

std::int64_t attention_blocks_floats(const at::Tensor& q_BHTK,
                                     const at::Tensor& k_BGSK,
                                     const AttentionBlocks& how,
                                     bool backward) {
  if (in_tiles(q_BHTK)) return attention_tiles_floats(q_BHTK, k_BGSK, how, backward);
  const Problem p(q_BHTK, k_BGSK, how);
  return backward ? Backward::floats(p) : Forward::floats(p);
}

}  // namespace tessera::ops::cpu
