// SPDX-License-Identifier: Apache-2.0
// Runs CUDA kernels in their emulation, in four orders of threads, and compares them with plain
// loops in fp64. It needs no libtorch, so that a mutant is compiled in seconds
// (tests/ops/cuda_mutants_test.sh) or with a sanitizer (tests/ops/cuda_sanitizers_test.sh). Exit
// codes: 0 all agree, 1 a result is wrong, 3 a kernel was refused.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <exception>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "ops/cuda/emulation.h"

#include "tessera/base/dtype.h"
#include "tessera/base/philox.h"
#include "tessera/base/quant_codes.h"
#include "tessera/ops/cuda/kernels.h"

namespace tessera::ops::cuda {

void* current_stream() {
  return nullptr;
}

namespace {

using Floats = std::vector<float>;
using Ints = std::vector<std::int64_t>;
constexpr float kGuard = 12345.0F;  // behind every result

int failures = 0;

Floats numbers(std::size_t count, unsigned seed, float scale = 1.0F) {
  std::mt19937 random(seed);
  Floats out(count);
  for (float& x : out)
    x = scale * (static_cast<float>(random()) / static_cast<float>(1U << 31U) - 1.0F);
  return out;
}
/// Room for results, and a guard.
Floats room(std::size_t count) {
  Floats out(count + 1, std::numeric_limits<float>::quiet_NaN());
  out.back() = kGuard;
  return out;
}

void expect(const char* what, double got, double wanted, double within = 1e-4) {
  if (std::abs(got - wanted) <= within * (1.0 + std::abs(wanted))) return;
  if (failures++ < 3) std::printf("%s: %g instead of %g\n", what, got, wanted);
}
void expect_guard(const char* what, const Floats& results) {
  expect(what, results.back(), kGuard, 0.0);
}

void check_norms(std::int64_t rows, std::int64_t C) {
  const auto n = static_cast<std::size_t>(rows * C), c_count = static_cast<std::size_t>(C);
  const Floats x = numbers(n, 1), weight = numbers(c_count, 2), dy = numbers(n, 3);
  Floats y = room(n), dx = room(n), mean = room(static_cast<std::size_t>(rows)),
         rstd = room(static_cast<std::size_t>(rows)), dw = room(c_count), db = room(c_count);
  norm(DType::F32,
       {x.data(),
        nullptr,
        weight.data(),
        nullptr,
        y.data(),
        nullptr,
        mean.data(),
        rstd.data(),
        C,
        1e-5},
       rows);
  const NormGradRows grad = {
      dy.data(), x.data(), mean.data(), rstd.data(), weight.data(), nullptr, dx.data(), C};
  norm_grad(DType::F32, grad, rows);
  const std::int64_t parts = norm_parts(rows);
  Floats of_weight(static_cast<std::size_t>(parts * C)), of_bias(of_weight.size());
  norm_columns(DType::F32, grad, rows, of_weight.data(), of_bias.data());
  add_parts(of_weight.data(), parts, C, false, dw.data());
  add_parts(of_bias.data(), parts, C, false, db.data());
  std::vector<double> all_dw(c_count), all_db(c_count);
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto at = [&](std::int64_t c) { return static_cast<std::size_t>(r * C + c); };
    const auto own = [](std::int64_t c) { return static_cast<std::size_t>(c); };
    double sum = 0, squares = 0, along = 0, all = 0;
    for (std::int64_t c = 0; c < C; ++c)
      sum += x[at(c)];
    for (std::int64_t c = 0; c < C; ++c)
      squares += (x[at(c)] - sum / C) * (x[at(c)] - sum / C);
    const double scale = 1.0 / std::sqrt(squares / C + 1e-5);
    for (std::int64_t c = 0; c < C; ++c) {
      const double hat = (x[at(c)] - sum / C) * scale, g = double{dy[at(c)]} * weight[own(c)];
      expect("norm", y[at(c)], hat * weight[own(c)], 1e-3);
      along += g * hat / C;
      all += g / C;
      all_dw[own(c)] += dy[at(c)] * hat;
      all_db[own(c)] += dy[at(c)];
    }
    for (std::int64_t c = 0; c < C; ++c) {
      const double hat = (x[at(c)] - sum / C) * scale, g = double{dy[at(c)]} * weight[own(c)];
      expect("gradient of a norm", dx[at(c)], (g - hat * along - all) * scale, 1e-3);
    }
  }
  for (std::size_t c = 0; c < c_count; ++c) {
    expect("gradient of a weight", dw[c], all_dw[c], 1e-3);
    expect("gradient of a bias", db[c], all_db[c], 1e-3);
  }
  for (const Floats* const results : {&y, &dx, &mean, &rstd, &dw, &db})
    expect_guard("behind a norm", *results);
}

/// A norm that drops its branch, and the gradient of the branch.
void check_dropped_norm(std::int64_t rows, std::int64_t C) {
  const auto n = static_cast<std::size_t>(rows * C), row_count = static_cast<std::size_t>(rows);
  const Floats x = numbers(n, 1), branch = numbers(n, 2), dy = numbers(n, 3),
               weight = numbers(static_cast<std::size_t>(C), 4);
  const Ints samples = {7, 1000000007};
  const DropoutElements drop = {.key = 11,
                                .sample_ids = samples.data(),
                                .parts = nullptr,
                                .element_offset = 6,
                                .column = 0,
                                .columns = 1,
                                .each = rows / 2 * C,
                                .length = rows / 2 * C,
                                .run = rows / 2 * C,
                                .numel = rows * C,
                                .threshold = 1U << 23U,
                                .scale = 2.0F};
  Floats y = room(n), sum = room(n), rstd = room(row_count), dx = room(n), dbranch = room(n);
  norm(DType::F32,
       {x.data(),
        branch.data(),
        weight.data(),
        nullptr,
        y.data(),
        sum.data(),
        nullptr,
        rstd.data(),
        C,
        1e-5,
        drop},
       rows);
  norm_grad(DType::F32,
            {dy.data(),
             sum.data(),
             nullptr,
             rstd.data(),
             weight.data(),
             nullptr,
             dx.data(),
             C,
             dbranch.data(),
             drop},
            rows);
  for (std::int64_t at = 0; at < rows * C; ++at) {
    const auto i = static_cast<std::size_t>(at);
    const auto number = static_cast<std::uint64_t>(at % drop.each + drop.element_offset);
    const auto sample =
        static_cast<std::uint64_t>(samples[static_cast<std::size_t>(at / drop.each)]);
    const bool kept = Philox{11}(number / 4, sample)[number % 4] >> 8U >= drop.threshold;
    expect("a dropped branch", sum[i], kept ? x[i] + 2.0F * branch[i] : x[i], 1e-6);
    expect("the gradient of a dropped branch", dbranch[i], kept ? 2.0 * dx[i] : 0.0, 0.0);
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    double squares = 0;
    for (std::int64_t c = 0; c < C; ++c)
      squares += double{sum[static_cast<std::size_t>(r * C + c)]} *
                 sum[static_cast<std::size_t>(r * C + c)];
    const double scale = 1.0 / std::sqrt(squares / static_cast<double>(C) + 1e-5);
    for (std::int64_t c = 0; c < C; ++c) {
      const auto i = static_cast<std::size_t>(r * C + c);
      expect("a norm of a dropped branch",
             y[i],
             sum[i] * scale * weight[static_cast<std::size_t>(c)],
             1e-3);
    }
  }
  for (const Floats* const results : {&y, &sum, &rstd, &dx, &dbranch})
    expect_guard("behind a norm of a dropped branch", *results);
}

void check_cross_entropy(std::int64_t V) {
  const std::int64_t rows = 3;
  const Ints labels = {V - 1, -100, 0};
  const Floats before = numbers(static_cast<std::size_t>(rows * V), 5, 20.0F);
  Floats logits = before;
  logits.push_back(kGuard);
  std::vector<double> losses(3, -1.0);
  cross_entropy(
      DType::F32, {logits.data(), labels.data(), losses.data(), logits.data(), V, 0.1}, rows);
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* const row = before.data() + r * V;
    const double largest = *std::max_element(row, row + V);
    double sum = 0, mean = 0;
    for (std::int64_t v = 0; v < V; ++v) {
      sum += std::exp(row[v] - largest);
      mean += double{row[v]} / static_cast<double>(V);
    }
    const std::int64_t label = labels[static_cast<std::size_t>(r)];
    const double log_sum = largest + std::log(sum);
    expect("loss",
           losses[static_cast<std::size_t>(r)],
           label < 0 ? 0.0 : 0.9 * (log_sum - row[label]) + 0.1 * (log_sum - mean));
    for (std::int64_t v = 0; v < V; ++v) {
      const double share = std::exp(row[v] - log_sum) - 0.1 / static_cast<double>(V);
      expect("gradient of a loss",
             logits[static_cast<std::size_t>(r * V + v)],
             label < 0 ? 0.0 : share - (v == label ? 0.9 : 0.0));
    }
  }
  expect_guard("behind the logits", logits);
}

void check_nf4(std::int64_t numel) {
  Nf4Table table{};
  std::copy(kNf4Values.begin(), kNf4Values.end(), std::begin(table.values));
  std::copy(kNf4Midpoints.begin(), kNf4Midpoints.end(), std::begin(table.midpoints));
  const Floats x = numbers(static_cast<std::size_t>(numel), 6, 3.0F);
  const std::int64_t blocks = (numel + kNf4Numbers - 1) / kNf4Numbers;
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(blocks * kNf4Numbers / 2));
  Floats scales = room(static_cast<std::size_t>(blocks)), back = room(x.size());
  narrow_nf4(x.data(), numel, table, codes.data(), scales.data());
  widen_nf4(codes.data(), scales.data(), table, numel, DType::F32, back.data());
  for (std::int64_t i = 0; i < numel; ++i) {
    const auto first = static_cast<std::size_t>(i / kNf4Numbers * kNf4Numbers);
    const std::size_t end = std::min(x.size(), first + kNf4Numbers);
    double largest = 0, nearest = 0;
    for (std::size_t j = first; j < end; ++j)
      largest = std::max(largest, std::abs(double{x[j]}));
    const double value = x[static_cast<std::size_t>(i)];
    for (const float one : kNf4Values) {
      if (std::abs(one * largest - value) < std::abs(nearest * largest - value)) nearest = one;
    }
    expect("NF4", back[static_cast<std::size_t>(i)], nearest * largest);
  }
  expect_guard("behind NF4", back);
  expect_guard("behind its scales", scales);
}

void check_rotary() {
  constexpr std::int64_t T = 3, H = 2, K = 10, P = 4;
  const Floats x = numbers(T * H * K, 7), cosine = numbers(T * P, 8), sine = numbers(T * P, 9);
  Floats y = room(x.size());
  rotary(DType::F32,
         {.x = x.data(),
          .y = y.data(),
          .cosine = cosine.data(),
          .sine = sine.data(),
          .samples = 1,
          .heads = H,
          .tokens = T,
          .channels = K,
          .pairs = P,
          .x_at = {0, K, H * K},
          .y_at = {0, K, H * K},
          .table_of_sample = 0,
          .interleaved = false,
          .direction = -1.0F});
  for (std::int64_t t = 0; t < T; ++t) {
    for (std::int64_t h = 0; h < H; ++h) {
      const auto at = [&](std::int64_t k) { return static_cast<std::size_t>((t * H + h) * K + k); };
      for (std::int64_t p = 0; p < P; ++p) {
        const double c = cosine[static_cast<std::size_t>(t * P + p)],
                     s = -sine[static_cast<std::size_t>(t * P + p)];
        expect("rotary", y[at(p)], x[at(p)] * c - x[at(P + p)] * s);
        expect("rotary", y[at(P + p)], x[at(P + p)] * c + x[at(p)] * s);
      }
      for (std::int64_t k = 2 * P; k < K; ++k)
        expect("rotary", y[at(k)], x[at(k)]);
    }
  }
  expect_guard("behind rotary", y);
}

void check_paged_attention() {
  constexpr std::int64_t B = 2, H = 2, K = 40, N = 4, W = 3;
  const Floats q = numbers(B * H * K, 10, 3.0F), keys = numbers(6 * N * K, 11),
               values = numbers(6 * N * K, 12);
  const Ints table = {5, 1, 3, 2, 0, 4}, lengths = {11, 2};
  const Floats slopes = {0.5F, 0.25F};
  Floats y = room(q.size());
  paged_attention(DType::F32,
                  DType::F32,
                  {.q = q.data(),
                   .y = y.data(),
                   .keys = keys.data(),
                   .values = values.data(),
                   .key_scales = nullptr,
                   .value_scales = nullptr,
                   .table = table.data(),
                   .lengths = lengths.data(),
                   .slopes = slopes.data(),
                   .bias = nullptr,
                   .heads = H,
                   .groups = 1,
                   .page_tokens = N,
                   .channels = K,
                   .columns = W,
                   .bias_keys = 0,
                   .window = 0,
                   .scale = 0.3F,
                   .softcap = 0.0F},
                  B);
  for (std::int64_t b = 0; b < B; ++b) {
    for (std::int64_t h = 0; h < H; ++h) {
      const float* const query = q.data() + (b * H + h) * K;
      std::vector<double> sum(K);
      double total = 0;
      for (std::int64_t s = 0; s < lengths[static_cast<std::size_t>(b)]; ++s) {
        const std::int64_t row = table[static_cast<std::size_t>(b * W + s / N)] * N + s % N;
        double score = 0;
        for (std::int64_t k = 0; k < K; ++k)
          score += double{query[k]} * keys[static_cast<std::size_t>(row * K + k)];
        const double weight =
            std::exp(score * 0.3 + slopes[static_cast<std::size_t>(h)] * static_cast<double>(s));
        total += weight;
        for (std::int64_t k = 0; k < K; ++k)
          sum[static_cast<std::size_t>(k)] +=
              weight * values[static_cast<std::size_t>(row * K + k)];
      }
      for (std::int64_t k = 0; k < K; ++k)
        expect("attention to pages",
               y[static_cast<std::size_t>((b * H + h) * K + k)],
               sum[static_cast<std::size_t>(k)] / total);
    }
  }
  expect_guard("behind attention", y);
}

void check_sampler(std::int64_t V) {
  Floats logits = numbers(static_cast<std::size_t>(V), 13, 3.0F);
  std::vector<double> weights(logits.size());
  for (const double uniform : {0.0, 0.31, 0.77, 0.999}) {
    for (const double top_p : {1.0, 0.6}) {
      Ints found(3, -7);
      token_weights(logits.data(), V, 0.8, weights.data(), found.data());
      const auto best = static_cast<std::int64_t>(std::max_element(logits.begin(), logits.end()) -
                                                  logits.begin());
      expect("the best token", static_cast<double>(found[kBestToken]), static_cast<double>(best));
      std::sort(weights.begin(), weights.end(), std::greater<>());
      draw_token(weights.data(), nullptr, V, top_p, uniform, found.data());
      double all = 0, reached = 0;
      for (const double w : weights)
        all += w;
      std::size_t kept = 0;
      double limit = 0;
      while (kept < weights.size() && (kept == 0 || limit < all * top_p))
        limit += weights[kept++];
      std::int64_t drawn = 0;
      for (std::size_t i = 0; i < kept; ++i) {
        reached += weights[i];
        drawn += reached <= limit * uniform ? 1 : 0;
      }
      expect(
          "a drawn token",
          static_cast<double>(found[kDrawnToken]),
          static_cast<double>(std::min<std::int64_t>(drawn, static_cast<std::int64_t>(kept) - 1)));
    }
  }
}

void check_updates(std::int64_t numel) {
  const auto n = static_cast<std::size_t>(numel);
  const Floats before = numbers(n, 14), grad = numbers(n, 15), m_before = numbers(n, 16);
  Floats master = before, m = m_before, v(n, 0.25F);
  for (Floats* const results : {&master, &m, &v})
    results->push_back(kGuard);
  std::vector<std::uint16_t> working(n);
  const RuleRange range = {.master = master.data(),
                           .grad = grad.data(),
                           .working = working.data(),
                           .working_dtype = DType::BF16,
                           .numel = numel};
  adamw(range, m.data(), v.data(), {.lr = 0.01, .weight_decay = 0.1, .step = 3}, 0, numel);
  for (std::size_t i = 0; i < n; ++i) {
    const double avg = 0.9 * m_before[i] + 0.1 * grad[i],
                 squares = 0.999 * 0.25 + 0.001 * grad[i] * grad[i];
    const double step =
        avg / (1.0 - std::pow(0.9, 3)) / (std::sqrt(squares / (1.0 - std::pow(0.999, 3))) + 1e-8);
    expect("AdamW", master[i], before[i] * (1.0 - 0.01 * 0.1) - 0.01 * step);
    expect("its first moment", m[i], avg);
    expect("its second moment", v[i], squares);
    expect("its working copy", from_bf16(working[i]), from_bf16(to_bf16(master[i])), 0.0);
  }
  for (const Floats* const results : {&master, &m, &v})
    expect_guard("behind AdamW", *results);
  constexpr std::int64_t kChunk = 100;
  const std::int64_t chunks = (numel + kChunk - 1) / kChunk;
  std::vector<double> sums(static_cast<std::size_t>(chunks) + 1, kGuard);
  chunk_square_sums(grad.data(), numel, kChunk, sums.data());
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
    double sum = 0;
    for (std::int64_t i = chunk * kChunk; i < std::min(numel, (chunk + 1) * kChunk); ++i)
      sum += double{grad[static_cast<std::size_t>(i)]} * grad[static_cast<std::size_t>(i)];
    expect("a sum of squares", sums[static_cast<std::size_t>(chunk)], sum, 1e-9);
  }
  expect("behind the sums", sums.back(), kGuard, 0.0);
  Floats broken = grad;
  broken[n / 2] = broken[n - 1] = std::numeric_limits<float>::infinity();
  unsigned long long first = 0;
  first_nonfinite(broken.data(), numel, &first);
  expect("the first infinite value", static_cast<double>(first), static_cast<double>(n / 2), 0.0);
}

void check_parts() {
  constexpr std::int64_t kParts = 3, kCount = 300;
  const Floats parts = numbers(kParts * kCount, 17), before = numbers(kCount, 18);
  Floats out = before;
  out.push_back(kGuard);
  reduce_parts(DType::F32, PartsOp::Sum, parts.data(), kParts, true, out.data(), kCount);
  for (std::int64_t i = 0; i < kCount; ++i) {
    const auto at = static_cast<std::size_t>(i);
    float sum = before[at];
    for (std::int64_t part = 0; part < kParts; ++part)
      sum += parts[static_cast<std::size_t>(part * kCount + i)];
    expect("a sum of parts", out[at], sum, 0.0);
  }
  expect_guard("behind the sums of parts", out);
}

void check_pointwise() {
  constexpr std::int64_t kRows = 40, kChannels = 20, kCount = kRows * kChannels;
  const Floats x = numbers(kCount, 19, 3.0F), plus = numbers(kCount, 20);
  Floats y = room(kCount);
  activate(DType::F32, x.data(), kCount, Activation::Silu, y.data());
  for (std::size_t i = 0; i < kCount; ++i)
    expect("SiLU", y[i], x[i] / (1.0 + std::exp(-double{x[i]})));
  expect_guard("behind SiLU", y);
  const Ints samples = {7, 9};
  dropout(DType::F32,
          {.key = 3,
           .sample_ids = samples.data(),
           .parts = nullptr,
           .element_offset = 0,
           .column = 0,
           .columns = 1,
           .each = kCount / 2,
           .length = kCount / 2,
           .run = kCount / 2,
           .numel = kCount,
           .threshold = 1U << 22U,
           .scale = 4.0F / 3.0F},
          x.data(),
          plus.data(),
          y.data());
  int kept = 0, others = 0;
  for (std::size_t i = 0; i < kCount; ++i) {
    const bool is_kept = y[i] != plus[i];
    kept += is_kept ? 1 : 0;
    const std::size_t in_the_other = (i + kCount / 2) % kCount;
    others += is_kept != (y[in_the_other] != plus[in_the_other]) ? 1 : 0;
    if (is_kept) expect("dropout", y[i], x[i] * 4.0 / 3.0 + plus[i]);
  }
  expect("the share that dropout keeps", kept / double{kCount}, 0.75, 0.05);
  expect("the share that differs between samples", others / double{kCount}, 0.375, 0.1);
  expect_guard("behind dropout", y);
  const Ints ids = {0, 0, 1, 3}, places = {2, 5, 0, 1};
  Floats table = room(5 * kChannels);
  std::fill(table.begin(), table.end() - 1, 1.0F);
  embedding_grad(DType::F32, x.data(), {ids.data(), places.data(), 4}, kChannels, table.data());
  for (std::int64_t id = 0; id < 5; ++id) {
    for (std::int64_t c = 0; c < kChannels; ++c) {
      double sum = 1.0;
      for (std::size_t i = 0; i < ids.size(); ++i) {
        if (ids[i] == id) sum += x[static_cast<std::size_t>(places[i] * kChannels + c)];
      }
      expect("a row of a table", table[static_cast<std::size_t>(id * kChannels + c)], sum);
    }
  }
  expect_guard("behind a table", table);
}

}  // namespace
}  // namespace tessera::ops::cuda

int main() {
  using namespace tessera::ops::cuda;
  using tessera::emulation::Order;
  try {
    for (const Order order : tessera::emulation::kOrders) {
      tessera::emulation::set_order(order, 3);
      for (const std::int64_t channels : {33, 600})
        check_norms(70, channels);
      check_dropped_norm(6, 70);
      check_cross_entropy(31);
      check_cross_entropy(700);
      check_nf4(700);
      check_rotary();
      check_paged_attention();
      check_updates(700);
      check_parts();
      check_pointwise();
      check_sampler(5);
      check_sampler(900);
    }
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 3;
  }
  return failures == 0 ? 0 : 1;
}
