// SPDX-License-Identifier: Apache-2.0
// The CUDA kernels in their emulation, and the emulation itself: kernels that lack a barrier must
// be found.
#include "tessera/ops/cuda/kernels.h"

#include <array>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "ops/cuda/emulated_backend.h"
#include "ops/cuda/emulation.h"
#include "ops/support.h"
#include "ops/updates.h"
#include <gmock/gmock.h>

#include "tessera/comm/reduce.h"
#include "tessera/ops/backend.h"
#include "tessera/tensor/dtype.h"

namespace tessera::ops {
namespace {

using emulation::Order;
using testing::AllOf;
using testing::HasSubstr;

/// Runs the kernels of a test in each order of warps and lanes.
class CudaKernels : public testing::TestWithParam<Order> {
 protected:
  CudaKernels() { emulation::set_order(GetParam(), 7); }
  ~CudaKernels() override { emulation::set_order(Order::Forward); }
};

TEST_P(CudaKernels, UpdateWeightsToTheBitsOfTheCpu) {
  const Backend& cpu = *backends().get("cpu");
  for (const auto& [name, update] : all_updates()) {
    for (const DType dtype : {DType::F32, DType::BF16, DType::F16}) {
      SCOPED_TRACE(name + " with a working copy of " + std::string(tessera::name(dtype)));
      const UpdatedRange ours(dtype), wanted(dtype);
      update(emulated_backend(), ours);
      update(cpu, wanted);
      for (std::size_t i = 0; i < wanted.all().size(); ++i)
        EXPECT_TRUE(same_bits(ours.all()[i], wanted.all()[i])) << "result " << i;
    }
  }
}

TEST_P(CudaKernels, UpdateRangesOfAnySizeAndTouchNothingBehindThem) {
  for (const std::int64_t numel : {0, 1, 31, 257, 1023}) {
    UpdatedRange ours(DType::BF16, 1024), wanted(DType::BF16, 1024);
    ours.range.numel = wanted.range.numel = numel;
    for (const auto& [on, data] :
         {std::pair{&emulated_backend(), &ours}, std::pair{backends().get("cpu"), &wanted}})
      on->adamw(data->range, data->state(data->first), data->state(data->second), {.lr = 0.1});
    for (std::size_t i = 0; i < wanted.all().size(); ++i)
      EXPECT_TRUE(same_bits(ours.all()[i], wanted.all()[i])) << numel << " elements, result " << i;
  }
}

TEST_P(CudaKernels, RoundEveryKindOfNumberAsTheCpuDoes) {
  std::vector<float> values;
  for (std::uint32_t upper = 0; upper < 0x10000U; upper += 5) {  // all exponents, both signs
    for (const std::uint32_t lower : {0x0U, 0x1U, 0x0fffU, 0x1000U, 0x1001U, 0x8000U, 0xffffU}) {
      const std::uint32_t bits = (upper << 16U) | lower;
      float value = 0.0F;
      std::memcpy(&value, &bits, sizeof(value));
      // The instruction of AVX-512 for bf16 counts subnormal numbers as 0.
      if (std::fpclassify(value) == FP_NORMAL || value == 0.0F) values.push_back(value);
    }
  }
  const auto count = static_cast<std::int64_t>(values.size());
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const auto rounded = [&](const Backend& on) {
      const at::Tensor master = at::tensor(values), grad = at::zeros({count}),
                       working = at::empty({count}, dtype);
      on.sgd({.master = master.data_ptr<float>(),
              .grad = grad.data_ptr<float>(),
              .working = static_cast<std::uint16_t*>(working.data_ptr()),
              .working_dtype = dtype == at::kHalf ? DType::F16 : DType::BF16,
              .numel = count},
             nullptr,
             {});
      return working;
    };
    EXPECT_TRUE(same_bits(rounded(emulated_backend()), rounded(*backends().get("cpu"))));
  }
}

TEST_P(CudaKernels, SumSquaresToTheBitsOfTheCpu) {
  const LambStep lamb = {.correction1 = 0.2, .correction2 = 0.1, .l2 = 0.05, .weight_decay = 0.1};
  const auto sums = [&](const Backend& on) {
    const UpdatedRange data(DType::F32);
    const Results out = {at::empty({25}, at::kDouble),
                         at::empty({3}, at::kDouble),
                         at::empty({3}, at::kDouble),
                         at::empty({50}, at::kDouble),
                         data.first,
                         data.second};
    const auto of = [&](std::size_t i) { return out[i].data_ptr<double>(); };
    on.chunk_square_sums(data.range.grad, 2490, 100, of(0), c10::DeviceType::CPU);
    on.lamb_prepare(
        data.range, data.state(data.first), data.state(data.second), lamb, of(1), of(2));
    on.column_square_sums(data.range.grad, 50, 50, of(3), c10::DeviceType::CPU);
    return out;
  };
  const Results ours = sums(emulated_backend()), wanted = sums(*backends().get("cpu"));
  for (std::size_t i = 0; i < wanted.size(); ++i)
    EXPECT_TRUE(same_bits(ours[i], wanted[i])) << "result " << i;
}

TEST_P(CudaKernels, FindTheFirstElementThatIsNotFinite) {
  const at::Tensor x = random({200000}, 1);
  const auto find = [&] {
    return emulated_backend().first_nonfinite(x.data_ptr<float>(), x.numel(), c10::DeviceType::CPU);
  };
  EXPECT_EQ(find(), -1);
  x[150000] = NAN;
  EXPECT_EQ(find(), 150000);
  x[1234] = -std::numeric_limits<float>::infinity();
  EXPECT_EQ(find(), 1234);
}

constexpr std::array kDtypes = {at::kFloat, at::kBFloat16, at::kHalf};

TEST_P(CudaKernels, ActivateAsTheReferenceDoes) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const std::string& name : activation_names()) {
      SCOPED_TRACE(name + " of " + c10::toString(dtype));
      const Activation activation = activation_from_name(name);
      const at::Tensor x = random({5, 14}, 1, dtype) * 6, dy = random({5, 14}, 2, dtype),
                       half = random({5, 7}, 3, dtype);
      const auto results = [&](const Backend& on) -> Results {
        const Results out = {
            at::empty_like(x), at::empty_like(x), at::empty_like(half), at::empty_like(x)};
        on.activate(x, activation, out[0]);
        on.activate_backward(dy, x, activation, out[1]);
        on.gated(x, activation, out[2]);
        on.gated_backward(half, x, activation, out[3]);
        return out;
      };
      const Results ours = results(emulated_backend()), wanted = results(*backends().get("aten"));
      for (std::size_t i = 0; i < wanted.size(); ++i)
        expect_close(ours[i], doubles(wanted[i]), 2 * epsilon(dtype) + 40 * 0x1p-23);
    }
  }
}

TEST_P(CudaKernels, DropTheSameElementsToTheBitsOfTheCpu) {
  const DropoutKey whole = {
      .p = 0.3, .key = 11, .sample_ids = {7, 1000000007, 2}, .element_offset = 5};
  DropoutKey parts = whole, columns = whole;
  parts.parts = {3, 0};
  columns.columns = 2;
  columns.column = 1;
  for (const at::ScalarType dtype : kDtypes) {
    for (const DropoutKey& key : {whole, parts, columns}) {
      const at::Tensor x = random({3, 4, 10}, 1, dtype), plus = random({3, 4, 10}, 2, dtype);
      const auto results = [&](const Backend& on) -> Results {
        const Results out = {at::empty_like(x), at::empty_like(x)};
        on.dropout(x, {}, key, out[0]);
        on.dropout(x, plus, key, out[1]);
        return out;
      };
      const Results ours = results(emulated_backend()), wanted = results(*backends().get("cpu"));
      EXPECT_TRUE(same_bits(ours[0], wanted[0]));
      expect_close(ours[1], doubles(wanted[1]), epsilon(dtype) * 2);
    }
  }
}

TEST_P(CudaKernels, AddTheRowsOfATokenToTheBitsOfTheCpu) {
  const at::Tensor ids = int64s({4, 0, 4, 2, 4, 0, 9, 4});
  for (const at::ScalarType dtype : kDtypes) {
    for (const bool accumulate : {false, true}) {
      const at::Tensor dy = random({8, 33}, 1, dtype);
      const auto result = [&](const Backend& on) {
        const at::Tensor dw = random({10, 33}, 2);
        on.embedding_grad(dy, ids, accumulate, dw);
        return dw;
      };
      EXPECT_TRUE(same_bits(result(emulated_backend()), result(*backends().get("cpu"))));
    }
  }
}

/// Rows of random numbers and the results of a norm and of its backward.
Results norms_of(const Backend& on,
                 std::int64_t rows,
                 std::int64_t channels,
                 at::ScalarType dtype,
                 bool centred,
                 bool fused) {
  const at::Tensor x = random({rows, channels}, 1, dtype),
                   branch = random({rows, channels}, 2, dtype),
                   weight = random({channels}, 3, dtype) + 1.0, bias = random({channels}, 4, dtype),
                   dy = random({rows, channels}, 5, dtype),
                   plus = random({rows, channels}, 6, dtype), none;
  const at::Tensor y = at::empty_like(x), sum = fused ? at::empty_like(x) : none,
                   mean = centred ? at::empty({rows}) : none, rstd = at::empty({rows});
  const at::Tensor& use_branch = fused ? branch : none;
  const at::Tensor& use_bias = centred ? bias : none;
  on.norm({x, weight, use_bias, use_branch, 1e-5, y, mean, rstd, sum});
  const at::Tensor dx = at::empty_like(x), dweight = at::ones({channels}),
                   dbias = centred ? at::ones({channels}) : none;
  const at::Tensor& use_plus = fused ? plus : none;
  on.norm_backward(
      {dy, fused ? sum : x, mean, rstd, weight, use_plus, dx, dweight, dbias, true, false});
  Results out = {y, rstd, dx, dweight};
  if (centred) {
    out.push_back(mean);
    out.push_back(dbias);
  }
  return out;
}

TEST_P(CudaKernels, NormalizeRowsAsTheReferenceDoes) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const auto& [rows, channels] :
         {std::pair<std::int64_t, std::int64_t>{1, 1}, {3, 33}, {70, 600}}) {
      for (const bool centred : {false, true}) {
        SCOPED_TRACE(testing::Message() << c10::toString(dtype) << " " << rows << " x " << channels
                                        << (centred ? ", centred" : ""));
        if (centred && channels == 1) continue;  // x - mean is 0 but for rounding
        const bool fused = centred == (rows == 3);
        const Results ours = norms_of(emulated_backend(), rows, channels, dtype, centred, fused),
                      wanted =
                          norms_of(*backends().get("aten"), rows, channels, dtype, centred, fused);
        const double within = 2 * epsilon(dtype) + static_cast<double>(channels + rows) * 0x1p-22;
        for (std::size_t i = 0; i < wanted.size(); ++i) {
          SCOPED_TRACE(i);
          EXPECT_EQ(ours[i].scalar_type(), wanted[i].scalar_type());
          expect_close(ours[i], doubles(wanted[i]), within);
        }
      }
    }
  }
}

TEST_P(CudaKernels, DropABranchInThePassOfItsNormToTheBitsOfDropoutAndNormApart) {
  const DropoutKey whole = {
      .p = 0.3, .key = 11, .sample_ids = {7, 1000000007, 2}, .element_offset = 5};
  DropoutKey parts = whole, columns = whole;
  parts.parts = {3, 0};
  columns.columns = 2;
  columns.column = 1;
  const Backend &ours = emulated_backend(), &cpu = *backends().get("cpu");
  for (const at::ScalarType dtype : kDtypes) {
    for (const DropoutKey& key : {whole, parts, columns}) {
      for (const bool centred : {false, true}) {
        const at::Tensor x = random({3, 4, 70}, 1, dtype), branch = random({3, 4, 70}, 2, dtype),
                         dy = random({3, 4, 70}, 3, dtype), plus = random({3, 4, 70}, 4, dtype),
                         weight = random({70}, 5, dtype) + 1.0, bias = random({70}, 6, dtype), none;
        const at::Tensor& use_bias = centred ? bias : none;
        const auto norm = [&](const at::Tensor& from, bool fused) -> Results {
          const at::Tensor y = at::empty_like(x), mean = centred ? at::empty({12}) : none,
                           rstd = at::empty({12}), sum = fused ? at::empty_like(x) : none,
                           dx = at::empty_like(x), dweight = at::ones({70}),
                           dbias = centred ? at::ones({70}) : none,
                           dbranch = fused ? at::empty_like(x) : none;
          const DropoutKey* const used = fused ? &key : nullptr;
          const at::Tensor& add = fused ? branch : none;
          ours.norm({from, weight, use_bias, add, 1e-5, y, mean, rstd, sum, used});
          const at::Tensor& normed = fused ? sum : from;
          ours.norm_backward({dy,
                              normed,
                              mean,
                              rstd,
                              weight,
                              plus,
                              dx,
                              dweight,
                              dbias,
                              true,
                              false,
                              used,
                              dbranch});
          return {
              normed, y, rstd, dx, dweight, centred ? mean : rstd, centred ? dbias : rstd, dbranch};
        };
        const at::Tensor sum = at::empty_like(x), dbranch = at::empty_like(x);
        ours.dropout(branch, x, key, sum);
        const Results fused = norm(x, true), apart = norm(sum, false);
        for (std::size_t i = 0; i + 1 < apart.size(); ++i)
          EXPECT_TRUE(same_bits(fused[i], apart[i])) << "result " << i;
        cpu.dropout(apart[3], {}, key, dbranch);
        EXPECT_TRUE(same_bits(fused.back(), dbranch));
      }
    }
  }
}

TEST_P(CudaKernels, ComputeTheCrossEntropyAsTheReferenceDoes) {
  for (const std::int64_t vocab : {2, 31, 700}) {
    for (const double smoothing : {0.0, 0.1}) {
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
        SCOPED_TRACE(testing::Message()
                     << c10::toString(dtype) << " of " << vocab << ", " << smoothing);
        const at::Tensor labels = int64s({1, kIgnoreLabel, 0, vocab - 1});
        const auto results = [&](const Backend& on) -> Results {
          const at::Tensor logits = random({4, vocab}, 1) * 20;
          const at::Tensor gradient = dtype == at::kFloat ? logits : at::empty({4, vocab}, dtype);
          const at::Tensor loss = on.cross_entropy(logits, labels, smoothing, gradient);
          return {loss, gradient};
        };
        const Results ours = results(emulated_backend()), wanted = results(*backends().get("aten"));
        expect_close(ours[0], doubles(wanted[0]), 1e-6);
        expect_close(ours[1], doubles(wanted[1]), 2 * epsilon(dtype) + 1e-5);
        EXPECT_TRUE(same_bits(ours[1][1], at::zeros({vocab}, dtype))) << "the ignored row";
      }
    }
  }
}

TEST_P(CudaKernels, ReducePartsToTheBitsOfTheTransports) {
  using comm::Op;
  for (const at::ScalarType dtype :
       {at::kFloat, at::kDouble, at::kBFloat16, at::kLong, at::kInt, at::kByte}) {
    for (const Op op : {Op::Sum, Op::Max, Op::Min, Op::BitOr}) {
      if (!comm::can_reduce(op, from_torch(dtype))) continue;
      for (const std::int64_t count : {1, 2, 3, 5}) {
        for (const bool accumulate : {false, true}) {
          SCOPED_TRACE(testing::Message() << c10::toString(dtype) << " " << comm::name(op) << " of "
                                          << count << (accumulate ? " more" : ""));
          const at::Tensor wide = random({count + 1, 700}, 3) * 1e3;
          wide[0][5] = NAN;
          wide[count][7] = NAN;
          const bool whole = dtype == at::kLong || dtype == at::kInt || dtype == at::kByte;
          const at::Tensor values =
              whole ? (wide.nan_to_num() * 1e6).to(at::kLong).to(dtype) : wide.to(dtype);
          const at::Tensor parts = values.narrow(0, 1, count).contiguous();
          const at::Tensor ours = values[0].clone(), wanted = values[0].clone();
          std::vector<const void*> inputs;
          for (std::int64_t i = accumulate ? 0 : 1; i <= count; ++i)
            inputs.push_back(values[i].const_data_ptr());
          comm::reduce_arrays(op, from_torch(dtype), wanted.data_ptr(), inputs, 700);
          emulated_backend().reduce_parts(parts, op, accumulate, ours);
          EXPECT_TRUE(same_bits(ours, wanted));
          for (const char* const other : {"cpu", "aten"}) {
            const at::Tensor made = values[0].clone();
            backends().get(other)->reduce_parts(parts, op, accumulate, made);
            if (other == std::string("cpu"))
              EXPECT_TRUE(same_bits(made, wanted));
            else
              EXPECT_TRUE(at::allclose(made, wanted, 0.0, 0.0, /*equal_nan=*/true));
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Orders,
                         CudaKernels,
                         testing::ValuesIn(emulation::kOrders),
                         [](const auto& info) { return emulation::name(info.param); });

/// Every thread reads what the thread `by` places before it has written.
void read_from_others(float* out, int by, bool with_barrier) {
  TESSERA_SHARED(float, values, 64);
  values[threadIdx.x] = static_cast<float>(threadIdx.x);
  if (with_barrier) __syncthreads();
  out[threadIdx.x] = values[(threadIdx.x + 64 - static_cast<unsigned>(by)) % 64];
}

TEST(Emulation, AMissingBarrierChangesTheResult) {
  for (const Order order : emulation::kOrders) {
    emulation::set_order(order, 3);
    std::vector<float> all(64), some(64);
    float *const right = all.data(), *const wrong = some.data();
    TESSERA_LAUNCH(1, 64, read_from_others, right, 32, true);
    TESSERA_LAUNCH(1, 64, read_from_others, wrong, 32, false);
    int differences = 0;
    for (int i = 0; i < 64; ++i) {
      EXPECT_EQ(right[i], static_cast<float>((i + 32) % 64));
      differences += wrong[i] == right[i] ? 0 : 1;
    }
    EXPECT_GT(differences, 0);
  }
  emulation::set_order(Order::Forward);
}

void leave_before_a_barrier() {
  if (threadIdx.x == 5) return;
  __syncthreads();
}
void leave_before_an_exchange(float* out) {
  if (threadIdx.x >= 16) return;
  out[threadIdx.x] = __shfl_xor_sync(0xffffffffU, 1.0F, 1);
}
void wait_in_two_places() {
  if (threadIdx.x < 8)
    __syncthreads();
  else
    __syncthreads();
}

std::string error_of(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

TEST(Emulation, ABarrierThatNotAllReachIsAnError) {
  std::vector<float> memory(32);
  float* const out = memory.data();
  EXPECT_THAT(error_of([] { TESSERA_LAUNCH(1, 64, leave_before_a_barrier); }),
              AllOf(HasSubstr("63 at "), HasSubstr("1 at the end of the kernel")));
  EXPECT_THAT(error_of([out] { TESSERA_LAUNCH(1, 32, leave_before_an_exchange, out); }),
              HasSubstr("16 at __shfl_xor_sync"));
  EXPECT_THAT(error_of([] { TESSERA_LAUNCH(1, 32, wait_in_two_places); }), HasSubstr("8 at "));
  EXPECT_THAT(error_of([] { TESSERA_LAUNCH(1, 2000, wait_in_two_places); }), HasSubstr("refuses"));
}

void read_shared_memory(float* out) {
  TESSERA_SHARED(float, values, 4);
  out[threadIdx.x] = values[threadIdx.x];
}

TEST(Emulation, SharedMemoryBeginsAsNaN) {
  std::vector<float> memory(4);
  float* const out = memory.data();
  TESSERA_LAUNCH(1, 4, read_shared_memory, out);
  for (const float value : memory)
    EXPECT_TRUE(std::isnan(value));
}

}  // namespace
}  // namespace tessera::ops
