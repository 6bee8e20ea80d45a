// SPDX-License-Identifier: Apache-2.0
// Runs kernels twice in the emulation, as the C++ compiler and as nvcc compiled them
// (ptx_to_cpp.py), and compares all bits of their results (tests/ops/cuda_ptx_test.sh). The former
// have the CPU's bits (tests/ops/cuda/kernels_test.cpp). With an argument it runs updates alone.
// Exit codes: 0 the same bits, 1 others, 3 a kernel was refused.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "ops/cuda/emulation.h"

#include "tessera/base/quant_codes.h"
#include "tessera/ops/cuda/kernels.h"

namespace tessera::ops::cuda {

void* current_stream() {
  return nullptr;
}

namespace {

using Floats = std::vector<float>;
using Ints = std::vector<std::int64_t>;

int failures = 0;
std::size_t compared = 0;

/// Finite numbers of many sizes; `wild`: every 7th one is any 32 bits, NaN and infinities too.
Floats numbers(std::size_t count, unsigned seed, bool wild = false) {
  std::mt19937 random(seed);
  Floats out(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t bits = static_cast<std::uint32_t>(random());
    if (wild && i % 7 == 0) {
      std::memcpy(&out[i], &bits, sizeof(bits));
      continue;
    }
    const float size = static_cast<float>(bits) / static_cast<float>(1U << 31U) - 1.0F;
    out[i] = size * std::ldexp(1.0F, static_cast<int>(i % 25) - 18);
  }
  return out;
}

/// The bytes of results.
class Results {
 public:
  template <class T>
  void add(const std::vector<T>& values) {
    const auto* const first = reinterpret_cast<const unsigned char*>(values.data());
    bytes_.insert(bytes_.end(), first, first + values.size() * sizeof(T));
  }
  [[nodiscard]] const std::vector<unsigned char>& bytes() const { return bytes_; }

 private:
  std::vector<unsigned char> bytes_;
};

void expect_same(const std::string& what, const std::function<void(Results&)>& run) {
  Results ours, of_nvcc;
  emulation::use_ptx(false);
  run(ours);
  emulation::use_ptx(true);
  run(of_nvcc);
  emulation::use_ptx(false);
  compared += ours.bytes().size();
  std::size_t differences = 0;
  for (std::size_t i = 0; i < ours.bytes().size(); ++i)
    differences += ours.bytes()[i] == of_nvcc.bytes()[i] ? 0 : 1;
  if (differences == 0 && !ours.bytes().empty()) return;
  ++failures;
  std::printf("%s: %zu of %zu bytes differ\n", what.c_str(), differences, ours.bytes().size());
}

/// A range and the values that an update changes.
struct Range {
  explicit Range(int working, bool wild = false)
      : master(numbers(kCount, 1, wild)),
        grad(numbers(kCount, 2, wild)),
        first(numbers(kCount, 3)),
        second(numbers(kCount, 4)),
        third(numbers(kCount, 5)),
        copy(kCount),
        sums(2 * kCount) {
    for (float& x : second)
      x = x < 0 ? -x : x;
    range.master = master.data();
    range.grad = grad.data();
    range.numel = kCount;
    range.grad_scale = 0.37;
    if (working != 0) range.working = copy.data();
    range.working_dtype = working == 2 ? DType::F16 : DType::BF16;
  }
  void add_to(Results& results) const {
    for (const Floats* const one : {&master, &first, &second, &third})
      results.add(*one);
    results.add(copy);
    results.add(sums);
  }

  static constexpr std::int64_t kCount = 3000;
  Floats master, grad, first, second, third;
  std::vector<std::uint16_t> copy;
  std::vector<double> sums;
  RuleRange range;
};

void check_updates() {
  using Update = std::function<void(Range&)>;
  constexpr std::int64_t n = Range::kCount;
  const std::vector<std::pair<const char*, Update>> all = {
      {"AdamW",
       [](Range& r) {
         const AdamWScalars how = {.lr = 0.01, .weight_decay = 0.1, .step = 5, .grad_scale = 0.7};
         adamw(r.range, r.first.data(), r.second.data(), how, 0, n);
       }},
      {"Adam",
       [](Range& r) {
         const AdamWScalars how = {.lr = 0.01, .weight_decay = 0.1, .decoupled = false};
         adamw(r.range, r.first.data(), r.second.data(), how, 0, n);
       }},
      {"SGD",
       [](Range& r) {
         SgdStep how{};
         how.lr = 0.1, how.momentum = 0.9, how.add = 1.0, how.weight_decay = 0.01;
         how.nesterov = true;
         sgd(r.range, r.first.data(), how, 0, n);
         sgd(r.range, nullptr, how, 0, n);
       }},
      {"Adagrad",
       [](Range& r) {
         AdagradStep how{};
         how.lr = 0.1, how.eps = 1e-10, how.weight_decay = 0.01;
         adagrad(r.range, r.second.data(), how, 0, n);
       }},
      {"Lion",
       [](Range& r) {
         LionStep how{};
         how.lr = 0.01, how.weight_decay = 0.1, how.beta1 = 0.9, how.beta2 = 0.99;
         lion(r.range, r.first.data(), how, 0, n);
       }},
      {"RMSprop",
       [](Range& r) {
         RmspropStep how{};
         how.lr = 0.01, how.alpha = 0.99, how.eps = 1e-8, how.momentum = 0.9;
         rmsprop(r.range, r.second.data(), r.first.data(), r.third.data(), how, 0, n);
         rmsprop(r.range, r.second.data(), nullptr, nullptr, how, 0, n);
       }},
      {"NAdam",
       [](Range& r) {
         NAdamStep how{};
         how.beta1 = 0.9, how.beta2 = 0.999, how.eps = 1e-8, how.grad_rate = 0.01;
         how.avg_rate = 0.02, how.correction2 = 0.3, how.l2 = 0.01, how.decay = 0.001;
         nadam(r.range, r.first.data(), r.second.data(), how, 0, n);
       }},
      {"Adamax",
       [](Range& r) {
         AdamaxStep how{};
         how.rate = 0.01, how.beta1 = 0.9, how.beta2 = 0.999, how.eps = 1e-8;
         adamax(r.range, r.first.data(), r.second.data(), how, 0, n);
       }},
      {"LAMB",
       [](Range& r) {
         LambStep how{};
         how.beta1 = 0.9, how.add = 0.1, how.beta2 = 0.999, how.correction1 = 0.2;
         how.correction2 = 0.3, how.eps_outside = 1e-6, how.weight_decay = 0.01;
         cuda::lamb_prepare(
             r.range, r.first.data(), r.second.data(), how, r.sums.data(), r.sums.data() + n);
         cuda::lamb_update(r.range, r.first.data(), r.second.data(), how, 0.01, 0, n);
       }},
      {"a direction",
       [](Range& r) {
         make_direction(r.range, r.first.data(), r.third.data(), 0.9, true, 0, n);
         DirectionStep how{};
         how.rate = 0.01, how.decay = 0.001, how.beta1 = 0.9;
         apply_direction(r.range, r.third.data(), r.second.data(), how, 0, n);
       }},
  };
  for (const auto& [name, update] : all) {
    for (const int working : {0, 1, 2}) {
      expect_same(std::string(name) + " with working copy " + std::to_string(working),
                  [&](Results& results) {
                    Range range(working);
                    update(range);
                    range.add_to(results);
                  });
    }
  }
}

void check_sums() {
  const Floats x = numbers(5000, 6);
  expect_same("sums of squares", [&](Results& results) {
    std::vector<double> chunks(5), columns(50);
    chunk_square_sums(x.data(), 5000, 1024, chunks.data());
    column_square_sums(x.data(), 100, 50, columns.data());
    results.add(chunks);
    results.add(columns);
    Floats scaled = x;
    scale_rows_columns(scaled.data(), 100, 50, x.data() + 7, x.data() + 200);
    results.add(scaled);
    Floats broken = x;
    broken[4000] = broken[4999] = std::numeric_limits<float>::quiet_NaN();
    std::vector<unsigned long long> first(1);
    first_nonfinite(broken.data(), 5000, first.data());
    results.add(first);
  });
  for (const auto& [dtype, size] : {std::pair{DType::F32, 4},
                                    {DType::F64, 8},
                                    {DType::BF16, 2},
                                    {DType::I64, 8},
                                    {DType::I32, 4},
                                    {DType::U8, 1}}) {
    const bool whole = dtype == DType::I64 || dtype == DType::I32 || dtype == DType::U8;
    for (const PartsOp op : {PartsOp::Sum, PartsOp::Max, PartsOp::Min, PartsOp::BitOr}) {
      if (op == PartsOp::BitOr && !whole) continue;
      expect_same("a reduction of parts", [&, size = size, dtype = dtype](Results& results) {
        const std::int64_t count = 4 * std::ssize(x) / size / 4;
        std::vector<unsigned char> out(static_cast<std::size_t>(count * size), 3);
        reduce_parts(dtype, op, x.data(), 3, true, out.data(), count);
        results.add(out);
      });
    }
  }
}

/// Rounding: copies of every kind of number, by a dropout that keeps all.
void check_dropout_and_rounding() {
  const Ints samples = {7, 1000000007}, parts = {1, 0};
  for (const DType dtype : {DType::F32, DType::BF16, DType::F16}) {
    for (const bool with_parts : {false, true}) {
      expect_same("dropout", [&](Results& results) {
        const std::int64_t count = 2000;
        const Floats from = numbers(count, 8), add = numbers(count, 9);
        std::vector<std::uint16_t> y(2 * count), z(2 * count);
        DropoutElements how = {.key = 11,
                               .sample_ids = samples.data(),
                               .parts = with_parts ? parts.data() : nullptr,
                               .element_offset = 12,
                               .column = 1,
                               .columns = with_parts ? 2 : 1,
                               .each = count / 2,
                               .length = count / 4,
                               .run = 50,
                               .numel = count,
                               .threshold = 1U << 23U,
                               .scale = 2.0F};
        dropout(dtype, how, from.data(), add.data(), y.data());
        dropout(dtype, how, from.data(), nullptr, z.data());
        results.add(y);
        results.add(z);
      });
    }
  }
  for (const int working : {1, 2}) {
    expect_same("rounding", [&](Results& results) {
      Range range(working);
      for (std::uint32_t i = 0; i < Range::kCount; ++i) {
        // Every exponent with mantissas around the ties.
        const std::uint32_t tails[] = {
            0U, 0x0fffU, 0x1000U, 0x1001U, 0x3000U, 0x7fffU, 0x8000U, 0x8001U};
        const std::uint32_t bits = (i / 8 * 0x5d7U << 15U) | tails[i % 8];
        std::memcpy(&range.master[i], &bits, sizeof(bits));
        range.grad[i] = 0.0F;
      }
      sgd(range.range, nullptr, SgdStep{}, 0, Range::kCount);
      results.add(range.copy);
    });
  }
}

void check_exact() {
  constexpr std::int64_t T = 7, H = 3, K = 10, P = 4;
  const Floats x = numbers(T * H * K, 10), cosine = numbers(T * P, 11), sine = numbers(T * P, 12);
  for (const DType dtype : {DType::F32, DType::BF16, DType::F16}) {
    for (const bool interleaved : {false, true}) {
      expect_same("rotary positions", [&](Results& results) {
        std::vector<std::uint16_t> y(2 * x.size());
        rotary(dtype,
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
                .interleaved = interleaved,
                .direction = -1.0F});
        results.add(y);
      });
    }
    expect_same("packed numbers", [&](Results& results) {
      Nf4Table table{};
      std::copy(kNf4Values.begin(), kNf4Values.end(), std::begin(table.values));
      std::copy(kNf4Midpoints.begin(), kNf4Midpoints.end(), std::begin(table.midpoints));
      const Floats values = numbers(700, 13);
      std::vector<std::uint8_t> codes(11 * 32);
      Floats scales(11);
      narrow_nf4(values.data(), 700, table, codes.data(), scales.data());
      results.add(codes);
      results.add(scales);
      std::vector<std::uint16_t> wide(1400);
      widen_nf4(codes.data(), scales.data(), table, 700, dtype, wide.data());
      results.add(wide);
      widen_int8(reinterpret_cast<const std::int8_t*>(codes.data()),
                 scales.data(),
                 330,
                 33,
                 dtype,
                 wide.data());
      results.add(wide);
    });
    expect_same("gradients of a table", [&](Results& results) {
      const Ints ids = {0, 0, 2}, places = {1, 3, 0};
      Floats table = numbers(3 * K, 14);
      embedding_grad(dtype, x.data(), {ids.data(), places.data(), 3}, K, table.data());
      results.add(table);
    });
  }
}

}  // namespace
}  // namespace tessera::ops::cuda

int main(int count, char** /*arguments*/) {
  using namespace tessera::ops::cuda;
  try {
    check_updates();
    if (count == 1) {
      check_sums();
      check_dropout_and_rounding();
      check_exact();
    }
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 3;
  }
  std::printf("%zu bytes compared\n", compared);
  return failures == 0 ? 0 : 1;
}
