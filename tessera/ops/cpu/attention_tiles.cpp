// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/cpu/attention_tiles.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "tessera/ops/cpu/attention_parts.h"
#include "tessera/ops/cpu/tensors.h"
#include "tessera/ops/cpu/tiles.h"

namespace tessera::ops::cpu {
namespace {

/// Number of queries multiplied together: two tiles.
constexpr std::int64_t kStrip = 32;
constexpr std::int64_t kQueries = 128;
/// Distance between rows of scores: rows at a distance of a power of two would share cache lines.
constexpr std::int64_t kStride = kKeys + kTileRows;

std::int64_t strips(std::int64_t size) {
  return whole_tiles(size, kStrip);
}

/// The values that all blocks share.
struct Problem {
  Problem(const at::Tensor& q, const at::Tensor& k, const AttentionBlocks& options)
      : batch_heads(q.size(1)),
        heads(q.size(0) * q.size(1)),
        group(q.size(1) / k.size(1)),
        T(q.size(2)),
        S(k.size(2)),
        K(q.size(3)),
        inner(whole_tiles(K, kTileInner)),
        columns(whole_tiles(K, kTileRows)),
        how(options) {}
  [[nodiscard]] std::int64_t query_blocks() const { return (T + kQueries - 1) / kQueries; }
  [[nodiscard]] std::int64_t key_blocks() const { return (S + kKeys - 1) / kKeys; }
  /// The keys that the strip of queries from `query` on sees.
  [[nodiscard]] Run seen(std::int64_t query) const {
    return how.band.of(query, std::min(kStrip, T - query), S);
  }
  /// Number of floats for dropout's factors of a strip's probabilities.
  [[nodiscard]] std::int64_t dropped() const {
    return how.dropout == nullptr ? 0 : kStrip * kStride;
  }
  [[nodiscard]] PackedRows rows(const Heads& x, std::int64_t head, std::int64_t count) const {
    return {x.rows(head, 0), count, K};
  }

  std::int64_t batch_heads;            ///< per sample
  std::int64_t heads, group, T, S, K;  ///< `group` heads share keys and values
  /// K padded as the inner size of a product, and as its columns.
  std::int64_t inner, columns;
  AttentionBlocks how;
};

/// Queries from `query` on and the block of keys from `key` on.
struct Block {
  Block(const Problem& p, std::int64_t i, std::int64_t j)
      : query(i * kQueries),
        queries(std::min(kQueries, p.T - query)),
        key(j * kKeys),
        keys(std::min(kKeys, p.S - key)),
        first_visible(p.how.band.end + query - key),
        first_begin(p.how.band.begin + query - key) {}
  /// The keys, in whole tiles, that the strip of queries from `row` on sees; begin = end: none.
  [[nodiscard]] Run columns(std::int64_t row) const {
    const std::int64_t last = std::min(row + kStrip, queries) - 1;
    const std::int64_t end = std::clamp<std::int64_t>(first_visible + last, 0, keys),
                       begin = std::clamp<std::int64_t>(first_begin + row, 0, end);
    if (begin == end) return {strips(begin), strips(begin)};
    return {begin / kStrip * kStrip, strips(end)};
  }
  /// The head's strip of queries from `row` on; `factors`: memory for dropout's factors.
  [[nodiscard]] TileStrip strip(const Problem& p,
                                std::int64_t head,
                                std::int64_t row,
                                float* factors) const {
    const Run seen = columns(row);
    TileStrip out{.rows = std::min(kStrip, queries - row),
                  .columns = seen.end - seen.begin,
                  .keys = keys - seen.begin,
                  .first_visible = first_visible + row - seen.begin,
                  .first_begin = first_begin + row - seen.begin,
                  .stride = kStride,
                  .form = score_form(p.how, p.batch_heads, head, query + row, key + seen.begin)};
    if (p.how.dropout == nullptr) return out;
    out.kept = factors;
    for (std::int64_t r = 0; r < out.rows; ++r) {
      const std::int64_t from = out.from(r), count = out.to(r) - from;
      if (count == 0) continue;
      draw_kept(*p.how.dropout,
                {.sample = head / p.batch_heads,
                 .matrix = head % p.batch_heads,
                 .row = query + row + r,
                 .column = key + seen.begin + from},
                count,
                factors + r * kStride + from);
    }
    return out;
  }
  /// True if the strip of queries from `row` on sees no earlier block of keys.
  [[nodiscard]] bool begins(const Problem& p, std::int64_t row) const {
    return p.seen(query + row).begin >= key;
  }

  std::int64_t query, queries, key, keys, first_visible, first_begin;
};

/// Zeroes the sums of those strips of queries [query, query + queries) that see no key.
void clear_blind(const Problem& p, std::int64_t query, std::int64_t queries, float* sums) {
  for (std::int64_t row = 0; row < queries; row += kStrip) {
    if (const Run seen = p.seen(query + row); seen.begin == seen.end)
      std::fill_n(sums + row * p.columns, kStrip * p.columns, 0.0F);
  }
}

std::int64_t halves(std::int64_t values) {
  return (values + 1) / 2;
}
std::uint16_t* take_values(Scratch::Mine& scratch, std::int64_t values) {
  return reinterpret_cast<std::uint16_t*>(scratch.take(halves(values)));
}

/// Rounds rows of fp32 sums that are `stride` apart.
void round_rows(const float* sums,
                const float* factors,
                std::int64_t stride,
                std::int64_t K,
                const StridedRows& to,
                std::int64_t rows) {
  const auto round = kernels().round_rows[kBF16];
  if (stride == K) return round(sums, factors, K, to, rows);
  auto* data = static_cast<std::uint16_t*>(to.data);
  for (std::int64_t row = 0; row < rows; ++row) {
    round(sums + row * stride,
          factors == nullptr ? nullptr : factors + row,
          K,
          {data + row * to.stride, to.stride},
          1);
  }
}

/// State of one thread: the head whose keys and values are packed is kept between units.
class Forward {
 public:
  struct Tensors {
    Heads q, k, v, y;
    float* log_sum;
  };
  Forward(const Problem& p, const Tensors& tensors, Scratch::Mine scratch)
      : p_(p),
        x_(tensors),
        queries_(take_values(scratch, kQueries * p.inner)),
        keys_{take_values(scratch, strips(p.S) * p.inner), p.inner / kTileInner},
        values_{take_values(scratch, strips(p.S) * p.columns), strips(p.S) / kTileInner},
        scores_(scratch.take(kStrip * kStride)),
        probabilities_(take_values(scratch, kStrip * kStride)),
        sums_(scratch.take(kQueries * p.columns)),
        max_(scratch.take(kQueries)),
        sum_(scratch.take(kQueries)),
        shrink_(scratch.take(kQueries)),
        factors_(scratch.take(p.dropped())) {}
  static std::int64_t floats(const Problem& p) {
    const auto of = [](std::int64_t values) { return Scratch::on_lines(halves(values)); };
    return of(kQueries * p.inner) + of(strips(p.S) * p.inner) + of(strips(p.S) * p.columns) +
           kStrip * kStride + of(kStrip * kStride) + kQueries * p.columns + 3 * kQueries +
           p.dropped();
  }

  void run(std::int64_t head, std::int64_t i) {
    if (const std::int64_t shared = head / p_.group; shared != packed_) {
      pack_pairs_transposed(p_.rows(x_.k, shared, p_.S), keys_.data);
      pack_pairs(p_.rows(x_.v, shared, p_.S), values_.data);
      packed_ = shared;
    }
    const Block first(p_, i, 0);
    pack_rows({x_.q.rows(head, first.query), first.queries, p_.K}, queries_);
    std::fill_n(max_, kQueries, -std::numeric_limits<float>::infinity());
    std::fill_n(sum_, kQueries, 0.0F);
    clear_blind(p_, first.query, first.queries, sums_);
    const Run seen = p_.how.band.of(first.query, first.queries, p_.S);
    for (std::int64_t j = seen.begin / kKeys; j * kKeys < seen.end; ++j) {
      const Block b(p_, i, j);
      for (std::int64_t row = 0; row < b.queries; row += kStrip)
        run_strip(head, b, row);
    }
    float* const log_sum = x_.log_sum + head * p_.T + first.query;
    for (std::int64_t row = 0; row < first.queries; ++row) {
      log_sum[row] = max_[row] + std::log(sum_[row]);
      shrink_[row] = inverse_sum(sum_[row]);
    }
    round_rows(sums_, shrink_, p_.columns, p_.K, x_.y.rows(head, first.query), first.queries);
  }

 private:
  void run_strip(std::int64_t head, const Block& b, std::int64_t row) const {
    const Run seen = b.columns(row);
    if (seen.begin == seen.end) return;
    const bool begins = b.begins(p_, row);
    const TileStrip strip = b.strip(p_, head, row, factors_);
    multiply_tiles({.m = kStrip,
                    .n = strip.columns,
                    .k = p_.inner,
                    .a = queries_ + row * p_.inner,
                    .a_stride = p_.inner,
                    .b = keys_,
                    .b_inner = 0,
                    .b_column = b.key + seen.begin,
                    .c = scores_,
                    .c_stride = kStride,
                    .accumulate = false});
    attend_tiles({.strip = strip,
                  .scores = scores_,
                  .probabilities = probabilities_,
                  .max = max_ + row,
                  .sum = sum_ + row,
                  .shrink = shrink_ + row});
    float* const sums = sums_ + row * p_.columns;
    if (!begins) kernels().scale_rows(sums, shrink_ + row, p_.columns, strip.rows);
    multiply_tiles({.m = kStrip,
                    .n = p_.columns,
                    .k = strip.columns,
                    .a = probabilities_,
                    .a_stride = kStride,
                    .b = values_,
                    .b_inner = b.key + seen.begin,
                    .b_column = 0,
                    .c = sums,
                    .c_stride = p_.columns,
                    .accumulate = !begins});
  }

  const Problem& p_;
  Tensors x_;
  std::uint16_t* queries_;
  PairTiles keys_, values_;
  float* scores_;
  std::uint16_t* probabilities_;
  float *sums_, *max_, *sum_, *shrink_, *factors_;
  std::int64_t packed_ = -1;
};

/// State of one thread. Gradients of keys and values are computed transposed, because the softmax
/// returns probabilities in the order of a right operand.
class Backward {
 public:
  struct Tensors {
    Heads dy, q, k, v, y, dq, dk, dv;
    const float* log_sum;
  };
  Backward(const Problem& p, const Tensors& tensors, Scratch::Mine scratch)
      : p_(p),
        x_(tensors),
        q_(take_values(scratch, strips(p.T) * p.inner)),
        dy_(take_values(scratch, strips(p.T) * p.inner)),
        q_columns_(take_values(scratch, strips(p.T) * p.columns)),
        dy_columns_(take_values(scratch, strips(p.T) * p.columns)),
        k_transposed_{take_values(scratch, strips(p.S) * p.inner), p.inner / kTileInner},
        v_transposed_{take_values(scratch, strips(p.S) * p.inner), p.inner / kTileInner},
        k_{take_values(scratch, strips(p.S) * p.columns), strips(p.S) / kTileInner},
        probabilities_{take_values(scratch, kQueries * kKeys), kQueries / kTileInner},
        dscores_pairs_{take_values(scratch, kQueries * kKeys), kQueries / kTileInner},
        dscores_(take_values(scratch, kStrip * kStride)),
        scores_(scratch.take(kStrip * kStride)),
        dprobabilities_(scratch.take(kStrip * kStride)),
        dq_(scratch.take(strips(p.T) * p.columns)),
        dk_(scratch.take(kept_blocks(p) * p.columns * kStride)),
        dv_(scratch.take(kept_blocks(p) * p.columns * kStride)),
        mean_(scratch.take(p.T)),
        factors_(scratch.take(p.dropped())),
        cap_slopes_(scratch.take(slope_room(p))) {}
  static std::int64_t floats(const Problem& p) {
    const auto of = [](std::int64_t values) { return Scratch::on_lines(halves(values)); };
    return 2 * of(strips(p.T) * p.inner) + 2 * of(strips(p.T) * p.columns) +
           2 * of(strips(p.S) * p.inner) + of(strips(p.S) * p.columns) + 2 * of(kQueries * kKeys) +
           of(kStrip * kStride) + 2 * kStrip * kStride + strips(p.T) * p.columns +
           2 * kept_blocks(p) * p.columns * kStride + Scratch::on_lines(p.T) + p.dropped() +
           slope_room(p);
  }

  /// Processes the heads that share keys and values, one after the other.
  void run(std::int64_t shared) {
    pack_shared(shared);
    for (std::int64_t head = shared * p_.group; head < (shared + 1) * p_.group; ++head) {
      pack(head);
      clear_blind(p_, 0, p_.T, dq_);
      // Processes the blocks of keys one after the other, so that their gradients stay in the
      // cache.
      for (std::int64_t j = 0; j < p_.key_blocks(); ++j) {
        const std::int64_t place = p_.group == 1 ? 0 : j * p_.columns * kStride;
        float *const dk = dk_ + place, *const dv = dv_ + place;
        if (head == shared * p_.group) {
          std::fill_n(dk, p_.columns * kStride, 0.0F);
          std::fill_n(dv, p_.columns * kStride, 0.0F);
        }
        for (std::int64_t i = 0; i < p_.query_blocks(); ++i) {
          const Block b(p_, i, j);
          const Run seen = p_.how.band.of(b.query, b.queries, p_.S);
          if (std::max(seen.begin, b.key) >= std::min(seen.end, b.key + b.keys)) continue;
          for (std::int64_t row = 0; row < b.queries; row += kStrip)
            run_strip(head, b, row);
          add_transposed(b, dy_columns_, probabilities_, dv);
          add_transposed(b, q_columns_, dscores_pairs_, dk);
        }
        if (head + 1 == (shared + 1) * p_.group) {
          const std::int64_t key = j * kKeys, keys = std::min(kKeys, p_.S - key);
          round_transposed(dk, kStride, p_.K, keys, x_.dk.rows(shared, key));
          round_transposed(dv, kStride, p_.K, keys, x_.dv.rows(shared, key));
        }
      }
      round_rows(dq_, nullptr, p_.columns, p_.K, x_.dq.rows(head, 0), p_.T);
    }
  }

 private:
  /// Number of blocks of keys whose gradients are summed at a time: all of them, until the last
  /// head that shares them was processed.
  static std::int64_t kept_blocks(const Problem& p) { return p.group == 1 ? 1 : p.key_blocks(); }
  /// Number of floats for two rows of the derivative of a soft cap.
  static std::int64_t slope_room(const Problem& p) {
    return p.how.softcap > 0.0F ? 2 * kStride : 0;
  }

  void pack_shared(std::int64_t shared) const {
    pack_pairs_transposed(p_.rows(x_.k, shared, p_.S), k_transposed_.data);
    pack_pairs_transposed(p_.rows(x_.v, shared, p_.S), v_transposed_.data);
    pack_pairs(p_.rows(x_.k, shared, p_.S), k_.data);
  }
  void pack(std::int64_t head) const {
    pack_rows(p_.rows(x_.q, head, p_.T), q_);
    pack_rows(p_.rows(x_.dy, head, p_.T), dy_);
    pack_columns(p_.rows(x_.q, head, p_.T), q_columns_);
    pack_columns(p_.rows(x_.dy, head, p_.T), dy_columns_);
    kernels().row_dots[kBF16](x_.dy.rows(head, 0), x_.y.rows(head, 0), p_.K, mean_, p_.T);
  }

  /// Computes scores and their gradients for 32 queries, and the gradient of the queries.
  void run_strip(std::int64_t head, const Block& b, std::int64_t row) const {
    const Run seen = b.columns(row);
    if (seen.begin == seen.end) return;
    const TileStrip strip = b.strip(p_, head, row, factors_);
    const std::int64_t query = b.query + row;
    const auto multiply = [&](const std::uint16_t* a, const PairTiles& right, float* to) {
      multiply_tiles({.m = kStrip,
                      .n = strip.columns,
                      .k = p_.inner,
                      .a = a + query * p_.inner,
                      .a_stride = p_.inner,
                      .b = right,
                      .b_inner = 0,
                      .b_column = b.key + seen.begin,
                      .c = to,
                      .c_stride = kStride,
                      .accumulate = false});
    };
    multiply(q_, k_transposed_, scores_);
    multiply(dy_, v_transposed_, dprobabilities_);
    attend_grad_tiles(
        {.strip = strip,
         .scores = scores_,
         .dprobabilities = dprobabilities_,
         .log_sum = x_.log_sum + head * p_.T + query,
         .mean = mean_ + query,
         .probabilities = from_column(probabilities_, seen.begin),
         .dscores_pairs = from_column(dscores_pairs_, seen.begin),
         .query = row,
         .dscores = dscores_,
         .cap_slopes = cap_slopes_,
         .dpairs = bias_gradient(p_.how, p_.batch_heads, head, query, b.key + seen.begin),
         .dpair_stride = p_.S});
    multiply_tiles({.m = kStrip,
                    .n = p_.columns,
                    .k = strip.columns,
                    .a = dscores_,
                    .a_stride = kStride,
                    .b = k_,
                    .b_inner = b.key + seen.begin,
                    .b_column = 0,
                    .c = dq_ + query * p_.columns,
                    .c_stride = p_.columns,
                    .accumulate = !b.begins(p_, row)});
  }

  static PairTiles from_column(const PairTiles& x, std::int64_t column) {
    return {x.at(0, column), x.inner_tiles};
  }

  /// to [K, keys] += columns [K, queries] right [queries, keys], restricted to what the strips see.
  /// Both ends of the visible range only grow from strip to strip, so consecutive strips see the
  /// range between two ends.
  void add_transposed(const Block& b,
                      const std::uint16_t* columns,
                      const PairTiles& right,
                      float* to) const {
    constexpr std::size_t kMost = kQueries / kStrip;
    std::array<Run, kMost> seen{};
    std::array<std::int64_t, 2 * kMost> ends{};
    const auto count = static_cast<std::size_t>(strips(b.queries) / kStrip);
    for (std::size_t i = 0; i < count; ++i) {
      seen[i] = b.columns(static_cast<std::int64_t>(i) * kStrip);
      ends[2 * i] = seen[i].begin;
      ends[2 * i + 1] = seen[i].end;
    }
    std::sort(ends.begin(), ends.begin() + 2 * count);
    for (std::size_t i = 0; i + 1 < 2 * count; ++i) {
      const std::int64_t key = ends[i], next = ends[i + 1];
      if (key == next) continue;
      std::size_t first = 0, behind = count;
      while (first < count && seen[first].end < next)
        ++first;
      while (behind > first && seen[behind - 1].begin > key)
        --behind;
      if (first == behind) continue;
      const auto row = static_cast<std::int64_t>(first) * kStrip;
      multiply_tiles({.m = p_.columns,
                      .n = next - key,
                      .k = static_cast<std::int64_t>(behind - first) * kStrip,
                      .a = columns + b.query + row,
                      .a_stride = strips(p_.T),
                      .b = right,
                      .b_inner = row,
                      .b_column = key,
                      .c = to + key,
                      .c_stride = kStride,
                      .accumulate = true});
    }
  }

  const Problem& p_;
  Tensors x_;
  std::uint16_t *q_, *dy_, *q_columns_, *dy_columns_;
  PairTiles k_transposed_, v_transposed_, k_, probabilities_, dscores_pairs_;
  std::uint16_t* dscores_;
  float *scores_, *dprobabilities_, *dq_, *dk_, *dv_, *mean_, *factors_, *cap_slopes_;
};

}  // namespace

void attention_tiles(const at::Tensor& q_BHTK,
                     const at::Tensor& k_BGSK,
                     const at::Tensor& v_BGSK,
                     const AttentionBlocks& how,
                     const at::Tensor& y_BHTK,
                     const at::Tensor& log_sum_BHT) {
  const Problem p(q_BHTK, k_BGSK, how);
  const Forward::Tensors tensors{.q = Heads(q_BHTK),
                                 .k = Heads(k_BGSK),
                                 .v = Heads(v_BGSK),
                                 .y = Heads(y_BHTK),
                                 .log_sum = log_sum_BHT.data_ptr<float>()};
  const Scratch scratch(Forward::floats(p), q_BHTK);
  const std::int64_t blocks = p.query_blocks();
  parallel(p.heads * blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    const TileRegisters registers;
    Forward forward(p, tensors, scratch.mine());
    for (std::int64_t unit = begin; unit < end; ++unit)
      forward.run(unit / blocks, unit % blocks);
  });
}

void attention_tiles_backward(const at::Tensor& dy_BHTK,
                              const at::Tensor& q_BHTK,
                              const at::Tensor& k_BGSK,
                              const at::Tensor& v_BGSK,
                              const at::Tensor& y_BHTK,
                              const at::Tensor& log_sum_BHT,
                              const AttentionBlocks& how,
                              const at::Tensor& dq_BHTK,
                              const at::Tensor& dk_BGSK,
                              const at::Tensor& dv_BGSK) {
  const Problem p(q_BHTK, k_BGSK, how);
  const Backward::Tensors tensors{.dy = Heads(dy_BHTK),
                                  .q = Heads(q_BHTK),
                                  .k = Heads(k_BGSK),
                                  .v = Heads(v_BGSK),
                                  .y = Heads(y_BHTK),
                                  .dq = Heads(dq_BHTK),
                                  .dk = Heads(dk_BGSK),
                                  .dv = Heads(dv_BGSK),
                                  .log_sum = log_sum_BHT.data_ptr<float>()};
  const Scratch scratch(Backward::floats(p), q_BHTK);
  const std::int64_t units = shared_units(how, k_BGSK);
  parallel(units, 1, [&](std::int64_t begin, std::int64_t end) {
    const TileRegisters registers;
    Backward backward(p, tensors, scratch.mine());
    for (std::int64_t unit = begin; unit < end; ++unit) {
      for (std::int64_t shared = unit; shared < p.heads / p.group; shared += units)
        backward.run(shared);
    }
  });
}

std::int64_t attention_tiles_floats(const at::Tensor& q_BHTK,
                                    const at::Tensor& k_BGSK,
                                    const AttentionBlocks& how,
                                    bool backward) {
  const Problem p(q_BHTK, k_BGSK, how);
  return backward ? Backward::floats(p) : Forward::floats(p);
}

}  // namespace tessera::ops::cpu
